"""The memory timeline as a picture: live bytes while each operation runs, one panel a program, all on one scale.

A self-contained SVG without scripts, fit for a page, a README or a browser of its own. Panels and not lines on top of
each other: programs have different numbers of steps, and a step of one stands over no particular step of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape

from sardonyx.analysis_record import Timeline
from sardonyx.report import words

WIDTH, LEFT, RIGHT = 960, 84, 24
TOP, HEADER, PLOT, FOOT = 76, 30, 132, 38  # the title; then for each panel its header, its plot and its axis
_SPAN = WIDTH - LEFT - RIGHT
_COLORS = (("#1d4ed8", "#7aa2ff"), ("#b45309", "#f5a742"), ("#0f766e", "#4fd1c0"), ("#9d174d", "#f783b5"))
_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))

_STYLE = """
.timeline { color-scheme: light dark; font: 13px system-ui, sans-serif; --paper: #fff; --ink: #1b1f24; --soft: #59636e;
  --rule: #d9dee3; }
@media (prefers-color-scheme: dark) {
  .timeline { --paper: #0f1318; --ink: #e6e9ec; --soft: #9aa4ae; --rule: #2c343c; }
}
.timeline .paper { fill: var(--paper); }
.timeline text { fill: var(--ink); font-variant-numeric: tabular-nums; }
.timeline .title { font-size: 17px; font-weight: 600; }
.timeline .name { font-weight: 600; fill: var(--own); }
.timeline .soft { fill: var(--soft); font-size: 12px; }
.timeline .rule { stroke: var(--rule); stroke-width: 1; }
.timeline .axis { stroke: var(--soft); stroke-width: 1; }
.timeline .live { fill: var(--own); fill-opacity: 0.18; stroke: var(--own); stroke-width: 1.25; }
.timeline .level { stroke: var(--own); stroke-width: 1; stroke-dasharray: 2 4; }
.timeline .peak { fill: var(--own); stroke: var(--paper); stroke-width: 2; }
"""


def timeline_svg(timelines: Mapping[str, Timeline], title: str) -> str:
    """The picture, as the text of an SVG file.

    Args:
        timelines: Label to timeline, drawn from the top in this order.
        title: What was analysed.
    """
    height = TOP + len(timelines) * (HEADER + PLOT + FOOT) + 26
    most = max((bytes_ for each in timelines.values() for _, bytes_ in each.points), default=0)
    step, unit, letters = _tick(most, 4)
    scale = max(step * -(-most // step), step)
    body = [line for index, (label, each) in enumerate(timelines.items())
            for line in _panel(index, label, each, scale, (step, unit, letters))]  # fmt: skip
    told = " ".join(f"{_text(label)}: {_peak_in_words(each)}." for label, each in timelines.items())
    return "\n".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" role="img" viewBox="0 0 {WIDTH} {height}"'
        f' width="{WIDTH}" height="{height}">',
        f"<title>Memory timeline: {_text(title)}</title>",
        f"<desc>Bytes of activations that are alive while each operation runs. {told}</desc>",
        f"<style>{_STYLE}{_own_colors(len(timelines))}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="24" y="34">{_text(title)}</text>',
        '<text class="soft" x="24" y="56">Activations alive while each operation runs; weights and inputs apart</text>',
        *body,
        f'<text class="soft" x="{LEFT + _SPAN / 2:g}" y="{height - 14}" text-anchor="middle">'
        "operations in the order they run</text>",
        "</svg>\n",
    ))  # fmt: skip


def _panel(index: int, label: str, each: Timeline, scale: int, ticks: tuple[int, int, str]) -> Iterator[str]:
    top = TOP + index * (HEADER + PLOT + FOOT) + HEADER
    base = top + PLOT
    yield f'<g class="own{index % len(_COLORS)}">'
    yield f'<text class="name" x="{LEFT}" y="{top - 11}">{_text(label)}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{top - 11}" text-anchor="end">{_peak_in_words(each)}</text>'
    step, unit, letters = ticks
    for bytes_ in range(0, scale + 1, step):
        y = base - PLOT * bytes_ / scale
        yield f'<line class="{"rule" if bytes_ else "axis"}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:g}" y2="{y:g}"/>'
        amount = f"{bytes_ / unit:g} {letters}" if bytes_ else "0"
        yield f'<text class="soft" x="{LEFT - 8}" y="{y + 4:g}" text-anchor="end">{amount}</text>'
    if each.points:
        yield from _drawn(each, base, scale)
    yield "</g>"


def _drawn(each: Timeline, base: int, scale: int) -> Iterator[str]:
    """The line, its ticks, and its peak."""
    per_step = _SPAN / each.steps
    every = _tick(each.steps, 10)[0]
    for number in range(0, each.steps + 1, every):
        x = LEFT + number * per_step
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>'
        yield f'<text class="soft" x="{x:.1f}" y="{base + 18}" text-anchor="middle">{words.count(number)}</text>'
    yield f'<path class="live" d="{_outline(each, base, scale)}"/>'
    x, y = LEFT + (each.peak_step + 0.5) * per_step, base - PLOT * _most(each) / scale
    yield f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    yield f'<circle class="peak" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{_peak_in_words(each)}</title></circle>'


def _outline(each: Timeline, base: int, scale: int) -> str:
    """Level from one step to the next; a point that was thinned stands for all from it to the one that follows."""
    parts, last = [f"M{LEFT} {base}"], -1
    for index, (step, bytes_) in enumerate(each.points):
        if bytes_ != last:
            x = LEFT + (step * _SPAN / each.steps if index else 0)
            parts.append(f"H{x:.1f}V{base - PLOT * bytes_ / scale:.1f}")
        last = bytes_
    return "".join((*parts, f"H{WIDTH - RIGHT}V{base}Z"))


def _peak_in_words(each: Timeline) -> str:
    if not each.points:
        return "no operations"
    where = f" in {words.name(each.peak_module, 50)}" if each.peak_module else ""
    what = words.name(each.peak_operation, 30)
    return escape(f"peak {words.size(_most(each))} at {what}{where}, step {each.peak_step:,} of {each.steps:,}")


def _most(each: Timeline) -> int:
    return max(bytes_ for _, bytes_ in each.points)


def _tick(most: int, parts: int) -> tuple[int, int, str]:
    """A round distance between ticks, so that there are at most so many; and the unit to tell it in."""
    unit, letters = next(((unit, letters) for unit, letters in _UNITS if most >= unit), _UNITS[-1])
    rounds = (factor * 10**power for power in range(18) for factor in (1, 2, 5))
    return next(step for step in rounds if step * parts >= most), unit, letters


def _own_colors(panels: int) -> str:
    used = list(enumerate(_COLORS[: min(panels, len(_COLORS))]))
    light = "".join(f".timeline .own{index} {{ --own: {color}; }}\n" for index, (color, _) in used)
    dark = "".join(f".timeline .own{index} {{ --own: {color}; }}\n" for index, (_, color) in used)
    return f"{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


def _text(name: str) -> str:
    return escape(words.name(name, 90))
