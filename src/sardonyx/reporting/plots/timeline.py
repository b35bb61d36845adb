"""The memory timeline as a picture: live bytes while each operation runs, one panel for each program, on one scale.

Programs have different numbers of steps that do not correspond to each other, so each has its own panel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sardonyx.records.analysis import Timeline
from sardonyx.reporting import formatting
from sardonyx.reporting.plots import svg

WIDTH, LEFT, RIGHT = 960, 84, 24
TOP, HEADER, PLOT, FOOT = 76, 30, 132, 38  # the title; then for each panel its header, its plot and its axis
_SPAN = WIDTH - LEFT - RIGHT
_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))

_STYLE = """
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
    height = TOP + len(timelines) * (HEADER + PLOT + FOOT) + 26
    most = max((bytes_ for memory in timelines.values() for _, bytes_ in memory.points), default=0)
    ticks = _tick(most, 4)
    scale = max(ticks[0] * -(-most // ticks[0]), ticks[0])
    panels = [svg.group(svg.series(index, len(timelines)), _panel(index, label, memory, scale, ticks))
              for index, (label, memory) in enumerate(timelines.items())]  # fmt: skip
    foot = svg.text(LEFT + _SPAN / 2, height - 14, "operations in the order they run", "soft", anchor="middle")
    described = (f"{formatting.name(label)}: {_peak_in_words(memory)}." for label, memory in timelines.items())
    return svg.Picture(
        "timeline",
        WIDTH,
        height,
        f"Memory timeline: {title}",
        "Bytes of activations that are alive while each operation runs; without weights and inputs.",
        (*panels, foot),
        style=_STYLE,
        description=" ".join(described),
    )


def _panel(index: int, label: str, memory: Timeline, scale: int, ticks: tuple[int, int, str]) -> Iterator[str]:
    top = TOP + index * (HEADER + PLOT + FOOT) + HEADER
    base = top + PLOT
    yield svg.text(LEFT, top - 11, label, "name")
    yield svg.text(WIDTH - RIGHT, top - 11, _peak_in_words(memory), anchor="end", longest=200)
    step, unit, letters = ticks
    for bytes_ in range(0, scale + 1, step):
        y = base - PLOT * bytes_ / scale
        yield svg.line(LEFT, y, WIDTH - RIGHT, y, "rule" if bytes_ else "axis")
        yield svg.text(LEFT - 8, y + 4, f"{bytes_ / unit:g} {letters}" if bytes_ else "0", "soft", anchor="end")
    if memory.points:
        yield from _drawn(memory, base, scale)


def _drawn(memory: Timeline, base: int, scale: int) -> Iterator[str]:
    """Yield the line, its ticks, and its peak."""
    per_step = _SPAN / memory.steps
    for number in range(0, memory.steps + 1, _tick(memory.steps, 10)[0]):
        x = LEFT + number * per_step
        yield svg.line(x, base, x, base + 4, "axis")
        yield svg.text(x, base + 18, formatting.count(number), "soft", anchor="middle")
    yield f'<path class="live" d="{_outline(memory, base, scale)}"/>'
    x, y = LEFT + (memory.peak_step + 0.5) * per_step, base - PLOT * _most(memory) / scale
    yield svg.line(LEFT, y, WIDTH - RIGHT, y, "level")
    yield svg.dot(x, y, radius=5, hover=_peak_in_words(memory))


def _outline(memory: Timeline, base: int, scale: int) -> str:
    """Return the outline as steps; a point represents all operations up to the next point."""
    parts, last = [f"M{LEFT} {base}"], -1
    for index, (step, bytes_) in enumerate(memory.points):
        if bytes_ != last:
            x = LEFT + (step * _SPAN / memory.steps if index else 0)
            parts.append(f"H{x:.1f}V{base - PLOT * bytes_ / scale:.1f}")
        last = bytes_
    return "".join((*parts, f"H{WIDTH - RIGHT}V{base}Z"))


def _peak_in_words(memory: Timeline) -> str:
    if not memory.points:
        return "no operations"
    where = f" in {formatting.name(memory.peak_module, 50)}" if memory.peak_module else ""
    what = formatting.name(memory.peak_operation, 30)
    return f"peak {formatting.size(_most(memory))} at {what}{where}, step {memory.peak_step:,} of {memory.steps:,}"


def _most(memory: Timeline) -> int:
    return max(bytes_ for _, bytes_ in memory.points)


def _tick(most: int, parts: int) -> tuple[int, int, str]:
    """Return a round distance between at most `parts` ticks, and the unit with its name."""
    unit, letters = next(((unit, letters) for unit, letters in _UNITS if most >= unit), _UNITS[-1])
    rounds = (factor * 10**power for power in range(18) for factor in (1, 2, 5))
    return next(step for step in rounds if step * parts >= most), unit, letters
