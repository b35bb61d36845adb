"""A Quantization as a document, and size against loss as a plot."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence

from sardonyx.errors import UsageError
from sardonyx.records.bench import Comparison
from sardonyx.records.expressions import Wording, parse
from sardonyx.records.quantization import FLOAT32, Choice, FrontPoint, Interval, ModuleGroup, Quantization
from sardonyx.reporting import formatting as fmt
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


class _LogScale(svg.Scale, frozen=True):
    """Maps positive numbers to positions on a line; smaller numbers than its first are drawn at its start."""

    @classmethod
    def of_losses(cls, losses: Iterable[Interval], limit: float | None, start: float, end: float) -> _LogScale:
        """Return a scale with round marks that contains all losses with their intervals, and the limit."""
        numbers = [end for loss in losses for end in (loss.low, loss.value, loss.high)]
        known = [number for number in (*numbers, limit or 0.0) if number > 0 and math.isfinite(number)] or [0.01]
        first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
        factors = (1, 2, 5) if last - first <= 2 else (1, 3) if last - first <= 4 else (1,)
        marks = [float(f"{factor}e{power}") for power in range(first, last + 1) for factor in factors]
        low = max((mark for mark in marks if mark <= min(known)), default=marks[0])
        high = min((mark for mark in marks if mark >= max(known) and mark > low), default=10 * marks[-1])
        return cls([mark for mark in sorted({*marks, high}) if low <= mark <= high], start, end)

    def __call__(self, number: float) -> float:
        """Return the position of a number."""
        low, high = self.marks[0], self.marks[-1]
        share = math.log(min(max(number, low), high) / low) / math.log(high / low) if number > 0 else 0.0
        return self.start + (self.end - self.start) * share

    def interval(self, loss: Interval, y: float) -> str:
        return svg.line(self(loss.low), y, self(loss.high), y, "own")

    def axis(self, top: float, bottom: float, limit: float | None) -> Iterator[str]:
        """Yield the marks, what they mean, and the largest loss that the budget allows."""
        yield from self.across(top, bottom, write=lambda mark: f"{mark:g}".replace("e-0", "e−"))
        yield svg.text((self.start + self.end) / 2, bottom + 38, "relative L2", "soft", anchor="middle")
        if limit is not None:
            yield svg.group(_BEYOND, [svg.line(self(limit), top, self(limit), bottom, "limit")])
            yield svg.text(self(limit), top - 8, f"budget {limit:g}", "soft", anchor="middle")


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
    bottom, by_time = TOP + _PLOT, choice.objective == "time"
    x = _LogScale.of_losses((point.scores.relative_l2 for point in choice.points), limit, LEFT, WIDTH - RIGHT)
    heights: list[float] = []
    for point in choice.points:
        guess = 1.0 if point.predicted_time is None else point.predicted_time
        time = guess if point.time is None else point.time.ratio
        heights.append(point.bytes_ratio if choice.objective == "bytes" else time)
    times = [point.time for point in choice.points if point.time is not None and by_time]
    ends = [end for time in times for end in (time.low, time.high)]
    y = svg.Scale.of([1.0, *heights, *ends, *([] if bound is None else [bound])], bottom, TOP, 6)
    body = [*_legend(choice), *y.upward(LEFT, WIDTH - RIGHT, 1.0), *x.axis(TOP, bottom, limit)]
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
        hover, color = _said(point), _WITHIN if point.within else _BEYOND
        marks = [x.interval(point.scores.relative_l2, down)]
        if by_time and point.time is not None:
            marks.append(svg.line(left, y(point.time.low), left, y(point.time.high), "own"))
        if by_time and point.time is None:
            marks.append(svg.circle(left, down, "guess", radius=4, hover=hover))
        elif number == choice.chosen:
            ring = svg.circle(left, down, "ring", radius=9, hover=hover)
            marks.append(ring + svg.dot(left, down, radius=5.5, hover=hover))
        else:
            marks.append(svg.dot(left, down, hover=hover))
        body.append(svg.group(_RESULT if number == choice.chosen else color, marks))
    body += _labels(choice, places)
    about = "Loss on the samples to choose with, against what is made small. Lower left is better."
    described = " ".join(f"{_said(point)}." for point in choice.points)
    return svg.Picture("front", WIDTH, bottom + _FOOT, title, about, body, _STYLE, described)


def _said(point: FrontPoint) -> str:
    parts = [
        f"{point.label} ({', '.join(f'{count} {precision}' for precision, count in point.groups.items())})",
        _loss_said(point.scores.relative_l2),
    ]
    if point.scores.top1 is not None:
        parts.append(f"top-1 {100 * point.scores.top1.value:.1f} %")
    if point.time is not None:
        parts.append(f"time {_ratio(point.time)}")
    elif point.predicted_time is not None:
        parts.append(f"time {point.predicted_time:.2f} ×, predicted")
    parts.append(f"bytes {point.bytes_ratio:.2f} ×")
    parts.append(f"{'within' if point.within else 'not within'} the budget")
    return ", ".join(parts)


def _loss_said(loss: Interval) -> str:
    return f"relative L2 {loss.value:.2g} [{loss.low:.2g}, {loss.high:.2g}]"


def _ratio(time: Comparison) -> str:
    return f"{time.ratio:.2f} × [{time.low:.2f}, {time.high:.2f}]"


def _legend(choice: Choice) -> Iterator[str]:
    x, y = WIDTH - RIGHT, 78.0
    entries = [(_RESULT, "dot", "chosen"), (_WITHIN, "dot", "within the budget"), (_BEYOND, "dot", "not within it")]
    if choice.objective == "time" and any(point.time is None for point in choice.points):
        entries.append((_WITHIN, "guess", "time predicted"))
    for color, kind, text in reversed(entries):
        x -= svg.breadth(text)
        yield svg.text(x, y + 4, text, "soft")
        yield svg.group(color, [svg.circle(x - 11, y, kind, radius=4.5)])
        x -= 34


def _labels(choice: Choice, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Yield the names of the chosen model and of the uniform ones, each where it covers no point and no other name."""
    taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in places]  # left, upper, right and lower end
    for number in sorted(range(len(places)), key=lambda number: number != choice.chosen):
        label, (x, y) = choice.points[number].label, places[number]
        if number != choice.chosen and not label.startswith("all "):
            continue
        wide = svg.breadth(label)
        corners = (  # first at the upper right, where a falling front is not, then around the point
            *((x + 10, y - 24), (x - wide / 2, y - 26), (x - wide - 10, y + 10), (x - wide / 2, y + 12)),
            *((x + 14, y - 7), (x - wide - 14, y - 7), (x - wide / 2, y - 44)),
        )
        for left, up in corners:
            right, down = left + wide, up + 14
            inside = left >= LEFT and right <= WIDTH and down <= TOP + _PLOT
            if inside and not any(left < b[2] and b[0] < right and up < b[3] and b[1] < down for b in taken):
                taken.append((left, up, right, down))
                kind = "named" if number == choice.chosen else "soft"
                yield svg.text(left + wide / 2, down - 3, label, f"label {kind}", anchor="middle")
                break


