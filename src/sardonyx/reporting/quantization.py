"""A Quantization as a document, and size against loss as a plot."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from sardonyx.errors import UsageError
from sardonyx.records.expressions import Wording, parse
from sardonyx.records.quantization import (
    FLOAT32,
    Choice,
    FrontPoint,
    GroupPrecision,
    Interval,
    Loss,
    ModuleGroup,
    Quantization,
)
from sardonyx.reporting import formatting
from sardonyx.reporting.document import Document, Notes, Section, Span, Tone, View, table_section
from sardonyx.reporting.module_rows import module_cell, module_rows
from sardonyx.reporting.plots import svg
from sardonyx.reporting.verdict import decoder_line

WIDTH, LEFT, RIGHT, TOP = 960, 72, 40, 116
_PLOT, _FOOT = 300, 54  # heights of the front and of an axis with its title
_NAMES, _CHOSEN, _ROW = 300, 120, 20  # widths of the texts beside the losses of modules, and the height of a row
_WITHIN, _BEYOND, _RESULT = 0, 1, 2  # blue, amber, teal
_LOSSES = ("relative_l2", "cosine", "top1", "metric", "bytes", "time")  # that a budget may limit
_STYLE = """
.sardonyx .guess { fill: var(--paper); stroke: var(--own); stroke-width: 1.5; }
.sardonyx .front { fill: none; stroke: var(--soft); stroke-width: 1.5; }
.sardonyx .limit { stroke: var(--own); stroke-width: 1.5; stroke-dasharray: 5 4; }
.sardonyx .ring { fill: none; stroke: var(--own); stroke-width: 2; }
.sardonyx .named { font-weight: 600; }
.sardonyx .label { paint-order: stroke; stroke: var(--paper); stroke-width: 4; stroke-linejoin: round; }
"""


_Box: TypeAlias = tuple[float, float, float, float]  # left, upper, right and lower end


class _LogScale(Struct, frozen=True):
    """Maps positive numbers to positions on a line; smaller numbers than its first are drawn at its start."""

    marks: tuple[float, ...]
    start: float
    end: float

    @classmethod
    def of(cls, numbers: Sequence[float], start: float, end: float) -> _LogScale:
        """Return a scale with round marks that contains all positive numbers."""
        known = [number for number in numbers if number > 0 and math.isfinite(number)] or [0.01]
        first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
        factors = (1, 2, 5) if last - first <= 2 else (1, 3) if last - first <= 4 else (1,)
        marks = [float(f"{factor}e{power}") for power in range(first, last + 1) for factor in factors]
        low = max((mark for mark in marks if mark <= min(known)), default=marks[0])
        high = min((mark for mark in marks if mark >= max(known) and mark > low), default=10 * marks[-1])
        return cls(tuple(mark for mark in sorted({*marks, high}) if low <= mark <= high), start, end)

    def __call__(self, number: float) -> float:
        """Return the position of a number."""
        low, high = self.marks[0], self.marks[-1]
        share = math.log(min(max(number, low), high) / low) / math.log(high / low) if number > 0 else 0.0
        return self.start + (self.end - self.start) * share


def loss_limit(choice: Choice) -> float | None:
    """Return the largest relative L2 that the budget allows, or None if it does not limit it."""
    return _limit(choice, "relative_l2")


def _limit(choice: Choice, name: str) -> float | None:
    limits: list[float] = []
    for text in choice.budget:
        with contextlib.suppress(UsageError):  # a record may contain anything
            gate = parse(text, _LOSSES, shares=_LOSSES, wording=Wording("the budget", ""))
            if gate.name == name and gate.sign.startswith("<"):
                limits.append(gate.limit.number / (100 if gate.limit.percent else 1))
    return min(limits, default=None)


# The front


def front(choice: Choice, title: str = "Measured models") -> svg.Picture:
    """Return the measured models: loss from left to right, time or bytes upward, the front as a line."""
    limit, bound = loss_limit(choice), _limit(choice, choice.objective)
    bottom = TOP + _PLOT
    ends = [end for point in choice.points for end in _ends(point.scores.relative_l2)]
    x = _LogScale.of([*ends, *([] if limit is None else [limit])], LEFT, WIDTH - RIGHT)
    heights = [_height(point, choice) for point in choice.points]
    timed = [point.time for point in choice.points if point.time is not None and choice.objective == "time"]
    shown = [1.0, *heights, *([] if bound is None else [bound])]
    shown += [end for time in timed for end in (time.low, time.high)]
    marks = svg.ticks(min(shown), max(shown), 6)

    def y(ratio: float) -> float:
        return bottom - _PLOT * (ratio - marks[0]) / (marks[-1] - marks[0])

    body = list(_legend(choice))
    for mark in marks:
        body.append(svg.line(LEFT, y(mark), WIDTH - RIGHT, y(mark), "axis" if mark == 1.0 else "rule"))
        body.append(svg.text(LEFT - 8, y(mark) + 4, f"{mark:g}", "soft", anchor="end"))
    body += _loss_axis(x, TOP, bottom, limit)
    body.append(svg.text(24, 82, f"{choice.objective} relative to the source, which is at 1", "soft"))
    if bound is not None:
        body.append(svg.group(_BEYOND, [svg.line(LEFT, y(bound), WIDTH - RIGHT, y(bound), "limit")]))
    places = [
        (x(point.scores.relative_l2.value), y(height)) for point, height in zip(choice.points, heights, strict=True)
    ]
    joined = [place for point, place in zip(choice.points, places, strict=True) if point.on_front]
    if len(joined) > 1:
        path = "L".join(f"{svg.at(left)} {svg.at(down)}" for left, down in joined)
        body.append(f'<path class="front" d="M{path}"/>')
    for number, (point, (left, down)) in enumerate(zip(choice.points, places, strict=True)):
        span = point.time if choice.objective == "time" else None
        lines = [svg.line(*_across(point.scores.relative_l2, x, down), "own")]
        lines += [] if span is None else [svg.line(left, y(span.low), left, y(span.high), "own")]
        body.append(svg.group(_color(choice, number), [*lines, _mark(choice, number, left, down)]))
    body += _labels(choice, places)
    about = "Loss on the samples to choose with, against what is made small. Lower left is better."
    described = " ".join(f"{_said(point, choice)}." for point in choice.points)
    return svg.Picture("front", WIDTH, bottom + _FOOT, title, about, body, _STYLE, described)


def _ends(interval: Interval) -> tuple[float, ...]:
    """Return the value and the ends of its interval, without zeros, which have no place on a logarithmic scale."""
    return tuple(end for end in (interval.low, interval.value, interval.high) if end > 0)


def _height(point: FrontPoint, choice: Choice) -> float:
    if choice.objective == "bytes":
        return point.bytes_ratio
    if point.time is not None:
        return point.time.ratio
    return 1.0 if point.predicted_time is None else point.predicted_time


def _across(interval: Interval, x: _LogScale, y: float) -> tuple[float, float, float, float]:
    return x(interval.low), y, x(interval.high), y


def _color(choice: Choice, number: int) -> int:
    return _RESULT if number == choice.chosen else _WITHIN if choice.points[number].within else _BEYOND


def _is_predicted(point: FrontPoint, choice: Choice) -> bool:
    return choice.objective == "time" and point.time is None


def _mark(choice: Choice, number: int, x: float, y: float) -> str:
    point = choice.points[number]
    hover = _said(point, choice)
    if _is_predicted(point, choice):
        return svg.circle(x, y, "guess", radius=4, hover=hover)
    if number != choice.chosen:
        return svg.dot(x, y, hover=hover)
    return svg.circle(x, y, "ring", radius=9, hover=hover) + svg.dot(x, y, radius=5.5, hover=hover)


def _said(point: FrontPoint, choice: Choice) -> str:
    loss = point.scores.relative_l2
    parts = [
        f"{point.label} ({', '.join(f'{count} {precision}' for precision, count in point.groups.items())})",
        f"relative L2 {loss.value:.2g} [{loss.low:.2g}, {loss.high:.2g}]",
    ]
    if point.scores.top1 is not None:
        parts.append(f"top-1 {100 * point.scores.top1.value:.1f} %")
    if point.time is not None:
        parts.append(f"time {point.time.ratio:.2f} × [{point.time.low:.2f}, {point.time.high:.2f}]")
    elif point.predicted_time is not None:
        parts.append(f"time {point.predicted_time:.2f} ×, predicted")
    parts.append(f"bytes {point.bytes_ratio:.2f} ×")
    parts.append(f"{'within' if point.within else 'not within'} the budget")
    return ", ".join(parts)


def _legend(choice: Choice) -> Iterator[str]:
    x, y = WIDTH - RIGHT, 78.0
    entries = [(_RESULT, "dot", "chosen"), (_WITHIN, "dot", "within the budget"), (_BEYOND, "dot", "not within it")]
    if any(_is_predicted(point, choice) for point in choice.points):
        entries.append((_WITHIN, "guess", "time predicted"))
    for color, kind, text in reversed(entries):
        x -= svg.breadth(text)
        yield svg.text(x, y + 4, text, "soft")
        yield svg.group(color, [svg.circle(x - 11, y, kind, radius=4.5)])
        x -= 34


def _loss_axis(x: _LogScale, top: float, bottom: float, limit: float | None) -> Iterator[str]:
    for mark in x.marks:
        yield svg.line(x(mark), top, x(mark), bottom, "rule")
        yield svg.text(x(mark), bottom + 18, f"{mark:g}".replace("e-0", "e−"), "soft", anchor="middle")
    yield svg.text((x.start + x.end) / 2, bottom + 38, "relative L2", "soft", anchor="middle")
    if limit is not None:
        yield svg.group(_BEYOND, [svg.line(x(limit), top, x(limit), bottom, "limit")])
        yield svg.text(x(limit), top - 8, f"budget {limit:g}", "soft", anchor="middle")


def _labels(choice: Choice, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Yield the names of the chosen model and of the uniform ones, each where it covers no point and no other name."""
    taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in places]
    for number in sorted(range(len(places)), key=lambda number: number != choice.chosen):
        label, (x, y) = choice.points[number].label, places[number]
        if number != choice.chosen and not label.startswith("all "):
            continue
        wide = svg.breadth(label)
        boxes = [(left, up, left + wide, up + 14) for left, up in _beside(x, y, wide)]
        inside = [box for box in boxes if box[0] >= LEFT and box[2] <= WIDTH and box[3] <= TOP + _PLOT]
        free = next((box for box in inside if not any(_overlap(box, other) for other in taken)), None)
        if free is not None:
            taken.append(free)
            kind = "named" if number == choice.chosen else "soft"
            yield svg.text(free[0] + wide / 2, free[3] - 3, label, f"label {kind}", anchor="middle")


