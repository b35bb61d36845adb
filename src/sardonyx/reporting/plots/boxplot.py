"""A Benchmark as a box plot: a panel for each size, with a box for each file on one scale of milliseconds.

The box is the interquartile range of the rounds, the line in it their median, the whiskers the outermost rounds within
one and a half box lengths. The scale ends before single disturbed rounds far out, which are counted instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.records.bench import Benchmark, Point, Timing
from sardonyx.reporting import formatting
from sardonyx.reporting.bench import bench_sentence, milliseconds, ratio, size_of
from sardonyx.reporting.plots import svg

WIDTH, LEFT, RIGHT = 960, 230, 40
TOP, HEADER, ROW, FOOT = 76, 30, 46, 52  # the title; then a panel's header, a row for each file, its axis
BOX = 22
_SPAN = WIDTH - LEFT - RIGHT
_STYLE = """
.sardonyx .box { fill: var(--own); fill-opacity: 0.25; stroke: var(--own); stroke-width: 1.5; }
.sardonyx .median { stroke: var(--own); stroke-width: 3; }
.sardonyx .round { fill: none; stroke: var(--own); stroke-width: 1; }
"""


def boxplot_svg(bench: Benchmark) -> str:
    """Return the picture as the text of an SVG file."""
    return boxplot(bench).file()


def boxplot(bench: Benchmark) -> svg.Picture:
    """Return the picture for a file or for the page."""
    title = " and ".join(file.label for file in bench.files)
    height = TOP + sum(map(_height, bench.points)) + 10
    body: list[str] = []
    top = TOP
    for point in bench.points:
        body += _panel(point, bench, top)
        top += _height(point)
    return svg.Picture("boxplot", WIDTH, height, f"Time of {title}", bench_sentence(bench), body, _STYLE)


def _height(point: Point) -> int:
    return HEADER + ROW * len(point.timings) + FOOT


def _panel(point: Point, bench: Benchmark, top: float) -> Iterator[str]:
    low = min(seconds for timing in point.timings for seconds in timing.seconds)
    high = max(timing.high_whisker for timing in point.timings)
    marks = svg.ticks(1000 * low, 1000 * high, 8)
    first, last = marks[0], marks[-1]
    base = top + HEADER + ROW * len(point.timings)

    def across(seconds: float) -> float:
        return LEFT + _SPAN * (1000 * seconds - first) / (last - first)

    if len(bench.points) > 1:
        yield svg.text(LEFT, top + 18, f"at {size_of(point, bench)}", "soft")
    for mark in marks:
        x = across(mark / 1000)
        yield svg.line(x, top + HEADER, x, base)
        yield svg.text(x, base + 18, f"{mark:g}", "soft", anchor="middle")
    yield svg.line(LEFT, base, WIDTH - RIGHT, base, "axis")
    yield svg.text(LEFT + _SPAN / 2, base + 38, "milliseconds a run", "soft", anchor="middle")
    for index, timing in enumerate(point.timings):
        middle = top + HEADER + ROW * (index + 0.5)
        color = svg.series(index, len(point.timings))
        yield svg.group(color, _box(timing, middle, [across(seconds) for seconds in _marks(timing)]))
        beyond = [seconds for seconds in timing.seconds if 1000 * seconds > last]
        if beyond:
            note = f"{formatting.plural(len(beyond), 'round')} up to {milliseconds(max(beyond))} ms"
            yield svg.text(WIDTH - RIGHT, middle - BOX / 2 - 3, f"{note} →", "soft", anchor="end")
        for seconds in timing.seconds:
            if 1000 * seconds <= last and not timing.low_whisker <= seconds <= timing.high_whisker:
                yield svg.group(color, [_round(across(seconds), middle)])


def _marks(timing: Timing) -> tuple[float, ...]:
    return timing.low_whisker, timing.low_quartile, timing.median, timing.high_quartile, timing.high_whisker


def _box(timing: Timing, y: float, at: list[float]) -> Iterator[str]:
    low, left, median, right, high = at
    times = f"{milliseconds(timing.median)} ms" + (f", {ratio(timing.against_first)}" if timing.against_first else "")
    yield svg.text(LEFT - 14, y - 3, timing.label, "name", anchor="end", longest=24)
    yield svg.text(LEFT - 14, y + 13, times, "soft", anchor="end", longest=40)
    yield svg.line(low, y, left, y, "own")
    yield svg.line(right, y, high, y, "own")
    for x in (low, high):
        yield svg.line(x, y - BOX / 4, x, y + BOX / 4, "own")
    hover = f"{timing.label}: median {milliseconds(timing.median)} ms, IQR {milliseconds(timing.low_quartile)} to "
    yield svg.rect(left, y - BOX / 2, right - left, BOX, "box", hover=f"{hover}{milliseconds(timing.high_quartile)} ms")
    yield svg.line(median, y - BOX / 2, median, y + BOX / 2, "median")


def _round(x: float, y: float) -> str:
    return f'<circle class="round" cx="{svg.at(x)}" cy="{svg.at(y)}" r="2.5"/>'
