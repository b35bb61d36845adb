"""A drawing is data: integers, boxes as wide as their text, a route for every edge."""

from __future__ import annotations

from sardonyx.reporting.plots import svg
from sardonyx.reporting.plots.drawing import LONGEST, Label, drawing


def test_boxes_have_their_place_name_kind_and_hover() -> None:
    placed = drawing(
        [Label("x", "port"), Label("MatMul", "gone", "/m/MatMul"), Label("Gemm", "made")], [(0, 1), (0, 2)]
    )
    assert [box[4:] for box in placed["boxes"]] == [
        ["x", "port", ""],
        ["MatMul", "gone", "/m/MatMul"],
        ["Gemm", "made", ""],
    ]
    assert all(isinstance(number, int) for box in placed["boxes"] for number in box[:4])
    assert all(box[2] > svg.breadth(box[4]) for box in placed["boxes"])


def test_everything_is_inside_the_drawing_and_routes_end_at_their_boxes() -> None:
    edges = [(0, 1), (1, 2), (0, 2)]
    placed = drawing([Label("a"), Label("b"), Label("c")], edges)
    for x, y, w, h, *_ in placed["boxes"]:
        assert 0 < x < x + w < placed["w"]
        assert 0 < y < y + h < placed["h"]
    for (producer, reader), route in zip(edges, placed["routes"], strict=True):
        above, below = placed["boxes"][producer], placed["boxes"][reader]
        assert abs(route[1] - (above[1] + above[3])) <= 1
        assert abs(route[-1] - below[1]) <= 1


def test_a_long_or_unprintable_name_is_shortened_and_escaped() -> None:
    (box,) = drawing([Label("a\u202e" + "x" * 500)], [])["boxes"]
    assert len(box[4]) == LONGEST
    assert box[4].startswith("a\\u202e")


def test_east_asian_letters_have_twice_the_width() -> None:
    wide, narrow = (drawing([Label(text)], [])["boxes"][0][2] for text in ("漢字漢字", "abcd"))
    assert wide > narrow


def test_an_empty_graph_has_an_empty_drawing() -> None:
    assert drawing([], [])["boxes"] == []
