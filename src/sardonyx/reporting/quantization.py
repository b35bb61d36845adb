"""A Quantization as a document: the loss of each output, the bytes of each module, and what was not quantized."""

from __future__ import annotations

from sardonyx.records import module_tree
from sardonyx.records.quantization import Quantization
from sardonyx.reporting import formatting
from sardonyx.reporting.document import Cell, Document, Notes, Section, Span, Text, Tone, View, table_section
from sardonyx.reporting.module_rows import module_cell, module_rows

_MODULES = 8  # rows of modules, without -v
_OUTPUTS = 4
_REASONS = 3


def quantization_document(quantization: Quantization, view: View) -> Document:
    """Return the answer of `quantize`."""
    options = quantization.options
    title = formatting.name(quantization.source.path or "model in memory", 100)
    return Document(
        title=(title, Span(f"  to {options['to']}, target {options['target']}", Tone.FAINT)),
        head=(Notes(_head(quantization)),),
        blocks=(_loss(quantization, view), _modules(quantization, view), _skipped(quantization, view)),
        sentence=Span(quantization_sentence(quantization), Tone.STRONG),
    )


def quantization_sentence(quantization: Quantization) -> str:
    """Return what was quantized, the bytes and the loss, in one line."""
    before, after, loss = quantization.before.bytes, quantization.after.bytes, quantization.loss
    sizes = formatting.from_to(formatting.size(before), formatting.size(after))
    clauses = [
        f"{formatting.plural(len(quantization.products), 'product')} in {quantization.options['to']}",
        f"{sizes} ({after / before:.2f} ×)",
        f"relative L2 {loss.relative_l2:.2g} on {_samples(quantization)}",
    ]
    path = quantization.result.path
    return ", ".join(clauses) + ("" if path is None else f" → {formatting.name(path, 100)}")


def _samples(quantization: Quantization) -> str:
    loss = quantization.loss
    kind = "sample of data" if loss.measured_on == "data" else "generated input"
    several = "samples of data" if loss.measured_on == "data" else "generated inputs"
    return formatting.plural(loss.samples, kind, several)


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
    return lines + [f"note: {formatting.one_line(note)}" for note in quantization.notes]


def _loss(quantization: Quantization, view: View) -> Section:
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
    below = "" if loss.measured_on == "data" else "random inputs say little about a trained model: measure on data"
    return table_section(
        f"Loss on {_samples(quantization)}, in {formatting.one_line(loss.runtime)}",
        headings,
        rows,
        below=below if len(rows) <= _OUTPUTS or view.verbose else "",
        most=None if view.verbose else _OUTPUTS,
    )


def _modules(quantization: Quantization, view: View) -> Section:
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


def _skipped(quantization: Quantization, view: View) -> Section:
    rows: list[tuple[Text | Cell, ...]] = [
        (formatting.one_line(group.reason), ", ".join(map(formatting.name, group.examples[:1])), str(group.count))
        for group in quantization.skipped
    ]
    headings = ("reason", "such as", "products")
    return table_section("Not quantized", headings, rows, text_columns=2, most=None if view.verbose else _REASONS)
