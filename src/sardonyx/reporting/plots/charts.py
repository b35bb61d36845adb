"""Charts of latencies, errors by place, live bytes, and numbers of successive runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sardonyx.records.analysis import Timeline
from sardonyx.records.bench import Benchmark, Point, Timing
from sardonyx.records.comparison import Location
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.bench import bench_sentence, milliseconds, ratio, size_of
from sardonyx.reporting.history import History, Tracked, ends, incomparable
from sardonyx.reporting.measures import Reading
from sardonyx.reporting.plots import svg
from sardonyx.reporting.run_bundle import RunBundle

BOX_WIDTH, BOX_LEFT, BOX_RIGHT = 960, 230, 40
BOX_TOP, BOX_HEADER, ROW, BOX_FOOT = 76, 30, 46, 52  # the title; then a panel's header, a row for each file, its axis
BOX = 22
_BOX_SPAN = BOX_WIDTH - BOX_LEFT - BOX_RIGHT
_BOX_STYLE = """
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
    height = BOX_TOP + sum(map(_height, bench.points)) + 10
    body: list[str] = []
    top = BOX_TOP
    for point in bench.points:
        body += _box_panel(point, bench, top)
        top += _height(point)
    return svg.Picture("boxplot", BOX_WIDTH, height, f"Time of {title}", bench_sentence(bench), body, _BOX_STYLE)


def _height(point: Point) -> int:
    return BOX_HEADER + ROW * len(point.timings) + BOX_FOOT


def _box_panel(point: Point, bench: Benchmark, top: float) -> Iterator[str]:
    low = min(seconds for timing in point.timings for seconds in timing.seconds)
    high = max(timing.high_whisker for timing in point.timings)
    marks = svg.ticks(1000 * low, 1000 * high, 8)
    first, last = marks[0], marks[-1]
    base = top + BOX_HEADER + ROW * len(point.timings)

    def across(seconds: float) -> float:
        return BOX_LEFT + _BOX_SPAN * (1000 * seconds - first) / (last - first)

    if len(bench.points) > 1:
        yield svg.text(BOX_LEFT, top + 18, f"at {size_of(point, bench)}", "soft")
    for mark in marks:
        x = across(mark / 1000)
        yield svg.line(x, top + BOX_HEADER, x, base)
        yield svg.text(x, base + 18, f"{mark:g}", "soft", anchor="middle")
    yield svg.line(BOX_LEFT, base, BOX_WIDTH - BOX_RIGHT, base, "axis")
    yield svg.text(BOX_LEFT + _BOX_SPAN / 2, base + 38, "milliseconds a run", "soft", anchor="middle")
    for index, timing in enumerate(point.timings):
        middle = top + BOX_HEADER + ROW * (index + 0.5)
        color = svg.series(index, len(point.timings))
        yield svg.group(color, _box(timing, middle, across))
        beyond = [seconds for seconds in timing.seconds if 1000 * seconds > last]
        if beyond:
            note = f"{fmt.plural(len(beyond), 'round')} up to {milliseconds(max(beyond))} ms"
            yield svg.text(BOX_WIDTH - BOX_RIGHT, middle - BOX / 2 - 3, f"{note} →", "soft", anchor="end")
        for seconds in timing.seconds:
            if 1000 * seconds <= last and not timing.low_whisker <= seconds <= timing.high_whisker:
                circle = f'<circle class="round" cx="{svg.at(across(seconds))}" cy="{svg.at(middle)}" r="2.5"/>'
                yield svg.group(color, [circle])


def _box(timing: Timing, y: float, across: Callable[[float], float]) -> Iterator[str]:
    quartiles = (timing.low_quartile, timing.median, timing.high_quartile)
    low, left, median, right, high = map(across, (timing.low_whisker, *quartiles, timing.high_whisker))
    times = f"{milliseconds(timing.median)} ms" + (f", {ratio(timing.against_first)}" if timing.against_first else "")
    yield svg.text(BOX_LEFT - 14, y - 3, timing.label, "name", anchor="end", longest=24)
    yield svg.text(BOX_LEFT - 14, y + 13, times, "soft", anchor="end", longest=40)
    yield svg.line(low, y, left, y, "own")
    yield svg.line(right, y, high, y, "own")
    for x in (low, high):
        yield svg.line(x, y - BOX / 4, x, y + BOX / 4, "own")
    hover = f"{timing.label}: median {milliseconds(timing.median)} ms, IQR {milliseconds(timing.low_quartile)} to "
    yield svg.rect(left, y - BOX / 2, right - left, BOX, "box", hover=f"{hover}{milliseconds(timing.high_quartile)} ms")
    yield svg.line(median, y - BOX / 2, median, y + BOX / 2, "median")


