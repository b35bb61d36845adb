"""The drawing of a small graph: positions of boxes, routes of edges.

`assets/diagram.js` draws it in the page, `graph_picture` in a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from sardonyx.reporting import formatting
from sardonyx.reporting.plots import svg
from sardonyx.reporting.plots.layered import Point, layout, without_idle

Kind = Literal["op", "made", "gone", "module", "port", "constant"]
LONGEST = 36  # characters of a label; the tooltip has the whole name
HEIGHT = 26
BESIDE_TEXT = 30  # of a box: both sides together, with space for a sign
MARGIN = 6


class Label(Struct, frozen=True):
    """The text of a box and its kind."""

    text: str
    kind: Kind = "op"
    hover: str = ""


def drawing(labels: Sequence[Label], edges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return boxes as [x, y, width, height, text, kind, hover] and routes as [x, y, x, y, …], in whole units."""
    texts = [formatting.name(label.text, LONGEST) for label in labels]
    frame = frame_of([box_width(text) for text in texts], edges)
    named = zip(frame["boxes"], texts, labels, strict=True)
    return {**frame, "boxes": [[*place, text, label.kind, label.hover] for place, text, label in named]}


def frame_of(widths: Sequence[int], edges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return a drawing without texts, which several graphs of equal form can share."""
    placed = layout([(float(width), float(HEIGHT)) for width in widths], edges)
    return {
        "w": round(placed.width) + 2 * MARGIN,
        "h": round(placed.height) + 2 * MARGIN,
        "boxes": [
            [round(x) + MARGIN, round(y) + MARGIN, width, HEIGHT]
            for (x, y), width in zip(placed.places, widths, strict=True)
        ],
        "routes": [_whole(route) for route in placed.routes],
    }


def _whole(route: Sequence[Point]) -> list[float]:
    points = without_idle((round(x) + MARGIN, round(y) + MARGIN) for x, y in route)
    return [at for point in points for at in point]


def box_width(text: str) -> int:
    """Return the width of a box with the given text."""
    return round(svg.breadth(text)) + BESIDE_TEXT


# Drawings of graphs as a picture file: the same boxes and lines that `assets/diagram.js` draws in the page.

LEFT, TOP, HEADER, GAP = 24, 76, 30, 48
NARROWEST = 560  # of the picture: the title has to fit
_SIGNS = {"made": "+ ", "gone": "− ", "module": "▸ "}
_COLORS = {"made": 2, "gone": 1, "module": 0}  # teal, amber, blue
_STYLE = """
.sardonyx .box { fill: var(--paper); stroke: var(--soft); stroke-width: 1; }
.sardonyx .made { stroke: var(--own); stroke-width: 2.5; }
.sardonyx .gone { stroke: var(--own); stroke-width: 1.5; stroke-dasharray: 4 3; }
.sardonyx .module { stroke: var(--own); stroke-width: 1.5; }
.sardonyx .port, .sardonyx .constant { stroke: var(--rule); }
.sardonyx .text { font-size: 12px; }
.sardonyx .edge { fill: none; stroke: var(--soft); stroke-width: 1.2; }
.sardonyx .head { fill: var(--soft); }
.sardonyx .file { font-weight: 600; }
"""


def graph_picture(drawings: Mapping[str, Mapping[str, Any] | str], title: str, about: str) -> svg.Picture:
    """Return drawings side by side under their labels; a sentence in place of a drawing is written as text."""
    body: list[str] = []
    x, height = LEFT, 0
    for label, drawing in drawings.items():
        body.append(svg.text(x, TOP + 14, label, "file"))
        if isinstance(drawing, str):
            body.append(svg.text(x, TOP + HEADER + 16, drawing, "soft"))
            wide, high = round(svg.breadth(drawing)), 30
        else:
            inner = "\n".join(_drawn(drawing))
            body.append(f'<g transform="translate({x} {TOP + HEADER})">\n{inner}\n</g>')
            wide, high = drawing["w"], drawing["h"]
        x, height = x + wide + GAP, max(height, high)
    width = max(x - GAP + LEFT, NARROWEST)
    return svg.Picture("graph", width, TOP + HEADER + height + 20, title, about, body, _STYLE)


def _drawn(drawing: Mapping[str, Any]) -> Iterator[str]:
    lines, heads = "".join(map(_line, drawing["routes"])), "".join(map(_head, drawing["routes"]))
    if lines:
        yield f'<path class="edge" d="{lines}"/>'
        yield f'<path class="head" d="{heads}"/>'
    for x, y, width, height, text, kind, hover in drawing["boxes"]:
        rounded = height / 2 if kind == "port" else 6 if kind == "module" else 3
        box = svg.rect(x, y, width, height, f"box {kind}", hover=hover or text, more=f'rx="{svg.at(rounded)}"')
        shown = f"{_SIGNS.get(kind, '')}{text}"
        written = svg.text(
            x + width / 2, y + height / 2 + 4, shown, "soft" if kind == "port" else "text", anchor="middle"
        )
        yield svg.group(_COLORS.get(kind, 0), (box, written))


def _line(route: Sequence[float]) -> str:
    """Return the path of an edge up to its arrow head: straight down, bent between layers."""
    points = list(zip(route[::2], route[1::2], strict=True))
    parts = [f"M{svg.at(points[0][0])} {svg.at(points[0][1])}"]
    for at in range(1, len(points)):
        (x0, y0), (x, y) = points[at - 1], points[at]
        end = y - 5 if at == len(points) - 1 else y
        middle = svg.at((y0 + end) / 2)
        bent = f"C{svg.at(x0)} {middle} {svg.at(x)} {middle} {svg.at(x)} {svg.at(end)}"
        parts.append(f"V{svg.at(end)}" if x == x0 else bent)
    return "".join(parts)


def _head(route: Sequence[float]) -> str:
    return f"M{svg.at(route[-2])} {svg.at(route[-1])}l-3.5 -7h7z"
