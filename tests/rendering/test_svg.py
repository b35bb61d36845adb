"""The parts of pictures: whatever a model calls its parts, the picture is well formed; ticks enclose what they mark."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from sardonyx.rendering import svg

HOSTILE = st.text(max_size=200) | st.sampled_from(["<script>x</script>\"'&", "\x1b[31m", "\u202eabc", "]]>", "a\x00b"])


@given(HOSTILE, HOSTILE, HOSTILE)
def test_a_picture_is_well_formed_whatever_the_names_are(title: str, about: str, name: str) -> None:
    body = [svg.text(1, 2, name), svg.group(5, [svg.rect(0, 0, 1, 1, hover=name), svg.dot(1, 1, hover=name)])]
    root = ElementTree.fromstring(svg.page(100, 50, title, about, body))
    found = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert found <= {"svg", "title", "desc", "style", "rect", "text", "g", "circle"}


FINITE = st.floats(-1e9, 1e9)


@given(FINITE, FINITE, st.integers(2, 12))
def test_ticks_enclose_the_data_and_are_few_and_evenly_apart(one: float, other: float, parts: int) -> None:
    low, high = sorted((one, other))
    marks = svg.ticks(low, high, parts)
    slack = 1e-6 * max(1.0, abs(low), abs(high), high - low)
    assert marks[0] <= low + slack
    assert marks[-1] >= high - slack
    assert 2 <= len(marks) <= parts + 3
    assert marks == sorted(set(marks))


def test_ticks_are_round() -> None:
    assert svg.ticks(0.93, 1.06, 4) == [0.9, 0.95, 1.0, 1.05, 1.1]
    assert svg.ticks(3.0, 3.0) == [3.0, 4.0, 5.0, 6.0]


def test_coordinates_are_short() -> None:
    assert [svg.at(1.0), svg.at(-0.001), svg.at(12.3456), svg.at(1234.56)] == ["1", "0", "12.35", "1234.56"]


def test_a_picture_inside_a_page_leaves_its_theme_to_the_page_and_keeps_its_own_rules() -> None:
    whole = svg.page(10, 10, "t", "a", (svg.dot(1, 1),), style=".sardonyx .live { fill: red; }")
    inside = svg.inline(whole)
    assert "prefers-color-scheme" in whole
    assert "color-scheme" not in inside
    assert ".sardonyx .live" in inside
    assert inside.count("<circle") == 1
    assert "--own: var(--own3)" in svg.PAGE_STYLE
    assert "color-scheme" not in svg.PAGE_STYLE