BORDERS_WIDTH, BORDERS_LEFT, BORDERS_RIGHT = 960, 64, 24
BORDERS_TOP, BORDERS_PLOT, BORDERS_FOOT = 92, 190, 56
_BORDERS_SPAN = BORDERS_WIDTH - BORDERS_LEFT - BORDERS_RIGHT
_BASE = BORDERS_TOP + BORDERS_PLOT
_BORDERS_STYLE = """
.sardonyx .left { fill: var(--own); fill-opacity: 0.18; stroke: var(--own); stroke-width: 1.25; }
.sardonyx .first { stroke: var(--own); stroke-width: 1; stroke-dasharray: 2 4; }
"""


def substitution_plot(location: Location) -> svg.Picture:
    """Return the picture for a file or for the page."""
    return svg.Picture(
        "substitutions",
        BORDERS_WIDTH,
        _BASE + BORDERS_FOOT,
        f"Error that is left: {location.second.name}",
        "Share of the squared error of the outputs if the second model gets the first model's values up to a border.",
        [svg.group(0, _borders_drawn(location))],
        style=_BORDERS_STYLE,
        description=". ".join(_hover(location, place) for place in range(len(location.substitutions))),
    )


def _borders_drawn(location: Location) -> Iterator[str]:
    for percent in range(0, 101, 25):
        y = _BASE - BORDERS_PLOT * percent / 100
        yield svg.line(BORDERS_LEFT, y, BORDERS_WIDTH - BORDERS_RIGHT, y, "rule" if percent else "axis")
        yield svg.text(BORDERS_LEFT - 8, y + 4, f"{percent} %", "soft", anchor="end")
    points = [_point(location, place) for place in range(len(location.substitutions))]
    path = "".join(f"L{svg.at(x)} {svg.at(y)}" for x, y in points)
    yield f'<path class="left" d="M{BORDERS_LEFT} {_BASE}{path}L{svg.at(points[-1][0])} {_BASE}Z"/>'
    yield from _first(location)
    for place, (x, y) in enumerate(points):
        yield svg.dot(x, y, radius=3.5, hover=_hover(location, place))
    for place in sorted({0, location.borders // 2, location.borders}):
        x = BORDERS_LEFT + _BORDERS_SPAN * place / location.borders
        yield svg.line(x, _BASE, x, _BASE + 4, "axis")
        yield svg.text(x, _BASE + 18, fmt.count(place), "soft", anchor="end" if place else "start")
    yield svg.text(
        BORDERS_LEFT + _BORDERS_SPAN / 2,
        _BASE + 42,
        "border values in the order they are computed",
        "soft",
        anchor="middle",
    )


def _first(location: Location) -> Iterator[str]:
    found = location.module
    place = next((one.place for one in location.substitutions if found is not None and one.value == found.value), None)
    if found is None or place is None:
        return
    x = BORDERS_LEFT + _BORDERS_SPAN * place / location.borders
    late = x > BORDERS_LEFT + _BORDERS_SPAN / 2
    yield svg.line(x, BORDERS_TOP - 6, x, _BASE, "first")
    name = fmt.module(found.module)
    yield svg.text(
        x + (-6 if late else 6), BORDERS_TOP - 10, name, "name", anchor="end" if late else "start", longest=60
    )


def _point(location: Location, index: int) -> tuple[float, float]:
    one = location.substitutions[index]
    return BORDERS_LEFT + _BORDERS_SPAN * one.place / location.borders, _BASE - BORDERS_PLOT * min(
        _left(location, index), 1.0
    )


def _left(location: Location, index: int) -> float:
    return (location.substitutions[index].error / location.error) ** 2 if location.error else 0.0


def _hover(location: Location, index: int) -> str:
    one = location.substitutions[index]
    name = fmt.module(one.module) if one.place else "the inputs"
    return f"after {name}: {100 * _left(location, index):.0f} % of the squared error is left"


TIMELINE_WIDTH, TIMELINE_LEFT, TIMELINE_RIGHT = 960, 84, 24
TIMELINE_TOP, TIMELINE_HEADER, TIMELINE_PLOT, TIMELINE_FOOT = (
    76,
    30,
    132,
    38,
)  # the title; then for each panel its header, its plot and its axis
_TIMELINE_SPAN = TIMELINE_WIDTH - TIMELINE_LEFT - TIMELINE_RIGHT
_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))