# The sensitivity


def in_module_order(quantization: Quantization, choice: Choice) -> list[ModuleGroup]:
    """Return the groups of a choice in the order of the modules of the model."""
    places = {module.path: place for place, module in enumerate(quantization.modules)}
    return sorted(choice.groups, key=lambda group: min(places.get(path, len(places)) for path in group.modules))


def sensitivity(quantization: Quantization, choice: Choice, title: str = "Loss of each module alone") -> svg.Picture:
    """Return a row for each group of modules with the loss of the model in which it alone is quantized."""
    limit, groups = loss_limit(choice), in_module_order(quantization, choice)
    losses = (option.scores.relative_l2 for group in groups for option in group.options)
    x = _LogScale.of_losses(losses, limit, _NAMES, WIDTH - _CHOSEN)
    bottom = TOP + _ROW * len(groups) + 4
    body, left = list[str](), float(_NAMES)
    for place, precision in enumerate(choice.precisions):
        body.append(svg.group(place, [svg.circle(left, 78, "dot", radius=4.5)]))
        body.append(svg.text(left + 11, 82, precision, "soft"))
        left += svg.breadth(precision) + 34
    body.append(svg.text(WIDTH - _CHOSEN + 14, 82, "chosen", "soft"))
    body += x.axis(TOP, bottom, limit)
    for number, group in enumerate(groups):
        y, name = TOP + _ROW * number + _ROW / 2 + 2, fmt.module(group.name, 42)
        body += [svg.text(_NAMES - 12, y + 4, name, anchor="end"), svg.line(x.start, y, x.end, y, "rule")]
        for option in group.options:
            loss = option.scores.relative_l2
            said = [f"{fmt.module(group.name)} alone in {option.precision}", _loss_said(loss)]
            said += [] if option.milliseconds is None else [f"saves {option.milliseconds:.3g} ms"]
            said += [] if option.excluded is None else [option.excluded]
            marks = [x.interval(loss, y)]
            marks += [svg.circle(x(loss.value), y, "ring", radius=8)] if option.precision == group.chosen else []
            marks.append(svg.dot(x(loss.value), y, hover=", ".join(said)))
            body.append(svg.group((*choice.precisions, option.precision).index(option.precision), marks))
        kind = "soft" if group.chosen == FLOAT32 else "named"
        body.append(svg.text(WIDTH - _CHOSEN + 14, y + 4, group.chosen, kind))
    about = "The loss of the model in which this module alone is quantized; ringed: the chosen precision."
    described = " ".join(f"{fmt.module(group.name)}: {group.chosen}, {group.reason}." for group in groups)
    return svg.Picture("sensitivity", WIDTH, bottom + _FOOT, title, about, body, _STYLE, described)