def _beside(x: float, y: float, wide: float) -> Iterator[tuple[float, float]]:
    """Yield places of a label of a point: first at the upper right, where a falling front is not, then around it."""
    yield x + 10, y - 24
    yield x - wide / 2, y - 26
    yield x - wide - 10, y + 10
    yield x - wide / 2, y + 12
    yield x + 14, y - 7
    yield x - wide - 14, y - 7
    yield x - wide / 2, y - 44


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


# The sensitivity


def in_module_order(quantization: Quantization, choice: Choice) -> list[ModuleGroup]:
    """Return the groups of a choice in the order of the modules of the model."""
    places = {module.path: place for place, module in enumerate(quantization.modules)}
    return sorted(choice.groups, key=lambda group: min(places.get(path, len(places)) for path in group.modules))


def sensitivity(quantization: Quantization, choice: Choice, title: str = "Loss of each module alone") -> svg.Picture:
    """Return a row for each group of modules with the loss of the model in which it alone is quantized."""
    limit, groups = loss_limit(choice), in_module_order(quantization, choice)
    numbers = [end for group in groups for option in group.options for end in _ends(option.scores.relative_l2)]
    x = _LogScale.of([*numbers, *([] if limit is None else [limit])], _NAMES, WIDTH - _CHOSEN)
    bottom = TOP + _ROW * len(groups) + 4
    body = [*_precision_legend(choice), *_loss_axis(x, TOP, bottom, limit)]
    for number, group in enumerate(groups):
        body += _group_row(group, choice, x, TOP + _ROW * number + _ROW / 2 + 2)
    about = "The loss of the model in which this module alone is quantized; ringed: the chosen precision."
    described = " ".join(f"{formatting.module(group.name)}: {group.chosen}, {group.reason}." for group in groups)
    return svg.Picture("sensitivity", WIDTH, bottom + _FOOT, title, about, body, _STYLE, described)


