"""A small graph, laid out and ready to be drawn: boxes at their places, edges as points, nothing left to work out.

`assets/graph.js` draws it in the page, `rendering/graph_picture.py` in a file of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sardonyx.rendering import words
from sardonyx.rendering.pictures import svg
from sardonyx.rendering.pictures.layered import Point, layout, without_idle

Kind = Literal["op", "made", "gone", "module", "port", "constant"]
LONGEST = 36  # characters of a label; the whole name is in the hover
HEIGHT = 26
BESIDE_TEXT = 30  # of a box: both sides together, and room for a sign
MARGIN = 6


@dataclass(frozen=True, slots=True)
class Label:
    """What stands in a box and what it is."""

    text: str
    kind: Kind = "op"
    hover: str = ""


def drawing(labels: Sequence[Label], edges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Boxes as [x, y, width, height, text, kind, hover] and routes as [x, y, x, y, …], in whole units."""
    texts = [words.name(label.text, LONGEST) for label in labels]
    frame = frame_of([box_width(text) for text in texts], edges)
    named = zip(frame["boxes"], texts, labels, strict=True)
    return {**frame, "boxes": [[*place, text, label.kind, label.hover] for place, text, label in named]}


def frame_of(widths: Sequence[int], edges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """A drawing whose boxes have a place and no name yet: several graphs of one form can share it."""
    found = layout([(float(width), float(HEIGHT)) for width in widths], edges)
    return {
        "w": round(found.width) + 2 * MARGIN,
        "h": round(found.height) + 2 * MARGIN,
        "boxes": [
            [round(x) + MARGIN, round(y) + MARGIN, width, HEIGHT]
            for (x, y), width in zip(found.places, widths, strict=True)
        ],
        "routes": [_whole(route) for route in found.routes],
    }


def _whole(route: Sequence[Point]) -> list[float]:
    points = without_idle((round(x) + MARGIN, round(y) + MARGIN) for x, y in route)
    return [at for point in points for at in point]


def box_width(text: str) -> int:
    """As wide as its text needs."""
    return round(svg.breadth(text)) + BESIDE_TEXT