_MODULES_SHOWN = 8  # rows of modules, without -v
_OUTPUTS_SHOWN = 4
_REASONS_SHOWN = 3
_POINTS_SHOWN = 8
_KEPT_SHOWN = 5
_RISKS_SHOWN = 6


def quantization_document(quantization: Quantization, view: View) -> Document:
    """Return the answer of `quantize`."""
    options, choice, check = quantization.options, quantization.choice, quantization.check
    lines = [
        f"{fmt.plural(check.products, 'product')} compared with a float32 simulation in "
        f"{fmt.plural(check.trials, 'trial')}: largest difference {check.worst:.2g} of what rounding explains"
    ]
    old, new = quantization.opset_changes.get("", (0, 0))
    if old != new:
        lines.append(f"opset {old} → {new}")
    if quantization.decoder is not None:
        lines.append(decoder_line(quantization.decoder))
    if quantization.data.weak is not None:
        lines.append(f"weak claim: {quantization.data.weak}")
    lines += [f"note: {fmt.one_line(note)}" for note in quantization.notes]
    loss, modules = loss_section(quantization, view), module_section(quantization, view)
    blocks = (loss, modules, skipped_section(quantization, view))
    if choice is not None:
        blocks = (point_section(choice, view), _kept(choice, view), *(blocks if view.verbose else [loss]))
    elif quantization.risks:
        blocks = (risk_section(quantization, view), *blocks)
    title = fmt.name(quantization.source.path or "model in memory", 100)
    return Document(
        title=(title, Span(f"  to {options['to']}, target {options['target']}", Tone.FAINT)),
        head=(Notes(lines),),
        blocks=blocks,
        sentence=Span(quantization_sentence(quantization), Tone.STRONG),
    )