def _precision_legend(choice: Choice) -> Iterator[str]:
    x = float(_NAMES)
    for place, precision in enumerate(choice.precisions):
        yield svg.group(place, [svg.circle(x, 78, "dot", radius=4.5)])
        yield svg.text(x + 11, 82, precision, "soft")
        x += svg.breadth(precision) + 34
    yield svg.text(WIDTH - _CHOSEN + 14, 82, "chosen", "soft")


def _group_row(group: ModuleGroup, choice: Choice, x: _LogScale, y: float) -> Iterator[str]:
    yield svg.text(_NAMES - 12, y + 4, formatting.module(group.name, 42), anchor="end")
    yield svg.line(x.start, y, x.end, y, "rule")
    colors = {precision: place for place, precision in enumerate(choice.precisions)}
    for option in group.options:
        loss = option.scores.relative_l2
        marks = [svg.line(*_across(loss, x, y), "own")]
        if option.precision == group.chosen:
            marks.append(svg.circle(x(loss.value), y, "ring", radius=8))
        marks.append(svg.dot(x(loss.value), y, hover=_option_said(group, option)))
        yield svg.group(colors.get(option.precision, len(colors)), marks)
    yield svg.text(WIDTH - _CHOSEN + 14, y + 4, group.chosen, "soft" if group.chosen == FLOAT32 else "named")


