"""The plots of a study: heat maps by passes, orders or error sizes, and times with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from sardonyx.records.study import Entry, Study, Table
from sardonyx.reporting import formatting as fmt
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


_HEAT_LEFT, _HEAT_ROW, _HEAT_WIDTH = 220, 26, 46
_MAX_HEADING = 30  # characters of a heading
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
    width = max(_HEAT_LEFT + _HEAT_WIDTH * len(across) + 130, 720)
    head = 86 + 5 * min(max(map(len, across), default=0), _MAX_HEADING)  # headings are rotated by 45 degrees
    body: list[str] = []
    for at, name in enumerate(across):
        x = _HEAT_LEFT + (at + 0.6) * _HEAT_WIDTH
        body.append(svg.text(x, head - 10, name, "soft", turned=-45, longest=_MAX_HEADING))
    for line, name in enumerate(down):
        top = head + line * _HEAT_ROW
        body.append(svg.text(_HEAT_LEFT - 10, top + 18, name, anchor="end", longest=_MAX_HEADING))
        body.append(svg.line(_HEAT_LEFT, top, _HEAT_LEFT + _HEAT_WIDTH * len(across), top))
        for at, column in enumerate(across):
            if (square := squares.get((name, column))) is not None:
                left = _HEAT_LEFT + at * _HEAT_WIDTH
                drawn = svg.text(left + _HEAT_WIDTH / 2, top + 17, square.written, "in", anchor="middle", longest=9)
                if square.strength > 0:
                    opacity = f'fill-opacity="{svg.at(0.15 + 0.5 * min(square.strength, 1.0))}"'
                    sides = (_HEAT_WIDTH - 2, _HEAT_ROW - 2)
                    box = svg.rect(left + 1, top + 1, *sides, hover=square.hover, more=opacity)
                    drawn = svg.group(square.color, (box, drawn))
                body.append(drawn)
    return svg.Picture("heat", width, head + _HEAT_ROW * len(down) + 28, title, about, body, _STYLE).file()


_STYLE = """
.sardonyx .in { font-size: 11px; }
"""


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
                share, written = abs(removed) / before, fmt.count(int(removed))
                color = _GOOD if removed > 0 else _BAD
                hover = f"{name} on {model}: {written} of {before:,.0f} nodes"
                squares[model, name] = Square(written, strength(share), color, hover)
    down = [str(row["model"]) for row in table.named_rows()]
    about = "Blue: fewer nodes, amber: more. Numbers of nodes within the whole pipeline."
    return field(title, about, passes, down, squares)


def pass_times(table: Table, title: str) -> str:
    """Return a heat map of the time of the pipeline without each pass, coloured if beyond the noise."""
    without = [row for row in table.named_rows() if row["how"] == "without"]
    passes, down = (list(dict.fromkeys(str(row[column]) for row in without)) for column in ("pass", "model"))
    squares: dict[tuple[str, str], Square] = {}
    for row in without:
        if (measured := numbers(row, "ratio", "low", "high")) is not None:
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
        squares: list[str] = []
        for at, power in enumerate(columns):
            if power in strip:
                share, left = strip[power] / total, _STRIP_LEFT + at * step
                hover = f"{model}, {accuracy}: {_power(power)}: {share:.2%} of elements"
                opacity = f'fill-opacity="{svg.at(0.08 + 0.92 * share**0.5)}"'
                squares.append(svg.rect(left, top + 2, step - 1, _STRIP_ROW - 4, hover=hover, more=opacity))
        body.append(svg.group(_CLASS_COLORS.get(accuracy, 3), squares))
    height = _STRIP_TOP + _STRIP_ROW * len(strips) + 24
    about = (
        "Elements by their difference, in units of the type's eps relative to value and scale: up to 2 to this power."
    )
    return svg.Picture("spread", _STRIP_WIDTH, height, title, about, body).file()


def _power(power: int | None) -> str:
    return "equal" if power is None else f"{power}".replace("-", "−")


_WIDTH = 960
_LEFT, _RIGHT, _TOP, _ROW = 240, 110, 92, 26
_COLOR = {FASTER: 0, SLOWER: 1, SAME: 2}  # blue, amber, teal
_PANEL, _GAP, _INSET = 400, 60, 72


def latency(table: Table, title: str) -> str:
    """Return a plot with a line for each model: ratio and interval; left of 1 is faster."""
    timed = [(row, measured) for row in table.named_rows() if (measured := numbers(row, "ratio", "low", "high"))]
    if not timed:
        return svg.Picture("latency", _WIDTH, 100, title, "Nothing was timed.", ()).file()
    scale = svg.Scale.of([1.0, *(end for _, measured in timed for end in measured)], _LEFT, _WIDTH - _RIGHT, 8)
    bottom = _TOP + _ROW * len(timed) + 6
    body = list(scale.across(_TOP - 4, bottom, 1.0))
    for at, (row, (ratio, low, high)) in enumerate(timed):
        y, finding = _TOP + at * _ROW + _ROW / 2, claim(row)
        hover = f"{row['model']}: {ratio:.3f} ({low:.3f} to {high:.3f}), {finding}"
        parts = (
            svg.text(_LEFT - 12, y + 4, str(row["model"]), anchor="end", longest=32),
            svg.line(scale(low), y, scale(high), y, "own"),
            svg.dot(scale(ratio), y, hover=hover),
            svg.text(_WIDTH - _RIGHT + 12, y + 4, finding, "soft"),
        )
        body.append(svg.group(_COLOR[finding], parts))
    about = "With 95 % intervals: left of 1 is faster. Blue: faster, amber: slower, teal: no difference."
    return svg.Picture("latency", _WIDTH, int(bottom + 36), title, about, body).file()


def scatter(table: Table, title: str) -> str:
    """Return a scatter plot with a panel for each counted saving, all on the same scale of time."""
    points = table.named_rows()
    columns = [column for column in table.columns if column.endswith("_saved") and column != "time_saved"]
    times = [end for row in points for end in numbers(row, "low", "time_saved", "high") or ()]
    height = 92 + -(-len(columns) // 2) * (_PANEL - 60)
    body = [line for at, column in enumerate(columns) for line in _panel(at, column, points, [0.0, *times])]
    about = "One point a model, with the 95 % interval of its time. Blue: faster, amber: slower, teal: no difference."
    return svg.Picture("scatter", _WIDTH, height, title, about, body).file()


def _panel(at: int, column: str, points: Sequence[Row], times: Sequence[float]) -> Iterator[str]:
    left, top = _INSET + (at % 2) * (_PANEL + _GAP), 92 + (at // 2) * (_PANEL - 60)
    bottom, right = top + _PANEL - 140, left + _PANEL - 40
    saved = [value for row in points if (value := number(row[column])) is not None]
    x, y = svg.Scale.of([0.0, *saved], left, right), svg.Scale.of(times, bottom, top)
    yield from y.upward(left, right, 0, _percent)
    yield from x.across(top, bottom, 0, _percent)
    yield svg.text((left + right) / 2, bottom + 38, f"{column.removesuffix('_saved')} saved", anchor="middle")
    yield svg.text(left - 8, top - 10, "time saved", "soft")
    for row in points:
        ends = numbers(row, "low", "high")  # of savings instead of ratios: those of a faster model are above zero
        found = SAME if ends is None else claim({**row, "low": 1 - ends[1], "high": 1 - ends[0]})
        marks: list[str] = []
        if (place := numbers(row, column, "time_saved", "low", "high")) is not None:
            saving, time, low, high = place
            interval = f"({_percent(low)} to {_percent(high)})"
            hover = f"{row['model']}: {_percent(saving)} saved, time {_percent(time)} {interval}"
            marks = [svg.line(x(saving), y(low), x(saving), y(high), "own"), svg.dot(x(saving), y(time), hover=hover)]
        yield svg.group(_COLOR[found], marks)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %".replace("-", "−")


_PLOTS: Mapping[str, tuple[str, str, Callable[[Table, str], str]]] = {  # by table: file, title and what draws it
    "overview": ("latency.svg", "Latency of the optimized model over the original", latency),
    "pass_matrix": ("passes.svg", "Nodes that each pass removes", pass_matrix),
    "attribution_time": ("passes_time.svg", "Time that each pass saves", pass_times),
    "order": ("order.svg", "Results of shuffled orders", orders),
    "correlation_points": ("correlation.svg", "Counted savings and measured time", scatter),
    "tolerance_spread": ("tolerance.svg", "How far results move", tolerance),
}


def pictures(study: Study) -> dict[str, tuple[str, str]]:
    """Return title and SVG by file name, for the tables that the study has and that are not empty."""
    tables = {table.name: table for table in study.tables if table.rows}
    shown = (_PLOTS[name] + (tables[name],) for name in _PLOTS if name in tables)
    return {file: (title, draw(table, title)) for file, title, draw, table in shown}
