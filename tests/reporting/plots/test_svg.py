"""The parts of plots: well formed for any names of a model; ticks enclose the data."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hostile
from sardonyx.reporting.plots import svg


@given(hostile.NAMES, hostile.NAMES, hostile.NAMES)
def test_a_plot_is_well_formed_for_any_names(title: str, about: str, name: str) -> None:
    body = [svg.text(1, 2, name), svg.group(5, [svg.rect(0, 0, 1, 1, hover=name), svg.dot(1, 1, hover=name)])]
    root = ElementTree.fromstring(svg.Picture("some", 100, 50, title, about, body).file())
    parts = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert parts <= {"svg", "title", "desc", "style", "rect", "text", "g", "circle"}


FINITE = st.floats(-1e9, 1e9)


@given(FINITE, FINITE, st.integers(2, 12))
def test_ticks_enclose_the_data_and_are_few_and_evenly_spaced(one: float, other: float, parts: int) -> None:
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


def test_a_plot_in_a_page_uses_the_theme_of_the_page_and_keeps_its_own_rules() -> None:
    picture = svg.Picture("some", 10, 70, "t", "a", (svg.dot(1, 1),), ".sardonyx .live { fill: red; }")
    assert "prefers-color-scheme" in picture.file()
    assert picture.inline().count("<circle") == 1
    assert "<rect" not in picture.inline()
    assert "--own: var(--own7)" in svg.PAGE_STYLE
    assert "color-scheme" not in svg.PAGE_STYLE


@given(hostile.NAMES)
def test_a_plot_in_the_page_is_well_formed_and_has_no_colours_of_its_own(name: str) -> None:
    picture = svg.Picture("some", 100, 90, name, name, [svg.text(1, 70, name)], ".sardonyx .odd { fill: var(--own); }")
    inline = str(picture.inline())
    ElementTree.fromstring(inline)
    assert ".sardonyx.some .odd" in inline
    assert "prefers-color-scheme" not in inline
    assert not re.findall(r"#[0-9a-f]{3,6}\b", re.sub("<(title|desc|text).*?</", "", inline))


def _linear(color: str) -> list[float]:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def _light(linear: list[float]) -> float:
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted(_light(_linear(color)) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


# Colour vision deficiencies (Machado, Oliveira and Fernandes 2009, severity 1), and normal vision.
EYES = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "most": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
}


def _seen(color: str, eyes: str) -> tuple[float, float, float]:
    """The colour in CIELAB, where a distance of 10 is clearly visible."""
    linear = _linear(color)
    r, g, b = (min(1.0, max(0.0, sum(a * c for a, c in zip(row, linear, strict=True)))) for row in EYES[eyes])
    x, y, z = 0.4124 * r + 0.3576 * g + 0.1805 * b, _light([r, g, b]), 0.0193 * r + 0.1192 * g + 0.9505 * b
    fx, fy, fz = (
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x / 0.95047, y, z / 1.08883)
    )
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize(("paper", "place"), [("#ffffff", 0), ("#fcfcfb", 0), ("#0f1318", 1), ("#161b22", 1)])
def test_colours_contrast_with_their_background(paper: str, place: int) -> None:
    assert min(_contrast(paper, pair[place]) for pair in svg.COLORS) >= 3.0


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("place", [0, 1])
def test_colours_are_distinguishable_in_every_kind_of_colour_vision(place: int, eyes: str) -> None:
    colors = [_seen(pair[place], eyes) for pair in svg.COLORS]
    assert len(colors) == 8
    assert min(math.dist(one, other) for one, other in itertools.combinations(colors, 2)) >= 15.0