def _option_said(group: ModuleGroup, option: GroupPrecision) -> str:
    loss = option.scores.relative_l2
    parts = [
        f"{formatting.module(group.name)} alone in {option.precision}",
        f"relative L2 {loss.value:.2g} [{loss.low:.2g}, {loss.high:.2g}]",
    ]
    if option.milliseconds is not None:
        parts.append(f"saves {option.milliseconds:.3g} ms")
    if option.excluded is not None:
        parts.append(option.excluded)
    return ", ".join(parts)


_MODULES = 8  # rows of modules, without -v
_OUTPUTS = 4
_REASONS = 3
_POINTS = 8
_KEPT = 5
_RISKS = 6


def quantization_document(quantization: Quantization, view: View) -> Document:
    """Return the answer of `quantize`."""
    options = quantization.options
    title = formatting.name(quantization.source.path or "model in memory", 100)
    return Document(
        title=(title, Span(f"  to {options['to']}, target {options['target']}", Tone.FAINT)),
        head=(Notes(_head(quantization)),),
        blocks=_blocks(quantization, view),
        sentence=Span(quantization_sentence(quantization), Tone.STRONG),
    )


def _blocks(quantization: Quantization, view: View) -> tuple[Section, ...]:
    choice, loss = quantization.choice, loss_section(quantization, view)
    rest = (module_section(quantization, view), skipped_section(quantization, view))
    if choice is None:
        risks = (risk_section(quantization, view),) if quantization.risks else ()
        return *risks, loss, *rest
    return point_section(choice, view), _kept(choice, view), loss, *(rest if view.verbose else ())


def quantization_sentence(quantization: Quantization) -> str:
    """Return what was quantized, the bytes, the time and the loss, in one line."""
    before, after, loss = quantization.before.bytes, quantization.after.bytes, quantization.loss
    sizes = formatting.from_to(formatting.size(before), formatting.size(after))
    clauses = [f"{_precisions(quantization)}, {sizes} ({after / before:.2f} ×)"]
    choice = quantization.choice
    if choice is not None and (time := choice.points[choice.chosen].time) is not None:
        clauses.append(f"time {time.ratio:.2f} × [{time.low:.2f}, {time.high:.2f}]")
    clauses.append(f"{_loss(loss)} on {_samples(quantization)}")
    path = quantization.result.path
    if quantization.status != "done":
        clauses[0] = f"nothing was written; nearest: {clauses[0]}"
    return ", ".join(clauses) + ("" if path is None else f" → {formatting.name(path, 100)}")


def _loss(loss: Loss) -> str:
    if not loss.outputs:
        return "no output could be compared"
    if loss.relative_l2 == 0 and loss.top1 is not None:
        return f"top-1 agreement {100 * loss.top1:.4g} %"
    return f"relative L2 {loss.relative_l2:.2g}"


