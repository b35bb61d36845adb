"""The plot is well-formed and self-contained, has a text description, and its line is the timeline."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.records.analysis import Timeline
from sardonyx.reporting.plots.charts import TIMELINE_LEFT, TIMELINE_PLOT, TIMELINE_RIGHT, TIMELINE_WIDTH, timeline_svg

SVG = "{http://www.w3.org/2000/svg}"


def _timeline(values: list[int], module: str = "encoder.mlp") -> Timeline:
    peak = values.index(max(values)) if values else 0
    return Timeline(len(values), tuple(enumerate(values)), peak, "gelu", module)


def _levels(picture: str, steps: int) -> list[float]:
    """The height of the line in the middle of each step, as a share of the plot."""
    path = ElementTree.fromstring(picture).find(f".//{SVG}path")
    assert path is not None
    start = re.match(r"M(\d+) (\d+)", path.attrib["d"])
    assert start is not None
    base = float(start[2])
    corners = [(float(x), float(y)) for x, y in re.findall(r"H([\d.]+)V([\d.]+)", path.attrib["d"])]
    middles = [
        TIMELINE_LEFT + (step + 0.5) * (TIMELINE_WIDTH - TIMELINE_LEFT - TIMELINE_RIGHT) / steps
        for step in range(steps)
    ]
    return [(base - [y for x, y in corners if x <= middle][-1]) / TIMELINE_PLOT for middle in middles]


@given(st.lists(st.integers(0, 9_000_000), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_the_line_is_the_timeline(values: list[int]) -> None:
    picture = timeline_svg({"standard": _timeline(values)}, "model")
    ticks = [text for text in re.findall(r'text-anchor="end">([^<]*)</text>', picture) if text[0].isdigit()]
    units = {"B": 1, "kB": 10**3, "MB": 10**6}
    number, unit = ticks[-1].split()
    scale = float(number) * units[unit]
    assert scale >= max(values)
    for level, value in zip(_levels(picture, len(values)), values, strict=True):
        assert abs(level * scale - value) <= scale / TIMELINE_PLOT / 10  # a tenth of a pixel


def test_all_panels_share_one_scale_and_peaks_are_marked() -> None:
    low, high = _timeline([1_000_000, 2_000_000, 500_000]), _timeline([4_000_000] * 5)
    root = ElementTree.fromstring(timeline_svg({"standard": low, "decomposed": high}, "model"))
    first, second = root.findall(f".//{SVG}circle")
    assert float(first.attrib["cx"]) == TIMELINE_LEFT + 1.5 * (TIMELINE_WIDTH - TIMELINE_LEFT - TIMELINE_RIGHT) / 3
    bases = [float(line.attrib["y1"]) for line in root.findall(f".//{SVG}line[@class='axis']") if "x1" in line.attrib]
    heights = [bases[0] - float(first.attrib["cy"]), max(bases) - float(second.attrib["cy"])]
    assert heights == [TIMELINE_PLOT / 2, TIMELINE_PLOT]


def test_it_has_a_text_description() -> None:
    root = ElementTree.fromstring(timeline_svg({"standard": _timeline([3, 5_446_656])}, "vit"))
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert root.attrib["role"] == "img"
    assert title is not None
    assert title.text == "Memory timeline: vit"
    assert desc is not None
    assert desc.text is not None
    assert "standard: peak 5.4 MB at gelu in encoder.mlp, step 1 of 2." in desc.text


def test_it_is_self_contained_and_has_a_dark_theme() -> None:
    picture = timeline_svg({"standard": _timeline([1])}, "model")
    assert "prefers-color-scheme: dark" in picture
    assert not re.search(r"<script|href|url\(|@import|<foreignObject", picture)


def test_names_from_a_model_are_escaped() -> None:
    hostile = '</text><script>alert("1")</script>\x1b[31m&'
    picture = timeline_svg({hostile: _timeline([1], module=hostile)}, hostile)
    root = ElementTree.fromstring(picture)
    assert not root.findall(f".//{SVG}script")
    assert "\x1b" not in picture


def test_a_program_without_operations_has_an_empty_panel() -> None:
    picture = timeline_svg({"standard": _timeline([])}, "model")
    assert ElementTree.fromstring(picture).find(f".//{SVG}path") is None
    assert "no operations" in picture


def test_an_empty_timeline_is_drawn_on_the_baseline() -> None:
    assert _levels(timeline_svg({"standard": _timeline([0, 0])}, "model"), 2) == [0, 0]
