"""Tables of models by passes, orders or error sizes as heat maps with the numbers written in the squares.

The colour of a square is stronger for a larger number. A measured difference within the noise has no colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from sardonyx.records.study import Entry, Table
from sardonyx.reporting import formatting
from sardonyx.reporting.plots import svg

Row: TypeAlias = Mapping[str, Entry]
FASTER, SLOWER, SAME = "faster", "slower", "no difference"


def number(entry: Entry) -> float | None:
    """Return a number, or None for any other entry."""
    return float(entry) if isinstance(entry, (int, float)) and not isinstance(entry, bool) else None


def numbers(row: Row, *columns: str) -> tuple[float, ...] | None:
    """Return the numbers of several columns, or None if one is missing."""
    values = [number(row.get(column)) for column in columns]
    known = [value for value in values if value is not None]
    return tuple(known) if len(known) == len(values) else None


def claim(row: Row) -> str:
    """Return the finding of a comparison if its whole interval is on that side of 1, otherwise no difference."""
    finding, ends = row.get("finding"), numbers(row, "low", "high")
    if ends is None or finding not in (FASTER, SLOWER):
        return SAME
    low, high = ends
    return str(finding) if (high < 1 if finding == FASTER else low > 1) else SAME


_LEFT, _ROW, _WIDTH = 220, 26, 46
_LONGEST = 30  # characters of a heading
_GOOD, _BAD, _MIDDLING = 0, 1, 2  # blue, amber, teal: distinguishable with colour blindness


class Square(Struct, frozen=True):
    """One entry: its text, and the strength of its colour, 0 for none."""

    written: str
    strength: float = 0.0
    color: int = _GOOD
    hover: str = ""


def field(
    title: str, about: str, across: Sequence[str], down: Sequence[str], squares: dict[tuple[str, str], Square]
) -> str:
    """Return a heat map of squares by (row, column)."""
    width = max(_LEFT + _WIDTH * len(across) + 130, 720)
    head = 86 + 5 * min(max(map(len, across), default=0), _LONGEST)  # headings are rotated by 45 degrees
    body: list[str] = []
    for at, name in enumerate(across):
        body.append(svg.text(_LEFT + (at + 0.6) * _WIDTH, head - 10, name, "soft", turned=-45, longest=_LONGEST))
    for line, name in enumerate(down):
        top = head + line * _ROW
        body.append(svg.text(_LEFT - 10, top + 18, name, anchor="end", longest=_LONGEST))
        body.append(svg.line(_LEFT, top, _LEFT + _WIDTH * len(across), top))
        for at, column in enumerate(across):
            square = squares.get((name, column))
            if square is not None:
                body.append(_drawn(square, _LEFT + at * _WIDTH, top))
    return svg.Picture("heat", width, head + _ROW * len(down) + 28, title, about, body, _STYLE).file()


_STYLE = """
.sardonyx .in { font-size: 11px; }
"""


def _drawn(square: Square, left: float, top: float) -> str:
    written = svg.text(left + _WIDTH / 2, top + 17, square.written, "in", anchor="middle", longest=9)
    if square.strength <= 0:
        return written
    strength = f'fill-opacity="{svg.at(0.15 + 0.5 * min(square.strength, 1.0))}"'
    box = svg.rect(left + 1, top + 1, _WIDTH - 2, _ROW - 2, hover=square.hover, more=strength)
    return svg.group(square.color, (box, written))


def strength(share: float) -> float:
    """Return the strength of the colour of a share: small shares are visible, a half is the maximum."""
    return min(1.0, 0.1 + (2 * share) ** 0.5) if share else 0.0


def pass_matrix(table: Table, title: str) -> str:
    """Return a heat map of the nodes that each pass removed from each model."""
    fixed = ("model", "before", "removed", "after")
    passes = [column for column in table.columns if column not in fixed]
    squares: dict[tuple[str, str], Square] = {}
    for row in table.named_rows():
        model, before = str(row["model"]), number(row["before"]) or 1.0
        for name in passes:
            removed = number(row[name]) or 0.0
            if removed:
                share, written = abs(removed) / before, formatting.count(int(removed))
                color = _GOOD if removed > 0 else _BAD
                hover = f"{name} on {model}: {written} of {before:,.0f} nodes"
                squares[model, name] = Square(written, strength(share), color, hover)
    down = [str(row["model"]) for row in table.named_rows()]
    return field(
        title, "Blue: fewer nodes, amber: more. Numbers of nodes within the whole pipeline.", passes, down, squares
    )


def pass_times(table: Table, title: str) -> str:
    """Return a heat map of the time of the pipeline without each pass, coloured if beyond the noise."""
    without = [row for row in table.named_rows() if row["how"] == "without"]
    passes, down = (list(dict.fromkeys(str(row[column]) for row in without)) for column in ("pass", "model"))
    squares: dict[tuple[str, str], Square] = {}
    for row in without:
        measured = numbers(row, "ratio", "low", "high")
        if measured is None:
            continue
        ratio, low, high = measured
        change = f"{100 * (ratio - 1):+.1f} %".replace("-", "−")
        strength = min(1.0, 0.1 + abs(ratio - 1) * 8) if claim(row) != SAME else 0.0
        hover = f"{row['pass']} on {row['model']}: {change} without it ({low:.3f} to {high:.3f})"
        color = _GOOD if ratio > 1 else _BAD
        squares[str(row["model"]), str(row["pass"])] = Square(change, strength, color, hover)
    about = "Change in time without the pass. Blue: the pass saves time, amber: it costs time, no colour: noise."
    return field(title, about, passes, down, squares)


def orders(table: Table, title: str) -> str:
    """Return a heat map of shuffled orders by model: same graph, same up to constants, another graph."""
    colors = {"same": ("=", 0.4, _GOOD), "other constants": ("≈", 0.4, _MIDDLING)}
    shuffles = table.named_rows()
    down, across = list(dict.fromkeys(str(row["model"]) for row in shuffles)), list[str]()
    squares: dict[tuple[str, str], Square] = {}
    placed: dict[str, int] = {}
    for row in shuffles:
        model = str(row["model"])
        placed[model] = placed.get(model, 0) + 1
        column = f"order {placed[model]}"
        across = across if column in across else [*across, column]
        written, strength, color = colors.get(str(row["outcome"]), ("≠", 0.9, _BAD))
        hover = f"{model}, shuffle {row['shuffle']}: {row['outcome']}"
        squares[model, column] = Square(written, strength, color, hover)
    return field(title, "= the usual graph, ≈ the same with other constants, ≠ another graph.", across, down, squares)


# How far results move, as strips: a row for each model and accuracy class, darker where more elements are.

_STRIP_WIDTH, _STRIP_LEFT, _STRIP_RIGHT, _STRIP_TOP, _STRIP_ROW = 960, 340, 40, 104, 24
_CLASS_COLORS = {"exact": 0, "reassociates": 2, "approximates": 1}


def tolerance(table: Table, title: str) -> str:
    """Return strips of differences in powers of two of eps; the first column is equality."""
    strips: dict[tuple[str, str], dict[int | None, float]] = {}
    for row in table.named_rows():
        edge, count = number(row["up_to_times_eps"]), number(row["elements"])
        if edge is not None and count:
            power = round(math.log2(edge)) if edge > 0 else None
            strips.setdefault((str(row["model"]), str(row["class"])), {})[power] = count
    powers = [power for strip in strips.values() for power in strip if power is not None]
    low, high = (min(powers), max(powers)) if powers else (0, 0)
    columns: list[int | None] = [None, *range(low, high + 1)]
    step = (_STRIP_WIDTH - _STRIP_LEFT - _STRIP_RIGHT) / len(columns)
    body = [svg.text(_STRIP_LEFT + (at + 0.5) * step, _STRIP_TOP - 10, _power(power), "soft", anchor="middle")
            for at, power in enumerate(columns) if power is None or len(columns) <= 14 or power % 4 == 0]  # fmt: skip
    for line, ((model, accuracy), strip) in enumerate(strips.items()):
        top, total = _STRIP_TOP + line * _STRIP_ROW, sum(strip.values())
        body.append(svg.text(_STRIP_LEFT - 12, top + 16, f"{model}, {accuracy}", anchor="end", longest=46))
        squares = [
            _strip_square(
                _STRIP_LEFT + at * step, top, step, strip[power] / total, f"{model}, {accuracy}: {_power(power)}"
            )
            for at, power in enumerate(columns)
            if power in strip
        ]
        body.append(svg.group(_CLASS_COLORS.get(accuracy, 3), squares))
    height = _STRIP_TOP + _STRIP_ROW * len(strips) + 24
    about = (
        "Elements by their difference, in units of the type's eps relative to value and scale: up to 2 to this power."
    )
    return svg.Picture("spread", _STRIP_WIDTH, height, title, about, body).file()


def _strip_square(left: float, top: float, width: float, share: float, where: str) -> str:
    strength = f'fill-opacity="{svg.at(0.08 + 0.92 * share**0.5)}"'
    return svg.rect(left, top + 2, width - 1, _STRIP_ROW - 4, hover=f"{where}: {share:.2%} of elements", more=strength)


def _power(power: int | None) -> str:
    return "equal" if power is None else f"{power}".replace("-", "−")
