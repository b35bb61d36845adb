"""One number of a model over its runs: a point a run, the oldest on the left, with its interval if it has one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sardonyx.reporting import formatting
from sardonyx.reporting.history import History, Tracked, ends
from sardonyx.reporting.measures import Reading
from sardonyx.reporting.plots import svg
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.run_changes import incomparable

WIDTH, LEFT, RIGHT, TOP, HEIGHT, FOOT = 240, 8, 8, 74, 80, 30
_MAX_POINTS = 60  # points


def trend(history: History, tracked: Tracked) -> svg.Picture:
    """Return the plot of one measure; a line joins runs that are comparable."""
    runs = history.runs[:_MAX_POINTS][::-1]
    values = [tracked.read(run) for run in runs]
    low, high = _range([value for value in values if value is not None])

    def place(at: int, number: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (at / (len(runs) - 1) if len(runs) > 1 else 0.5)
        return x, TOP + HEIGHT * (high - number) / (high - low)

    points = [None if value is None else place(at, value.value) for at, value in enumerate(values)]
    body = [svg.line(LEFT, TOP + HEIGHT + 8, WIDTH - RIGHT, TOP + HEIGHT + 8, "axis")]
    body.append(svg.group(0, _lines(runs, points, tracked)))
    for at, (run, value, point) in enumerate(zip(runs, values, points, strict=True)):
        if value is None or point is None:
            continue
        bars = [place(at, end) for end in (value.low, value.high) if end is not None]
        hover = f"{formatting.date(run.run.environment.date)}, {run.name or run.label}: {value.written}"
        interval = [svg.line(*bars[0], *bars[1], "own")] if len(bars) == 2 else []
        body.append(svg.group(0, [*interval, svg.dot(*point, radius=3.5, hover=hover)]))
    days = [formatting.date(run.run.environment.date)[:10] for run in (runs[0], runs[-1])]
    body.append(svg.text(LEFT, TOP + HEIGHT + 24, days[0], "soft"))
    body.append(svg.text(WIDTH - RIGHT, TOP + HEIGHT + 24, days[-1], "soft", anchor="end"))
    about = f"{tracked.measure.heading}: {ends(history, tracked)}"
    title = f"{tracked.measure.heading} of {formatting.name(history.model)}"
    return svg.Picture("trend", WIDTH, TOP + HEIGHT + FOOT + 4, title, about, body)


def _range(values: Sequence[Reading]) -> tuple[float, float]:
    """Return the ends of the scale: all numbers and intervals, with room if they hardly differ."""
    numbers = [number for value in values for number in (value.value, value.low, value.high) if number is not None]
    low, high = min(numbers), max(numbers)
    room = max(0.08 * (high - low), 0.005 * abs(high), 1e-9)
    return low - room, high + room


def _lines(runs: Sequence[RunBundle], points: Sequence[tuple[float, float] | None], tracked: Tracked) -> Iterator[str]:
    for at in range(1, len(runs)):
        start, end = points[at - 1], points[at]
        if start is None or end is None or (tracked.measure.unit.is_time and any(incomparable(runs[at - 1], runs[at]))):
            continue
        yield svg.line(*start, *end, "own")
