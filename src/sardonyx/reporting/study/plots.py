"""The pictures of a study: one for each table that has a plot. Measured times are points with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from sardonyx.records.study import Study, Table
from sardonyx.reporting.plots import svg
from sardonyx.reporting.study import heat
from sardonyx.reporting.study.heat import FASTER, SAME, SLOWER, Row, claim, number, numbers

_WIDTH = 960
_LEFT, _RIGHT, _TOP, _ROW = 240, 110, 92, 26
_COLOR = {FASTER: 0, SLOWER: 1, SAME: 2}  # blue, amber, teal
_PANEL, _GAP, _INSET = 400, 60, 72


def latency(table: Table, title: str) -> str:
    """Return a plot with a line for each model: ratio and interval; left of 1 is faster."""
    timed = [(row, measured) for row in table.named_rows() if (measured := numbers(row, "ratio", "low", "high"))]
    if not timed:
        return svg.Picture("latency", _WIDTH, 100, title, "Nothing was timed.", ()).file()
    ends = [1.0, *(end for _, measured in timed for end in measured)]
    marks = svg.ticks(min(ends), max(ends), 8)
    scale = _Scale(marks[0], marks[-1], _LEFT, _WIDTH - _RIGHT)
    bottom = _TOP + _ROW * len(timed) + 6
    body = [part for mark in marks for part in _vertical(scale(mark), bottom, f"{mark:g}", is_one=mark == 1.0)]
    for at, (row, measured) in enumerate(timed):
        body.append(_interval_line(row, measured, _TOP + at * _ROW + _ROW / 2, scale))
    about = "With 95 % intervals: left of 1 is faster. Blue: faster, amber: slower, teal: no difference."
    return svg.Picture("latency", _WIDTH, int(bottom + 36), title, about, body).file()


def _interval_line(row: Row, measured: Sequence[float], y: float, scale: _Scale) -> str:
    ratio, low, high = measured
    finding = claim(row)
    parts = (
        svg.text(_LEFT - 12, y + 4, str(row["model"]), anchor="end", longest=32),
        svg.line(scale(low), y, scale(high), y, "own"),
        svg.dot(scale(ratio), y, hover=f"{row['model']}: {ratio:.3f} ({low:.3f} to {high:.3f}), {finding}"),
        svg.text(_WIDTH - _RIGHT + 12, y + 4, finding, "soft"),
    )
    return svg.group(_COLOR[finding], parts)


def scatter(table: Table, title: str) -> str:
    """Return a scatter plot with a panel for each counted saving, all on the same scale of time."""
    points = table.named_rows()
    columns = [column for column in table.columns if column.endswith("_saved") and column != "time_saved"]
    times = [end for row in points for end in numbers(row, "low", "time_saved", "high") or ()]
    up = svg.ticks(min([0.0, *times]), max([0.0, *times]), 5)
    height = 92 + -(-len(columns) // 2) * (_PANEL - 60)
    body = [line for at, column in enumerate(columns) for line in _panel(at, column, points, up)]
    about = "One point a model, with the 95 % interval of its time. Blue: faster, amber: slower, teal: no difference."
    return svg.Picture("scatter", _WIDTH, height, title, about, body).file()


def _panel(at: int, column: str, points: Sequence[Row], up: Sequence[float]) -> Iterator[str]:
    left, top = _INSET + (at % 2) * (_PANEL + _GAP), 92 + (at // 2) * (_PANEL - 60)
    bottom = top + _PANEL - 140
    saved = [value for row in points if (value := number(row[column])) is not None]
    across = svg.ticks(min([0.0, *saved]), max([0.0, *saved]), 5)
    x, y = _Scale(across[0], across[-1], left, left + _PANEL - 40), _Scale(up[0], up[-1], bottom, top)
    for mark in up:
        yield svg.line(left, y(mark), left + _PANEL - 40, y(mark), "axis" if mark == 0 else "rule")
        yield svg.text(left - 8, y(mark) + 4, _percent(mark), "soft", anchor="end")
    for mark in across:
        yield svg.line(x(mark), top, x(mark), bottom, "axis" if mark == 0 else "rule")
        yield svg.text(x(mark), bottom + 18, _percent(mark), "soft", anchor="middle")
    yield svg.text(left + (_PANEL - 40) / 2, bottom + 38, f"{column.removesuffix('_saved')} saved", anchor="middle")
    yield svg.text(left - 8, top - 10, "time saved", "soft")
    for row in points:
        yield svg.group(_COLOR[_claim_of_saving(row)], _point(row, column, x, y))


def _point(row: Row, column: str, x: _Scale, y: _Scale) -> Iterator[str]:
    place = numbers(row, column, "time_saved", "low", "high")
    if place is not None:
        saved, time, low, high = place
        yield svg.line(x(saved), y(low), x(saved), y(high), "own")
        hover = f"{row['model']}: {_percent(saved)} saved, time {_percent(time)} ({_percent(low)} to {_percent(high)})"
        yield svg.dot(x(saved), y(time), hover=hover)


def _claim_of_saving(row: Row) -> str:
    """Return the claim for savings instead of ratios: the interval of a faster model is above zero."""
    ends = numbers(row, "low", "high")
    return claim({**row, "low": 1 - ends[1], "high": 1 - ends[0]}) if ends is not None else SAME


class _Scale:
    """Maps numbers to positions on a line."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._span = low, high - low
        self._start, self._length = start, end - start

    def __call__(self, value: float) -> float:
        """Return the position of a number."""
        return self._start + self._length * (value - self._low) / self._span


def _vertical(x: float, bottom: float, label: str, *, is_one: bool) -> tuple[str, str]:
    kind = "axis" if is_one else "rule"
    return svg.line(x, _TOP - 4, x, bottom, kind), svg.text(x, bottom + 18, label, "soft", anchor="middle")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %".replace("-", "−")


class Picture(Struct, frozen=True):
    """A picture and its title."""

    title: str
    svg: str


class _Plot(Struct, frozen=True):
    """How a table is drawn."""

    file: str
    title: str
    draw: Callable[[Table, str], str]


_PLOTS: Mapping[str, _Plot] = {
    "overview": _Plot("latency.svg", "Latency of the optimized model over the original", latency),
    "pass_matrix": _Plot("passes.svg", "Nodes that each pass removes", heat.pass_matrix),
    "attribution_time": _Plot("passes_time.svg", "Time that each pass saves", heat.pass_times),
    "order": _Plot("order.svg", "Results of shuffled orders", heat.orders),
    "correlation_points": _Plot("correlation.svg", "Counted savings and measured time", scatter),
    "tolerance_spread": _Plot("tolerance.svg", "How far results move", heat.tolerance),
}


def pictures(study: Study) -> dict[str, Picture]:
    """Return pictures by file name, for the tables that the study has and that are not empty."""
    tables = {table.name: table for table in study.tables}
    return {
        plot.file: Picture(plot.title, plot.draw(tables[name], plot.title))
        for name, plot in _PLOTS.items()
        if name in tables and tables[name].rows
    }