def unwritten(quantization: Quantization) -> str | None:
    """Return why no file was written, or None if it is another reason than the budget."""
    choice = quantization.choice
    if quantization.status == "done" or choice is None:
        return None
    budget = ", ".join(choice.budget)
    if choice.points[choice.chosen].within:
        return f"no measured model within the budget ({budget}) is faster or smaller than the source by a margin"
    return f"no measured model meets the budget ({budget})"


def _precisions(quantization: Quantization) -> str:
    choice = quantization.choice
    if choice is None:
        return f"{formatting.plural(len(quantization.products), 'product')} in {quantization.options['to']}"
    counts = choice.points[choice.chosen].groups
    parts = [f"{count} in {precision}" for precision, count in sorted(counts.items(), key=lambda item: -item[1])]
    return f"{formatting.plural(len(choice.groups), 'module')}: {', '.join(parts)}"


def _samples(quantization: Quantization) -> str:
    loss = quantization.loss
    unseen = quantization.choice is not None and not quantization.data.shared
    kind = "sample" if loss.measured_on == "data" else "generated input"
    several = f"unseen {kind}s" if unseen else f"{kind}s"
    return formatting.plural(loss.samples, f"unseen {kind}" if unseen else kind, several)


def point_section(choice: Choice, view: View) -> Section:
    """Return the measured models, from the least loss to the largest."""
    rows: list[tuple[str, ...]] = []
    compares_directions = any(limit.startswith("cosine") for limit in choice.budget)
    for number in range(len(choice.points)) if view.verbose else _shown(choice):
        point = choice.points[number]
        scores = point.scores
        top1 = "·" if scores.top1 is None else f"{100 * scores.top1.value:.1f} %"
        rows.append(
            (
                ("▸ " if number == choice.chosen else "  ") + _described(point),
                f"{scores.relative_l2.value:.2g}",
                f"{scores.cosine.value:.5f}" if compares_directions else top1,
                f"{point.bytes_ratio:.2f}",
                _point_time(point),
                "yes" if point.within else "no",
            )
        )
    budget = ", ".join(choice.budget) + (" (the default)" if choice.is_default else "")
    headings = ("  model", "rel. L2", "cosine" if compares_directions else "top-1", "bytes", "time", "within")
    predicted = any(point.time is None and point.predicted_time is not None for point in choice.points)
    below = "≈: predicted from the times of single shapes" if predicted else ""
    return table_section(f"Least {choice.objective} with {budget}", headings, rows, below=below)


def _shown(choice: Choice) -> list[int]:
    """Return the chosen model, those of a single precision, and those of the front that are closest to the chosen."""
    points = choice.points
    wanted = [choice.chosen, *(number for number, point in enumerate(points) if point.label.startswith("all "))]
    front = [number for number, point in enumerate(points) if point.on_front]
    wanted += sorted(front, key=lambda number: abs(number - choice.chosen))
    return sorted(list(dict.fromkeys(wanted))[:_POINTS])


def _described(point: FrontPoint) -> str:
    """Return a model with how many of its modules have which precision; those in float32 are left out."""
    counts = {precision: count for precision, count in point.groups.items() if precision != FLOAT32}
    if point.label.startswith("all "):
        return f"{point.label} ({sum(counts.values())} of {sum(point.groups.values())})"
    parts = [f"{count} {precision}" for precision, count in sorted(counts.items(), key=lambda each: -each[1])]
    return f"{point.label}: {', '.join(parts)}"


def _point_time(point: FrontPoint) -> str:
    if point.time is not None:
        return f"{point.time.ratio:.2f}"
    return "·" if point.predicted_time is None else f"≈ {point.predicted_time:.2f}"


def _kept(choice: Choice, view: View) -> Section:
    shown = [group for group in choice.groups if view.verbose or group.chosen == FLOAT32]
    rows = ((formatting.name(group.name), group.chosen, group.reason, formatting.size(group.bytes)) for group in shown)
    title = "Precision of modules" if view.verbose else "Kept in float32"
    headings = ("module", "precision", "why", "bytes")
    return table_section(title, headings, rows, text_columns=3, most=None if view.verbose else _KEPT)