def quantization_sentence(quantization: Quantization) -> str:
    """Return what was quantized, the bytes, the time and the loss, in one line."""
    before, after, loss = quantization.before.bytes, quantization.after.bytes, quantization.loss
    choice, path = quantization.choice, quantization.result.path
    made = f"{fmt.plural(len(quantization.products), 'product')} in {quantization.options['to']}"
    if choice is not None:
        counts = sorted(choice.points[choice.chosen].groups.items(), key=lambda item: -item[1])
        parts = [f"{count} in {precision}" for precision, count in counts]
        made = f"{fmt.plural(len(choice.groups), 'module')}: {', '.join(parts)}"
    if quantization.status != "done":
        made = f"nothing was written; nearest: {made}"
    clauses = [f"{made}, {fmt.sizes(before, after)} ({after / before:.2f} ×)"]
    if choice is not None and (time := choice.points[choice.chosen].time) is not None:
        clauses.append(f"time {_ratio(time)}")
    lost = f"relative L2 {loss.relative_l2:.2g}" if loss.outputs else "no output could be compared"
    if loss.outputs and loss.relative_l2 == 0 and loss.top1 is not None:
        lost = f"top-1 agreement {100 * loss.top1:.4g} %"
    clauses.append(f"{lost} on {_samples(quantization)}")
    return ", ".join(clauses) + ("" if path is None else f" → {fmt.name(path, 100)}")


def unwritten(quantization: Quantization) -> str | None:
    """Return why no file was written, or None if it is another reason than the budget."""
    choice = quantization.choice
    if quantization.status == "done" or choice is None:
        return None
    budget = ", ".join(choice.budget)
    if choice.points[choice.chosen].within:
        return f"no measured model within the budget ({budget}) is faster or smaller than the source by a margin"
    return f"no measured model meets the budget ({budget})"


def _samples(quantization: Quantization) -> str:
    loss = quantization.loss
    unseen = quantization.choice is not None and not quantization.data.shared
    kind = "sample" if loss.measured_on == "data" else "generated input"
    several = f"unseen {kind}s" if unseen else f"{kind}s"
    return fmt.plural(loss.samples, f"unseen {kind}" if unseen else kind, several)


def point_section(choice: Choice, view: View) -> Section:
    """Return the measured models, from the least loss to the largest."""
    points, chosen = choice.points, choice.chosen
    shown = range(len(points))
    if not view.verbose:  # the chosen model, those of a single precision, and those of the front closest to the chosen
        uniform = [number for number, point in enumerate(points) if point.label.startswith("all ")]
        front = [number for number, point in enumerate(points) if point.on_front]
        wanted = dict.fromkeys([chosen, *uniform, *sorted(front, key=lambda number: abs(number - chosen))])
        shown = sorted(list(wanted)[:_POINTS_SHOWN])
    rows: list[tuple[str, ...]] = []
    compares_directions = any(limit.startswith("cosine") for limit in choice.budget)
    for number in shown:
        point, scores = points[number], points[number].scores
        angle = "·" if scores.top1 is None else f"{100 * scores.top1.value:.1f} %"
        if compares_directions:
            angle = f"{scores.cosine.value:.5f}"
        time = "·" if point.predicted_time is None else f"≈ {point.predicted_time:.2f}"
        if point.time is not None:
            time = f"{point.time.ratio:.2f}"
        label = ("▸ " if number == chosen else "  ") + _described(point)
        numbers = (f"{scores.relative_l2.value:.2g}", angle, f"{point.bytes_ratio:.2f}", time)
        rows.append((label, *numbers, "yes" if point.within else "no"))
    budget = ", ".join(choice.budget) + (" (the default)" if choice.is_default else "")
    headings = ("  model", "rel. L2", "cosine" if compares_directions else "top-1", "bytes", "time", "within")
    predicted = any(point.time is None and point.predicted_time is not None for point in points)
    below = "≈: predicted from the times of single shapes" if predicted else ""
    return table_section(f"Least {choice.objective} with {budget}", headings, rows, below=below)


def _described(point: FrontPoint) -> str:
    """Return a model with how many of its modules have which precision; those in float32 are left out."""
    counts = {precision: count for precision, count in point.groups.items() if precision != FLOAT32}
    if point.label.startswith("all "):
        return f"{point.label} ({sum(counts.values())} of {sum(point.groups.values())})"
    parts = [f"{count} {precision}" for precision, count in sorted(counts.items(), key=lambda each: -each[1])]
    return f"{point.label}: {', '.join(parts)}"


