"""A Quantization as a document: the loss of each output, the bytes of each module, and what was not quantized."""

from __future__ import annotations

from sardonyx.records import module_tree
from sardonyx.records.bench import Comparison
from sardonyx.records.quantization import FLOAT32, Choice, FrontPoint, Loss, Quantization, Scores
from sardonyx.reporting import formatting
from sardonyx.reporting.document import Cell, Document, Notes, Section, Span, Text, Tone, View, table_section
from sardonyx.reporting.module_rows import module_cell, module_rows
from sardonyx.reporting.verdict import decoder_line

_MODULES = 8  # rows of modules, without -v
_OUTPUTS = 4
_REASONS = 3
_POINTS = 8
_KEPT = 5


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
    if quantization.choice is None:
        return loss_section(quantization, view), module_section(quantization, view), skipped_section(quantization, view)
    chosen = (
        point_section(quantization.choice, view),
        _kept(quantization.choice, view),
        loss_section(quantization, view),
    )
    return (
        (*chosen, module_section(quantization, view), skipped_section(quantization, view)) if view.verbose else chosen
    )


def quantization_sentence(quantization: Quantization) -> str:
    """Return what was quantized, the bytes, the time and the loss, in one line."""
    before, after, loss = quantization.before.bytes, quantization.after.bytes, quantization.loss
    sizes = formatting.from_to(formatting.size(before), formatting.size(after))
    clauses = [f"{_precisions(quantization)}, {sizes} ({after / before:.2f} ×)"]
    if (time := _time(quantization)) is not None:
        clauses.append(f"time {_ratio(time)}")
    clauses.append(f"{_loss(loss)} on {_samples(quantization)}")
    path = quantization.result.path
    if quantization.status != "done":
        clauses[0] = f"nothing was written; nearest: {clauses[0]}"
    return ", ".join(clauses) + ("" if path is None else f" → {formatting.name(path, 100)}")


def _loss(loss: Loss) -> str:
    """Return the loss in a few words; that of integers alone is how many are equal."""
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


def _time(quantization: Quantization) -> Comparison | None:
    choice = quantization.choice
    return None if choice is None else choice.points[choice.chosen].time


def _ratio(time: Comparison) -> str:
    return f"{time.ratio:.2f} × [{time.low:.2f}, {time.high:.2f}]"


def _samples(quantization: Quantization) -> str:
    loss = quantization.loss
    unseen = quantization.choice is not None and not quantization.data.shared
    kind = "sample" if loss.measured_on == "data" else "generated input"
    several = f"unseen {kind}s" if unseen else f"{kind}s"
    return formatting.plural(loss.samples, f"unseen {kind}" if unseen else kind, several)


def point_section(choice: Choice, view: View) -> Section:
    """Return the measured models, from the least loss to the largest."""
    rows: list[tuple[Text | Cell, ...]] = []
    compares_directions = any(limit.startswith("cosine") for limit in choice.budget)
    for number in range(len(choice.points)) if view.verbose else _shown(choice):
        point = choice.points[number]
        scores = point.scores
        rows.append(
            (
                ("▸ " if number == choice.chosen else "  ") + _described(point),
                f"{scores.relative_l2.value:.2g}",
                f"{scores.cosine.value:.5f}" if compares_directions else _top1(scores),
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


def _top1(scores: Scores) -> str:
    return "·" if scores.top1 is None else f"{100 * scores.top1.value:.1f} %"


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
    """Return the modules that stay in float32, and those of other precisions if all are shown."""
    shown = [group for group in choice.groups if view.verbose or group.chosen == FLOAT32]
    rows: list[tuple[Text | Cell, ...]] = [
        (formatting.name(group.name), group.chosen, group.reason, formatting.size(group.bytes)) for group in shown
    ]
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


def loss_section(quantization: Quantization, view: View) -> Section:
    """Return the loss of each output, with the intervals of the judged numbers."""
    loss = quantization.loss
    rows: list[tuple[Text | Cell, ...]] = [
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
    rows: list[tuple[Text | Cell, ...]] = [
        (module_cell(row), *map(formatting.size, row.total[:2]), _factor(row))
        for row in module_rows(changed, shown)
        if row.total[0]
    ]
    return table_section(
        "Bytes of constants", ("module", "before", "after", ""), rows, most=None if view.verbose else _MODULES
    )


def _factor(row: module_tree.Row) -> str:
    before, after = row.total[:2]
    return f"{after / before:.2f} ×"


def skipped_section(quantization: Quantization, view: View) -> Section:
    """Return the reasons why products were not quantized."""
    rows: list[tuple[Text | Cell, ...]] = [
        (formatting.one_line(group.reason), ", ".join(map(formatting.name, group.examples[:1])), str(group.count))
        for group in quantization.skipped
    ]
    headings = ("reason", "such as", "products")
    return table_section("Not quantized", headings, rows, text_columns=2, most=None if view.verbose else _REASONS)
