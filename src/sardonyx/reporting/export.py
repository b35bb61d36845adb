"""An Export as a document: the example inputs, how the nodes got their modules, and the verification."""

from __future__ import annotations

from sardonyx.records.export import ExampleInput, Export
from sardonyx.reporting import formatting
from sardonyx.reporting.document import (
    Document,
    Facts,
    Notes,
    Paragraph,
    Row,
    Section,
    Span,
    Table,
    Text,
    Tone,
    View,
    text_column,
)
from sardonyx.reporting.formatting import plural
from sardonyx.reporting.inspection import coverage_line, listed, node_count, root_table, weight_table
from sardonyx.reporting.name_groups import grouped, short_lines, short_names
from sardonyx.reporting.run import run_sentence
from sardonyx.reporting.verdict import verdict_section, verification

ROOTS_SHOWN = 10
UNREACHED_SHOWN = 8


def export_document(export: Export, view: View) -> Document:
    """Return the answer of `export`."""
    return Document(
        title=export.module.label,
        head=(_facts(export, view),),
        blocks=(
            _inputs(export),
            Notes([formatting.one_line(note) for note in short_lines(export.notes)]),
            Paragraph(unreached_line(export) if export.unreached else ""),
            weight_table("Weights of several modules", export.tied),
            root_table(export.root_nodes if view.verbose else export.root_nodes[:ROOTS_SHOWN]),
            verdict_section(export.verdict, view),
            Paragraph("" if export.optimized is None else f"optimized: {run_sentence(export.optimized)}"),
        ),
        sentence=Span(export_sentence(export), Tone.STRONG),
    )


def export_sentence(export: Export) -> str:
    """Return what happened in one line."""
    known = export.coverage.direct + export.coverage.inherited
    total = known + export.coverage.root
    share = "all" if known == total else f"{100 * known / total:.1f} %"
    clauses = [
        plural(export.counts.nodes, "node"),
        f"{share} of them placed in {plural(export.modules, 'module')}",
        f"PyTorch and ONNX {verification(export.verdict)}" if export.verdict else "not verified",
    ]
    return ", ".join(clauses) + (f" → {export.result.path}" if export.result.path else "")


def unreached_line(export: Export) -> str:
    """Return which modules the example inputs never reach, so that the file does not contain them."""
    names = [formatting.name(path) for path in export.unreached]
    return f"never reached by these inputs, and not in the file: {listed(names, UNREACHED_SHOWN)}"


def _facts(export: Export, view: View) -> Facts:
    facts: dict[str, Text] = {
        "class": formatting.name(export.module.class_name, 100),
        "size": f"{plural(export.module.modules, 'module')}, {plural(export.module.parameters, 'parameter')}",
        "nodes": node_count(export.counts.nodes, export.counts.constants),
        "nodes by module": coverage_line(export.coverage),
    }
    if view.verbose:
        facts |= {
            "time": formatting.phases(export.seconds),
            "weights": f"sha256 {export.module.sha256}",
            "file": f"sha256 {export.result.sha256}",
        }
    return Facts(facts)


def _inputs(export: Export) -> Section:
    groups = grouped(export.inputs, lambda example: example.name, _sizes)
    rows = [Row((f"{label}={dtype}", dims)) for label, (first, *_) in groups for dtype, dims in [_sizes(first)]]
    outputs = f"outputs: {', '.join(short_names(export.outputs))}"
    table = Table((text_column("--input"), text_column("dynamic")), rows)
    return Section("Example inputs", (table, Paragraph(outputs)))


def _sizes(example: ExampleInput) -> tuple[str, str]:
    """Return the type with the shape of an example input, and its dynamic dimensions."""
    dims = ", ".join(f"{axis}={formatting.name(dim)}" for axis, dim in example.dynamic.items())
    return str(example).removeprefix(f"{example.name}="), dims
