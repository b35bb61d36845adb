"""Exports and extractions as documents."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sardonyx.records.export import BoundaryValue, ExampleInput, Export, Extraction, OperatorChecks
from sardonyx.records.run import Run
from sardonyx.reporting import formatting
from sardonyx.reporting.document import (
    Block,
    Document,
    Facts,
    Notes,
    Paragraph,
    Section,
    Span,
    Table,
    Text,
    Tone,
    View,
    table_section,
    text_column,
)
from sardonyx.reporting.formatting import plural
from sardonyx.reporting.inspection import coverage_line, node_count, root_table, shape_text, weight_table
from sardonyx.reporting.module_rows import first_notes, grouped, listed, short_lines, short_names
from sardonyx.reporting.run import CONSTANT, main_operators, run_document, run_sentence
from sardonyx.reporting.verdict import decoder_line, verdict_section, verdict_summary, verification

NOTES_SHOWN = 2
UNREACHED_SHOWN = 8
FIXED_SHOWN = 6
OPERATORS_SHOWN = 3


def export_document(export: Export, view: View) -> Document:
    """Return the answer of `export`."""
    return Document(
        title=export.module.label,
        head=(_facts(export, view),),
        blocks=(
            Section("Example inputs", (_inputs(export), Notes(_input_lines(export, view)))),
            Paragraph(unreached_line(export) if export.unreached else ""),
            weight_table("Weights of several modules", export.tied if view.verbose else ()),
            root_table(export.root_nodes if view.verbose else ()),
            _verification(export, view),
            Paragraph(decoder_line(export.decoder) if export.decoder is not None else ""),
            *(_optimized(export.optimized, view) if export.optimized is not None else ()),
        ),
        sentence=Span(export_sentence(export), Tone.STRONG),
    )


def _verification(export: Export, view: View) -> Section:
    section = verdict_section(export.verdict, view) if view.verbose else verdict_summary(export.verdict)
    operators = Notes(operator_lines(export.operators, view) if export.operators is not None else [])
    return replace(section, blocks=(*section.blocks, operators))


def _optimized(run: Run, view: View) -> Sequence[Block]:
    """Return what became of the operators; verbose, also what each pass did."""
    if view.verbose:
        return run_document(run, view).blocks[:2]
    return (main_operators([op for op in run.ops if op.op_type != CONSTANT], OPERATORS_SHOWN),)


def export_sentence(export: Export) -> str:
    """Return what happened in one line."""
    if export.optimized is not None:
        return f"{verification(export.verdict, 'PyTorch')}; optimized: {run_sentence(export.optimized)}"
    known = export.coverage.direct + export.coverage.inherited
    total = known + export.coverage.root
    share = "all" if known == total else f"{100 * known / total:.1f} %"
    clauses = [
        plural(export.counts.nodes, "node"),
        f"{share} of them placed in {plural(export.modules, 'module')}",
        verification(export.verdict, "PyTorch"),
    ]
    return ", ".join(clauses) + (f" → {export.result.path}" if export.result.path else "")


def operator_lines(checks: OperatorChecks, view: View) -> list[str]:
    """Return how many operators of torch equal the ONNX nodes they became; verbose, also why others are not decided."""
    orders = f", {checks.orders_tried} for the orders of values tried" if checks.orders_tried else ""
    undecided = sum(checks.undecided.values())
    rest = f", {undecided} not decided" if undecided else ""
    equal = f"{checks.all_values} of {checks.operators} ATen operators equal in exact arithmetic (for all values)"
    reasons = (f"not decided: {count} {formatting.one_line(reason)}" for reason, count in checks.undecided.items())
    return [equal + orders + rest, *map(formatting.one_line, checks.unequal), *(reasons if view.verbose else ())]


def unreached_line(export: Export) -> str:
    """Return which modules the example inputs never reach, so that the file does not contain them."""
    names = [formatting.name(path) for path in export.unreached]
    return f"never reached by these inputs, and not in the file: {listed(names, UNREACHED_SHOWN)}"


def _facts(export: Export, view: View) -> Facts:
    module = export.module
    size = f"{plural(module.modules, 'module')}, {plural(module.parameters, 'parameter')}"
    nodes = node_count(export.counts.nodes, export.counts.constants)
    if not view.verbose:
        root = f"; {formatting.count(export.coverage.root)} have no module (-v lists them)" if export.root_nodes else ""
        class_name = formatting.name(module.class_name.rpartition(".")[2])
        return Facts({"module": f"{class_name}, {size}", "nodes": nodes + root, **_plain_torch(export)})
    return Facts(
        {
            "class": formatting.name(module.class_name, 100),
            "size": size,
            "nodes": nodes,
            **_plain_torch(export),
            "nodes by module": coverage_line(export.coverage),
            "time": formatting.phases(export.seconds),
            "weights": f"sha256 {module.sha256}",
            "file": f"sha256 {export.result.sha256}",
        }
    )


def _plain_torch(export: Export) -> dict[str, Text]:
    """Return how many nodes torch alone would leave, as a fact, and how many fewer the result has."""
    if export.plain_torch is None or export.optimized is None:
        return {}
    plain, result = export.plain_torch.nodes, export.optimized.after.nodes
    fewer = f"{formatting.count(result)} ({formatting.percent(plain, result)})"
    return {"plain torch": f"{plural(plain, 'node')} with torch's own optimizer; the result has {fewer}"}


def _inputs(export: Export) -> Table:
    roles = {str(example): role for example in export.inputs for note in export.notes if (role := _role(note, example))}

    def cells(example: ExampleInput) -> tuple[str, str, str]:
        """Return the type with the shape of an example input, its dynamic dimensions, and how it was generated."""
        dims = ", ".join(f"{axis}={formatting.name(dim)}" for axis, dim in example.dynamic.items())
        return str(example).removeprefix(f"{example.name}="), dims, formatting.one_line(roles.get(str(example), ""))

    groups = grouped(export.inputs, lambda example: example.name, cells)
    rows = [(f"{label}={dtype}", *rest) for label, (first, *_) in groups for dtype, *rest in [cells(first)]]
    columns = [text_column("--input"), text_column("dynamic"), text_column("generated as", 1)]
    used = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    return Table.of([columns[place] for place in used], ([row[place] for place in used] for row in rows))


def _input_lines(export: Export, view: View) -> list[str]:
    """Return the outputs, and the notes that are not about one example input."""
    about_one = {note for note in export.notes for example in export.inputs if _role(note, example)}
    notes = short_lines(note for note in export.notes if note not in about_one)
    fixed = [formatting.one_line(f"{name}={value!r}") for name, value in export.fixed.items()]
    return [
        f"outputs: {', '.join(short_names(export.outputs))}",
        *_state_lines(export),
        *([f"fixed in the graph: {listed(fixed, None if view.verbose else FIXED_SHOWN)}"] if fixed else []),
        *first_notes(list(map(formatting.one_line, notes)), None if view.verbose else NOTES_SHOWN),
    ]


def _state_lines(export: Export) -> list[str]:
    if not export.state:
        return []
    firsts = [state.initial for state in export.state]
    is_one = all(isinstance(first, (int, float, bool)) and first == firsts[0] for first in firsts)
    where = f"{firsts[0]:g}" if is_one else "in the file's metadata (sardonyx.state)"
    inputs, outputs = ([*short_names(names)] for names in zip(*((s.name, s.output) for s in export.state), strict=True))
    verb = "are" if len(export.state) > 1 else "is"
    return [f"state: {', '.join(outputs)} {verb} {', '.join(inputs)} of the next run; first values: {where}"]


def _role(note: str, example: ExampleInput) -> str:
    """Return what a note says about how an example input was generated, or "" if it is about something else."""
    start = f"{example} generated as "
    return note.removeprefix(start) if note.startswith(start) else ""


_SHOWN = 8  # straddling nodes, without -v


def extraction_document(extraction: Extraction, view: View) -> Document:
    """Return the answer of `extract`."""
    return Document(
        title=(_module(extraction.path), Span(f"  {formatting.name(extraction.tag, 100)}", Tone.FAINT)),
        head=(Notes(_heading_lines(extraction, view)),),
        blocks=(
            _boundary(extraction),
            verdict_section(extraction.live, view, "Against the live module"),
            verdict_section(extraction.verdict, view, "Against the whole model"),
        ),
        sentence=Span(extraction_sentence(extraction), Tone.STRONG),
    )


def extraction_sentence(extraction: Extraction) -> str:
    """Return what was extracted and whether it was verified, in one line."""
    clauses = [
        f"{_module(extraction.path)}: {formatting.plural(extraction.counts.nodes, 'node')}",
        formatting.plural(len(extraction.inputs), "input"),
        formatting.plural(len(extraction.outputs), "output"),
        formatting.size(extraction.counts.bytes),
    ]
    if extraction.path != extraction.asked and extraction.straddling:
        clauses.append(f"wider than {_module(extraction.asked)}")
    against = "the live module" if extraction.live is not None else "the whole model"
    clauses.append(verification(extraction.live or extraction.verdict, against))
    return ", ".join(clauses) + ("" if extraction.result.path is None else f" → {extraction.result.path}")


def _module(path: str) -> str:
    return formatting.name(path) or "the model"


def _heading_lines(extraction: Extraction, view: View) -> list[str]:
    lines: list[str] = []
    if extraction.straddling:
        names = [formatting.name(node) for node in extraction.straddling]
        lines.append(
            f"wider than {_module(extraction.asked)}, because these nodes also do the work of other modules: "
            + listed(names, None if view.verbose else _SHOWN)
        )
    if extraction.dropped:
        lines.append(f"not computed by this graph: {', '.join(map(formatting.name, extraction.dropped))}")
    return lines + [f"note: {formatting.one_line(note)}" for note in extraction.notes]


def _boundary(extraction: Extraction) -> Section:
    def cells(value: BoundaryValue) -> tuple[str, ...]:
        return (
            formatting.name(value.type),
            shape_text(value.shape),
            "model input" if value.module is None else _module(value.module),
            *((formatting.name(value.live or "·"),) if extraction.live is not None else ()),
        )

    rows = (
        (kind, label, *cells(first))
        for kind, values in (("input", extraction.inputs), ("output", extraction.outputs))
        for label, (first, *_) in grouped(values, lambda value: value.name, cells)
    )
    live = ("live module's",) if extraction.live is not None else ()
    return table_section("Boundary", ("", "name", "type", "shape", "produced by", *live), rows, text_columns=6)