def _kept(choice: Choice, view: View) -> Section:
    shown = [group for group in choice.groups if view.verbose or group.chosen == FLOAT32]
    rows = ((fmt.name(group.name), group.chosen, group.reason, fmt.size(group.bytes)) for group in shown)
    title, most = ("Precision of modules", None) if view.verbose else ("Kept in float32", _KEPT_SHOWN)
    return table_section(title, ("module", "precision", "why", "bytes"), rows, text_columns=3, most=most)


def risk_section(quantization: Quantization, view: View) -> Section:
    """Return the numbers that can leave the range of float16, by module; those that stay in float32 first."""
    risks = sorted(quantization.risks, key=lambda risk: not risk.kept)
    rows = ((fmt.module(r.module), "float32" if r.kept else "float16", fmt.one_line(r.reason)) for r in risks)
    nodes, kept = fmt.plural(len(risks), "node"), sum(risk.kept for risk in risks)
    title, most = (
        f"Can leave the range of float16: {nodes}, {kept} of them in float32",
        None if view.verbose else _RISKS_SHOWN,
    )
    return table_section(title, ("module", "stays in", "why"), rows, text_columns=3, most=most)


def loss_section(quantization: Quantization, view: View) -> Section:
    """Return the loss of each output, with the intervals of the judged numbers."""
    loss = quantization.loss
    rows = [
        (
            *(fmt.name(output.name), f"{output.relative_l2:.2g}", f"{output.worst_relative_l2:.2g}"),
            *(f"{output.cosine:.5f}", "·" if output.top1 is None else f"{100 * output.top1:.1f} %", output.rows or "·"),
        )
        for output in loss.outputs
    ]
    scores, metric, judged = loss.scores, loss.metric, ""
    if scores is not None and (len(rows) <= _OUTPUTS_SHOWN or view.verbose):
        parts = [f"relative L2 [{scores.relative_l2.low:.2g}, {scores.relative_l2.high:.2g}]"]
        if scores.top1 is not None:
            parts.append(f"top-1 [{100 * scores.top1.low:.1f} %, {100 * scores.top1.high:.1f} %]")
        if metric is not None and scores.metric is not None:
            drop = f"drop [{scores.metric.low:.3g}, {scores.metric.high:.3g}]"
            parts.append(f"{fmt.name(metric.function)} {metric.source:.4g} → {metric.result:.4g}, {drop}")
        judged = "95 %: " + ", ".join(parts)
    title = f"Loss on {_samples(quantization)}, in {fmt.one_line(loss.runtime)}"
    headings = ("output", "relative L2", "worst sample", "cosine", "top-1 agreement", "rows")
    return table_section(title, headings, rows, below=judged, most=None if view.verbose else _OUTPUTS_SHOWN)


def module_section(quantization: Quantization, view: View) -> Section:
    """Return the bytes of each module before and after."""
    changed = ((module.path, module.tag, (module.bytes_before, module.bytes_after)) for module in quantization.modules)
    rows = (
        (module_cell(row), *map(fmt.size, row.total), f"{row.total[1] / row.total[0]:.2f} ×")
        for row in module_rows(changed, view if view.verbose else View(depth=2))
        if row.total[0]
    )
    most = None if view.verbose else _MODULES_SHOWN
    return table_section("Bytes of constants", ("module", "before", "after", ""), rows, most=most)


def skipped_section(quantization: Quantization, view: View) -> Section:
    """Return the reasons why products were not quantized."""
    rows = (
        (fmt.one_line(s.reason), ", ".join(map(fmt.name, s.examples[:1])), str(s.count)) for s in quantization.skipped
    )
    headings, most = ("reason", "such as", "products"), None if view.verbose else _REASONS_SHOWN
    return table_section("Not quantized", headings, rows, text_columns=2, most=most)