def _head(quantization: Quantization) -> list[str]:
    check = quantization.check
    raised = [
        f"opset {old} → {new}" for domain, (old, new) in quantization.opset_changes.items() if not domain and old != new
    ]
    lines = [
        f"{formatting.plural(check.products, 'product')} compared with a float32 simulation in "
        f"{formatting.plural(check.trials, 'trial')}: largest difference {check.worst:.2g} of what rounding explains",
        *raised,
    ]
    if quantization.decoder is not None:
        lines.append(decoder_line(quantization.decoder))
    if quantization.data.weak is not None:
        lines.append(f"weak claim: {quantization.data.weak}")
    return lines + [f"note: {formatting.one_line(note)}" for note in quantization.notes]


def risk_section(quantization: Quantization, view: View) -> Section:
    """Return the numbers that can leave the range of float16, by module; those that stay in float32 first."""
    risks = sorted(quantization.risks, key=lambda risk: not risk.kept)
    rows: list[tuple[str, ...]] = [
        (formatting.module(risk.module), "float32" if risk.kept else "float16", formatting.one_line(risk.reason))
        for risk in risks
    ]
    kept = sum(risk.kept for risk in risks)
    title = f"Can leave the range of float16: {formatting.plural(len(risks), 'node')}, {kept} of them in float32"
    headings = ("module", "stays in", "why")
    return table_section(title, headings, rows, text_columns=3, most=None if view.verbose else _RISKS)


def loss_section(quantization: Quantization, view: View) -> Section:
    """Return the loss of each output, with the intervals of the judged numbers."""
    loss = quantization.loss
    rows = [
        (
            formatting.name(output.name),
            f"{output.relative_l2:.2g}",
            f"{output.worst_relative_l2:.2g}",
            f"{output.cosine:.5f}",
            "·" if output.top1 is None else f"{100 * output.top1:.1f} %",
            formatting.count(output.rows) if output.rows else "·",
        )
        for output in loss.outputs
    ]
    headings = ("output", "relative L2", "worst sample", "cosine", "top-1 agreement", "rows")
    return table_section(
        f"Loss on {_samples(quantization)}, in {formatting.one_line(loss.runtime)}",
        headings,
        rows,
        below=_intervals(quantization) if len(rows) <= _OUTPUTS or view.verbose else "",
        most=None if view.verbose else _OUTPUTS,
    )


def _intervals(quantization: Quantization) -> str:
    """Return the 95 % intervals of the judged numbers, and the means of the metric."""
    scores, metric = quantization.loss.scores, quantization.loss.metric
    if scores is None:
        return ""
    parts = [f"relative L2 [{scores.relative_l2.low:.2g}, {scores.relative_l2.high:.2g}]"]
    if scores.top1 is not None:
        parts.append(f"top-1 [{100 * scores.top1.low:.1f} %, {100 * scores.top1.high:.1f} %]")
    if metric is not None and scores.metric is not None:
        drop = f"drop [{scores.metric.low:.3g}, {scores.metric.high:.3g}]"
        parts.append(f"{formatting.name(metric.function)} {metric.source:.4g} → {metric.result:.4g}, {drop}")
    return "95 %: " + ", ".join(parts)


def module_section(quantization: Quantization, view: View) -> Section:
    """Return the bytes of each module before and after."""
    changed = [(module.path, module.tag, (module.bytes_before, module.bytes_after)) for module in quantization.modules]
    shown = view if view.verbose else View(depth=2)
    rows = (
        (module_cell(row), *map(formatting.size, row.total), f"{row.total[1] / row.total[0]:.2f} ×")
        for row in module_rows(changed, shown)
        if row.total[0]
    )
    most = None if view.verbose else _MODULES
    return table_section("Bytes of constants", ("module", "before", "after", ""), rows, most=most)


def skipped_section(quantization: Quantization, view: View) -> Section:
    """Return the reasons why products were not quantized."""
    rows = (
        (formatting.one_line(group.reason), ", ".join(map(formatting.name, group.examples[:1])), str(group.count))
        for group in quantization.skipped
    )
    headings = ("reason", "such as", "products")
    return table_section("Not quantized", headings, rows, text_columns=2, most=None if view.verbose else _REASONS)
