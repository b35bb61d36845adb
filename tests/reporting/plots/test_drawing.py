"""A drawing is data: whole numbers, boxes as wide as their text, every edge a route."""

from __future__ import annotations

from sardonyx.reporting.plots import svg
from sardonyx.reporting.plots.drawing import LONGEST, Label, drawing


def test_boxes_have_their_place_name_kind_and_hover() -> None:
    found = drawing([Label("x", "port"), Label("MatMul", "gone", "/m/MatMul"), Label("Gemm", "made")], [(0, 1), (0, 2)])
    assert [box[4:] for box in found["boxes"]] == [
        ["x", "port", ""],
        ["MatMul", "gone", "/m/MatMul"],
        ["Gemm", "made", ""],
    ]
    assert all(isinstance(number, int) for box in found["boxes"] for number in box[:4])
    assert all(box[2] > svg.breadth(box[4]) for box in found["boxes"])


def test_everything_lies_on_the_paper_and_routes_meet_their_boxes() -> None:
    edges = [(0, 1), (1, 2), (0, 2)]
    found = drawing([Label("a"), Label("b"), Label("c")], edges)
    for x, y, w, h, *_ in found["boxes"]:
        assert 0 < x < x + w < found["w"]
        assert 0 < y < y + h < found["h"]
    for (maker, reader), route in zip(edges, found["routes"], strict=True):
        above, below = found["boxes"][maker], found["boxes"][reader]
        assert abs(route[1] - (above[1] + above[3])) <= 1
        assert abs(route[-1] - below[1]) <= 1


def test_a_very_long_or_unprintable_name_is_shortened_and_spelled_out() -> None:
    (box,) = drawing([Label("a\u202e" + "x" * 500)], [])["boxes"]
    assert len(box[4]) == LONGEST
    assert box[4].startswith("a\\u202e")


def test_letters_of_east_asia_are_given_twice_the_room() -> None:
    wide, narrow = (drawing([Label(text)], [])["boxes"][0][2] for text in ("漢字漢字", "abcd"))
    assert wide > narrow


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawing([], [])["boxes"] == []
