"""Charts of latencies, errors by place, live bytes, and numbers of successive runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sardonyx.records.analysis import Timeline
from sardonyx.records.bench import Benchmark, Point, Timing
from sardonyx.records.comparison import Location
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.bench import bench_sentence, milliseconds, ratio, size_of
from sardonyx.reporting.history import History, Tracked, ends, incomparable
from sardonyx.reporting.plots import svg

BOX_WIDTH, BOX_LEFT, BOX_RIGHT = 960, 230, 40
BOX_TOP, BOX_HEADER, ROW, BOX_FOOT = 76, 30, 46, 52  # the title; then a panel's header, a row for each file, its axis
BOX = 22
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
    body, top = list[str](), BOX_TOP
    for point in bench.points:
        body += _box_panel(point, bench, top)
        top += BOX_HEADER + ROW * len(point.timings) + BOX_FOOT
    return svg.Picture("boxplot", BOX_WIDTH, top + 10, f"Time of {title}", bench_sentence(bench), body, _BOX_STYLE)


def _box_panel(point: Point, bench: Benchmark, top: float) -> Iterator[str]:
    low = min(seconds for timing in point.timings for seconds in timing.seconds)
    high = max(timing.high_whisker for timing in point.timings)
    across = svg.Scale.of([1000 * low, 1000 * high], BOX_LEFT, BOX_WIDTH - BOX_RIGHT, 8)  # milliseconds
    base = top + BOX_HEADER + ROW * len(point.timings)
    if len(bench.points) > 1:
        yield svg.text(BOX_LEFT, top + 18, f"at {size_of(point, bench)}", "soft")
    yield from across.across(top + BOX_HEADER, base)
    yield svg.line(BOX_LEFT, base, BOX_WIDTH - BOX_RIGHT, base, "axis")
    yield svg.text((across.start + across.end) / 2, base + 38, "milliseconds a run", "soft", anchor="middle")
    for index, timing in enumerate(point.timings):
        middle = top + BOX_HEADER + ROW * (index + 0.5)
        color = svg.series(index, len(point.timings))
        yield svg.group(color, _box(timing, middle, across))
        shown = [seconds for seconds in timing.seconds if 1000 * seconds <= across.marks[-1]]
        if len(shown) < len(timing.seconds):
            rounds = fmt.plural(len(timing.seconds) - len(shown), "round")
            note = f"{rounds} up to {milliseconds(max(timing.seconds))} ms →"
            yield svg.text(BOX_WIDTH - BOX_RIGHT, middle - BOX / 2 - 3, note, "soft", anchor="end")
        for seconds in shown:
            if not timing.low_whisker <= seconds <= timing.high_whisker:
                place = f'cx="{svg.at(across(1000 * seconds))}" cy="{svg.at(middle)}"'
                yield svg.group(color, [f'<circle class="round" {place} r="2.5"/>'])


def _box(timing: Timing, y: float, across: svg.Scale) -> Iterator[str]:
    quartiles = (timing.low_quartile, timing.median, timing.high_quartile)
    ends = (timing.low_whisker, *quartiles, timing.high_whisker)
    low, left, median, right, high = (across(1000 * seconds) for seconds in ends)
    first, middle, third = map(milliseconds, quartiles)
    times = f"{middle} ms" + (f", {ratio(timing.against_first)}" if timing.against_first else "")
    yield svg.text(BOX_LEFT - 14, y - 3, timing.label, "name", anchor="end", longest=24)
    yield svg.text(BOX_LEFT - 14, y + 13, times, "soft", anchor="end", longest=40)
    yield svg.line(low, y, left, y, "own")
    yield svg.line(right, y, high, y, "own")
    for x in (low, high):
        yield svg.line(x, y - BOX / 4, x, y + BOX / 4, "own")
    hover = f"{timing.label}: median {middle} ms, IQR {first} to {third} ms"
    yield svg.rect(left, y - BOX / 2, right - left, BOX, "box", hover=hover)
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
    up = svg.Scale((0, 25, 50, 75, 100), _BASE, BORDERS_TOP)  # percent

    def across(place: int) -> float:
        return BORDERS_LEFT + _BORDERS_SPAN * place / max(1, location.borders)

    points, hovers = list[tuple[float, float]](), list[str]()
    for one in location.substitutions:
        left = 100 * (one.error / location.error) ** 2 if location.error else 0.0
        points.append((across(one.place), up(min(left, 100))))
        name = fmt.module(one.module) if one.place else "the inputs"
        hovers.append(f"after {name}: {left:.0f} % of the squared error is left")
    body = list(up.upward(BORDERS_LEFT, BORDERS_WIDTH - BORDERS_RIGHT, 0, "{} %".format))
    path = "".join(f"L{svg.at(x)} {svg.at(y)}" for x, y in points)
    end = svg.at(points[-1][0] if points else BORDERS_LEFT)
    body.append(f'<path class="left" d="M{BORDERS_LEFT} {_BASE}{path}L{end} {_BASE}Z"/>')
    found = location.module
    first = next((one for one in location.substitutions if found is not None and one.value == found.value), None)
    if found is not None and first is not None:
        x = across(first.place)
        late = x > BORDERS_LEFT + _BORDERS_SPAN / 2
        anchor, beside = ("end", x - 6) if late else ("start", x + 6)
        body.append(svg.line(x, BORDERS_TOP - 6, x, _BASE, "first"))
        body.append(svg.text(beside, BORDERS_TOP - 10, fmt.module(found.module), "name", anchor=anchor, longest=60))
    body += [svg.dot(x, y, radius=3.5, hover=hover) for (x, y), hover in zip(points, hovers, strict=True)]
    for place in sorted({0, location.borders // 2, location.borders}):
        x, anchor = across(place), "end" if place else "start"
        body.append(svg.line(x, _BASE, x, _BASE + 4, "axis"))
        body.append(svg.text(x, _BASE + 18, fmt.count(place), "soft", anchor=anchor))
    order = "border values in the order they are computed"
    body.append(svg.text(BORDERS_LEFT + _BORDERS_SPAN / 2, _BASE + 42, order, "soft", anchor="middle"))
    title = f"Error that is left: {location.second.name}"
    about = (
        "Share of the squared error of the outputs if the second model gets the first model's values up to a border."
    )
    drawn, described = [svg.group(0, body)], ". ".join(hovers)
    height = _BASE + BORDERS_FOOT
    return svg.Picture("substitutions", BORDERS_WIDTH, height, title, about, drawn, _BORDERS_STYLE, described)


TIMELINE_WIDTH, TIMELINE_LEFT, TIMELINE_RIGHT = 960, 84, 24
TIMELINE_TOP, TIMELINE_HEADER, TIMELINE_PLOT, TIMELINE_FOOT = 76, 30, 132, 38  # the title; then those of each panel
_TIMELINE_END = TIMELINE_WIDTH - TIMELINE_RIGHT
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
    each = TIMELINE_HEADER + TIMELINE_PLOT + TIMELINE_FOOT
    height = TIMELINE_TOP + len(timelines) * each + 26
    most = max((bytes_ for memory in timelines.values() for _, bytes_ in memory.points), default=0)
    step = _round_step(most, 4)
    marks = range(0, max(step * -(-most // step), step) + 1, step)
    unit, letters = next(((unit, letters) for unit, letters in _UNITS if most >= unit), _UNITS[-1])
    body: list[str] = []
    for index, (label, memory) in enumerate(timelines.items()):
        base = TIMELINE_TOP + index * each + TIMELINE_HEADER + TIMELINE_PLOT
        up = svg.Scale(marks, base, base - TIMELINE_PLOT)
        panel = [
            svg.text(TIMELINE_LEFT, base - TIMELINE_PLOT - 11, label, "name"),
            svg.text(_TIMELINE_END, base - TIMELINE_PLOT - 11, _peak_in_words(memory), anchor="end", longest=200),
            *up.upward(TIMELINE_LEFT, _TIMELINE_END, 0, lambda mark: f"{mark / unit:g} {letters}" if mark else "0"),
            *(_timeline_drawn(memory, up) if memory.points else ()),
        ]
        body.append(svg.group(svg.series(index, len(timelines)), panel))
    middle, order = (TIMELINE_LEFT + _TIMELINE_END) / 2, "operations in the order they run"
    body.append(svg.text(middle, height - 14, order, "soft", anchor="middle"))
    about = "Bytes of activations that are alive while each operation runs; without weights and inputs."
    described = " ".join(f"{fmt.name(label)}: {_peak_in_words(memory)}." for label, memory in timelines.items())
    title = f"Memory timeline: {title}"
    return svg.Picture("timeline", TIMELINE_WIDTH, height, title, about, body, _TIMELINE_STYLE, described)


def _timeline_drawn(memory: Timeline, up: svg.Scale) -> Iterator[str]:
    per_step, base = (_TIMELINE_END - TIMELINE_LEFT) / memory.steps, up.start
    for number in range(0, memory.steps + 1, _round_step(memory.steps, 10)):
        x = TIMELINE_LEFT + number * per_step
        yield svg.line(x, base, x, base + 4, "axis")
        yield svg.text(x, base + 18, fmt.count(number), "soft", anchor="middle")
    parts, last = list[str](), -1  # the outline as steps; a point represents all operations up to the next point
    for index, (step, bytes_) in enumerate(memory.points):
        if bytes_ != last:
            x = TIMELINE_LEFT + (step * per_step if index else 0)
            parts.append(f"H{x:.1f}V{up(bytes_):.1f}")
        last = bytes_
    yield f'<path class="live" d="M{TIMELINE_LEFT} {base}{"".join(parts)}H{_TIMELINE_END}V{base}Z"/>'
    x, y = TIMELINE_LEFT + (memory.peak_step + 0.5) * per_step, up(_most(memory))
    yield svg.line(TIMELINE_LEFT, y, _TIMELINE_END, y, "level")
    yield svg.dot(x, y, radius=5, hover=_peak_in_words(memory))


def _peak_in_words(memory: Timeline) -> str:
    if not memory.points:
        return "no operations"
    where = f" in {fmt.name(memory.peak_module, 50)}" if memory.peak_module else ""
    what = fmt.name(memory.peak_operation, 30)
    return f"peak {fmt.size(_most(memory))} at {what}{where}, step {memory.peak_step:,} of {memory.steps:,}"


def _most(memory: Timeline) -> int:
    return max(bytes_ for _, bytes_ in memory.points)


def _round_step(most: int, parts: int) -> int:
    """Return a round distance between at most `parts` marks."""
    rounds = (factor * 10**power for power in range(18) for factor in (1, 2, 5))
    return next(step for step in rounds if step * parts >= most)


TREND_WIDTH, TREND_LEFT, TREND_RIGHT, TREND_TOP, HEIGHT, TREND_FOOT = 240, 8, 8, 74, 80, 30
_MAX_POINTS = 60  # points


def trend(history: History, tracked: Tracked) -> svg.Picture:
    """Return the plot of one measure; a line joins runs that are comparable."""
    runs = history.runs[:_MAX_POINTS][::-1]
    values = [tracked.read(run) for run in runs]
    known = [end for value in values if value is not None for end in (value.value, value.low, value.high)]
    numbers = [number for number in known if number is not None]
    low, high = min(numbers), max(numbers)
    margin = max(0.08 * (high - low), 0.005 * abs(high), 1e-9)  # not empty where all values are equal
    vertical = svg.Scale((low - margin, high + margin), TREND_TOP + HEIGHT, TREND_TOP)
    horizontal = svg.Scale((0, max(1, len(runs) - 1)), TREND_LEFT, TREND_WIDTH - TREND_RIGHT)
    places = [horizontal(at if len(runs) > 1 else 0.5) for at in range(len(runs))]
    joined, dots = list[str](), list[str]()
    for at, (run, value, x) in enumerate(zip(runs, values, places, strict=True)):
        if value is None:
            continue
        before = values[at - 1] if at else None
        apart = at and tracked.measure.unit.is_time and any(incomparable(runs[at - 1], run))
        if before is not None and not apart:
            joined.append(svg.line(places[at - 1], vertical(before.value), x, vertical(value.value), "own"))
        hover = f"{fmt.date(run.run.environment.date)}, {run.name or run.label}: {value.written}"
        measured = value.low is not None and value.high is not None
        interval = [svg.line(x, vertical(value.lowest), x, vertical(value.highest), "own")] if measured else []
        dots.append(svg.group(0, [*interval, svg.dot(x, vertical(value.value), radius=3.5, hover=hover)]))
    base, right = TREND_TOP + HEIGHT, TREND_WIDTH - TREND_RIGHT
    first, *_, last = [fmt.date(run.run.environment.date)[:10] for run in (*runs, *runs[-1:])]
    labels = [svg.text(TREND_LEFT, base + 24, first, "soft"), svg.text(right, base + 24, last, "soft", anchor="end")]
    body = [svg.line(TREND_LEFT, base + 8, right, base + 8, "axis"), svg.group(0, joined), *dots, *labels]
    about = f"{tracked.measure.heading}: {ends(history, tracked)}"
    title = f"{tracked.measure.heading} of {fmt.name(history.model)}"
    return svg.Picture("trend", TREND_WIDTH, base + TREND_FOOT + 4, title, about, body)