_TIMELINE_STYLE = """
.sardonyx .live { fill: var(--own); fill-opacity: 0.18; stroke: var(--own); stroke-width: 1.25; }
.sardonyx .level { stroke: var(--own); stroke-width: 1; stroke-dasharray: 2 4; }
"""


def timeline_svg(timelines: Mapping[str, Timeline], title: str) -> str:
    """Return the picture as the text of an SVG file."""
    return timeline(timelines, title).file()


def timeline(timelines: Mapping[str, Timeline], title: str) -> svg.Picture:
    """Return the picture for a file or for the page.

    Args:
        timelines: Label to timeline, drawn from the top in this order.
        title: What was analysed.
    """
    height = TIMELINE_TOP + len(timelines) * (TIMELINE_HEADER + TIMELINE_PLOT + TIMELINE_FOOT) + 26
    most = max((bytes_ for memory in timelines.values() for _, bytes_ in memory.points), default=0)
    ticks = _tick(most, 4)
    scale = max(ticks[0] * -(-most // ticks[0]), ticks[0])
    panels = [svg.group(svg.series(index, len(timelines)), _timeline_panel(index, label, memory, scale, ticks))
              for index, (label, memory) in enumerate(timelines.items())]  # fmt: skip
    foot = svg.text(
        TIMELINE_LEFT + _TIMELINE_SPAN / 2, height - 14, "operations in the order they run", "soft", anchor="middle"
    )
    described = (f"{fmt.name(label)}: {_peak_in_words(memory)}." for label, memory in timelines.items())
    return svg.Picture(
        "timeline",
        TIMELINE_WIDTH,
        height,
        f"Memory timeline: {title}",
        "Bytes of activations that are alive while each operation runs; without weights and inputs.",
        (*panels, foot),
        style=_TIMELINE_STYLE,
        description=" ".join(described),
    )


def _timeline_panel(index: int, label: str, memory: Timeline, scale: int, ticks: tuple[int, int, str]) -> Iterator[str]:
    top = TIMELINE_TOP + index * (TIMELINE_HEADER + TIMELINE_PLOT + TIMELINE_FOOT) + TIMELINE_HEADER
    base = top + TIMELINE_PLOT
    yield svg.text(TIMELINE_LEFT, top - 11, label, "name")
    yield svg.text(TIMELINE_WIDTH - TIMELINE_RIGHT, top - 11, _peak_in_words(memory), anchor="end", longest=200)
    step, unit, letters = ticks
    for bytes_ in range(0, scale + 1, step):
        y = base - TIMELINE_PLOT * bytes_ / scale
        yield svg.line(TIMELINE_LEFT, y, TIMELINE_WIDTH - TIMELINE_RIGHT, y, "rule" if bytes_ else "axis")
        yield svg.text(
            TIMELINE_LEFT - 8, y + 4, f"{bytes_ / unit:g} {letters}" if bytes_ else "0", "soft", anchor="end"
        )
    if memory.points:
        yield from _timeline_drawn(memory, base, scale)


def _timeline_drawn(memory: Timeline, base: int, scale: int) -> Iterator[str]:
    per_step = _TIMELINE_SPAN / memory.steps
    for number in range(0, memory.steps + 1, _tick(memory.steps, 10)[0]):
        x = TIMELINE_LEFT + number * per_step
        yield svg.line(x, base, x, base + 4, "axis")
        yield svg.text(x, base + 18, fmt.count(number), "soft", anchor="middle")
    yield f'<path class="live" d="{_outline(memory, base, scale)}"/>'
    x, y = TIMELINE_LEFT + (memory.peak_step + 0.5) * per_step, base - TIMELINE_PLOT * _most(memory) / scale
    yield svg.line(TIMELINE_LEFT, y, TIMELINE_WIDTH - TIMELINE_RIGHT, y, "level")
    yield svg.dot(x, y, radius=5, hover=_peak_in_words(memory))


def _outline(memory: Timeline, base: int, scale: int) -> str:
    """Return the outline as steps; a point represents all operations up to the next point."""
    parts, last = [f"M{TIMELINE_LEFT} {base}"], -1
    for index, (step, bytes_) in enumerate(memory.points):
        if bytes_ != last:
            x = TIMELINE_LEFT + (step * _TIMELINE_SPAN / memory.steps if index else 0)
            parts.append(f"H{x:.1f}V{base - TIMELINE_PLOT * bytes_ / scale:.1f}")
        last = bytes_
    return "".join((*parts, f"H{TIMELINE_WIDTH - TIMELINE_RIGHT}V{base}Z"))


def _peak_in_words(memory: Timeline) -> str:
    if not memory.points:
        return "no operations"
    where = f" in {fmt.name(memory.peak_module, 50)}" if memory.peak_module else ""
    what = fmt.name(memory.peak_operation, 30)
    return f"peak {fmt.size(_most(memory))} at {what}{where}, step {memory.peak_step:,} of {memory.steps:,}"


def _most(memory: Timeline) -> int:
    return max(bytes_ for _, bytes_ in memory.points)


def _tick(most: int, parts: int) -> tuple[int, int, str]:
    """Return a round distance between at most `parts` ticks, and the unit with its name."""
    unit, letters = next(((unit, letters) for unit, letters in _UNITS if most >= unit), _UNITS[-1])
    rounds = (factor * 10**power for power in range(18) for factor in (1, 2, 5))
    return next(step for step in rounds if step * parts >= most), unit, letters


TREND_WIDTH, TREND_LEFT, TREND_RIGHT, TREND_TOP, HEIGHT, TREND_FOOT = 240, 8, 8, 74, 80, 30
_MAX_POINTS = 60  # points


def trend(history: History, tracked: Tracked) -> svg.Picture:
    """Return the plot of one measure; a line joins runs that are comparable."""
    runs = history.runs[:_MAX_POINTS][::-1]
    values = [tracked.read(run) for run in runs]
    low, high = _range([value for value in values if value is not None])

    def place(at: int, number: float) -> tuple[float, float]:
        x = TREND_LEFT + (TREND_WIDTH - TREND_LEFT - TREND_RIGHT) * (at / (len(runs) - 1) if len(runs) > 1 else 0.5)
        return x, TREND_TOP + HEIGHT * (high - number) / (high - low)

    points = [None if value is None else place(at, value.value) for at, value in enumerate(values)]
    body = [svg.line(TREND_LEFT, TREND_TOP + HEIGHT + 8, TREND_WIDTH - TREND_RIGHT, TREND_TOP + HEIGHT + 8, "axis")]
    body.append(svg.group(0, _lines(runs, points, tracked)))
    for at, (run, value, point) in enumerate(zip(runs, values, points, strict=True)):
        if value is None or point is None:
            continue
        bars = [place(at, end) for end in (value.low, value.high) if end is not None]
        hover = f"{fmt.date(run.run.environment.date)}, {run.name or run.label}: {value.written}"
        interval = [svg.line(*bars[0], *bars[1], "own")] if len(bars) == 2 else []
        body.append(svg.group(0, [*interval, svg.dot(*point, radius=3.5, hover=hover)]))
    days = [fmt.date(run.run.environment.date)[:10] for run in (runs[0], runs[-1])]
    body.append(svg.text(TREND_LEFT, TREND_TOP + HEIGHT + 24, days[0], "soft"))
    body.append(svg.text(TREND_WIDTH - TREND_RIGHT, TREND_TOP + HEIGHT + 24, days[-1], "soft", anchor="end"))
    about = f"{tracked.measure.heading}: {ends(history, tracked)}"
    title = f"{tracked.measure.heading} of {fmt.name(history.model)}"
    return svg.Picture("trend", TREND_WIDTH, TREND_TOP + HEIGHT + TREND_FOOT + 4, title, about, body)


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
