"""Exports and extractions as documents."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sardonyx.records.export import BoundaryValue, ExampleInput, Export, Extraction, OperatorChecks
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Span, Text, Tone, View, text_column
from sardonyx.reporting.formatting import plural
from sardonyx.reporting.inspection import coverage_line, node_count, root_table, shape_text, weight_table
from sardonyx.reporting.module_rows import first_notes, grouped, listed, short_lines, short_names
from sardonyx.reporting.run import CONSTANT, operator_table, run_sentence, run_tables
from sardonyx.reporting.verdict import decoder_line, verdict_section, verdict_summary, verification

NOTES_SHOWN = 2
UNREACHED_SHOWN = 8
FIXED_SHOWN = 6
OPERATORS_SHOWN = 3


def export_document(export: Export, view: View) -> doc.Document:
    """Return the answer of `export`."""
    optimized = export.optimized
    verification = verdict_section(export.verdict, view) if view.verbose else verdict_summary(export.verdict)
    operators = doc.Notes(operator_lines(export.operators, view) if export.operators is not None else [])
    tables: Sequence[doc.Block] = ()  # what became of the operators; verbose, also what each pass did
    if optimized is not None and view.verbose:
        tables = run_tables(optimized)
    elif optimized is not None:
        tables = (operator_table([op for op in optimized.ops if op.op_type != CONSTANT], OPERATORS_SHOWN),)
    return doc.Document(
        title=export.module.label,
        head=(_facts(export, view),),
        blocks=(
            _inputs(export, view),
            doc.Paragraph(unreached_line(export) if export.unreached else ""),
            weight_table("Weights of several modules", export.tied if view.verbose else ()),
            root_table(export.root_nodes if view.verbose else ()),
            replace(verification, blocks=(*verification.blocks, operators)),
            doc.Paragraph(decoder_line(export.decoder) if export.decoder is not None else ""),
            *tables,
        ),
        sentence=Span(export_sentence(export), Tone.STRONG),
    )


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
    reasons = (f"not decided: {count} {fmt.one_line(reason)}" for reason, count in checks.undecided.items())
    return [equal + orders + rest, *map(fmt.one_line, checks.unequal), *(reasons if view.verbose else ())]


def unreached_line(export: Export) -> str:
    """Return which modules the example inputs never reach, so that the file does not contain them."""
    names = [fmt.name(path) for path in export.unreached]
    return f"never reached by these inputs, and not in the file: {listed(names, UNREACHED_SHOWN)}"


def _facts(export: Export, view: View) -> doc.Facts:
    module = export.module
    size = f"{plural(module.modules, 'module')}, {plural(module.parameters, 'parameter')}"
    nodes = node_count(export.counts.nodes, export.counts.constants)
    torch: dict[str, Text] = {}
    if export.plain_torch is not None and export.optimized is not None:  # how many nodes torch alone would leave
        plain, result = export.plain_torch.nodes, export.optimized.after.nodes
        fewer = f"{fmt.count(result)} ({fmt.percent(plain, result)})"
        torch = {"plain torch": f"{plural(plain, 'node')} with torch's own optimizer; the result has {fewer}"}
    if not view.verbose:
        root = f"; {fmt.count(export.coverage.root)} have no module (-v lists them)" if export.root_nodes else ""
        class_name = fmt.name(module.class_name.rpartition(".")[2])
        return doc.Facts({"module": f"{class_name}, {size}", "nodes": nodes + root, **torch})
    facts: dict[str, Text] = {"class": fmt.name(module.class_name, 100), "size": size, "nodes": nodes, **torch}
    facts |= {"nodes by module": coverage_line(export.coverage), "time": fmt.phases(export.seconds)}
    return doc.Facts(facts | {"weights": f"sha256 {module.sha256}", "file": f"sha256 {export.result.sha256}"})


def _inputs(export: Export, view: View) -> doc.Section:
    """Return the example inputs with how each was generated, the outputs, and the notes about anything else."""
    starts = tuple(f"{example} generated as " for example in export.inputs)
    about = [note for note in export.notes if note.startswith(starts)]
    roles = {start: note.removeprefix(start) for note in about for start in starts if note.startswith(start)}

    def cells(example: ExampleInput) -> tuple[str, str, str]:
        """Return the type with the shape of an example input, its dynamic dimensions, and how it was generated."""
        dims = ", ".join(f"{axis}={fmt.name(dim)}" for axis, dim in example.dynamic.items())
        return (
            str(example).removeprefix(f"{example.name}="),
            dims,
            fmt.one_line(roles.get(f"{example} generated as ", "")),
        )

    groups = grouped(export.inputs, lambda example: example.name, cells)
    rows = [(f"{label}={dtype}", *rest) for label, (first, *_) in groups for dtype, *rest in [cells(first)]]
    columns = (text_column("--input"), text_column("dynamic", optional=True), text_column("generated as", 1))
    others = short_lines(note for note in export.notes if note not in about)
    lines = [f"outputs: {', '.join(short_names(export.outputs))}"]
    if export.state:
        firsts = [state.initial for state in export.state]
        is_one = all(isinstance(first, (int, float, bool)) and first == firsts[0] for first in firsts)
        where = f"{firsts[0]:g}" if is_one else "in the file's metadata (sardonyx.state)"
        names = (", ".join(short_names(getattr(each, side) for each in export.state)) for side in ("output", "name"))
        are = " are " if len(export.state) > 1 else " is "
        lines.append(f"state: {are.join(names)} of the next run; first values: {where}")
    if export.fixed:
        fixed = [fmt.one_line(f"{name}={value!r}") for name, value in export.fixed.items()]
        lines.append(f"fixed in the graph: {listed(fixed, None if view.verbose else FIXED_SHOWN)}")
    lines += first_notes(others, None if view.verbose else NOTES_SHOWN)
    return doc.Section("Example inputs", (doc.Table.of(columns, rows), doc.Notes(lines)))


STRADDLING_SHOWN = 8  # nodes, without -v


def extraction_document(extraction: Extraction, view: View) -> doc.Document:
    """Return the answer of `extract`."""
    lines: list[str] = []
    if extraction.straddling:
        names = listed(list(map(fmt.name, extraction.straddling)), None if view.verbose else STRADDLING_SHOWN)
        why = "because these nodes also do the work of other modules"
        lines.append(f"wider than {_module(extraction.asked)}, {why}: {names}")
    if extraction.dropped:
        lines.append(f"not computed by this graph: {', '.join(map(fmt.name, extraction.dropped))}")
    lines += [f"note: {fmt.one_line(note)}" for note in extraction.notes]
    return doc.Document(
        title=(_module(extraction.path), Span(f"  {fmt.name(extraction.tag, 100)}", Tone.FAINT)),
        head=(doc.Notes(lines),),
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
        f"{_module(extraction.path)}: {plural(extraction.counts.nodes, 'node')}",
        plural(len(extraction.inputs), "input"),
        plural(len(extraction.outputs), "output"),
        fmt.size(extraction.counts.bytes),
    ]
    if extraction.path != extraction.asked and extraction.straddling:
        clauses.append(f"wider than {_module(extraction.asked)}")
    against = "the live module" if extraction.live is not None else "the whole model"
    clauses.append(verification(extraction.live or extraction.verdict, against))
    return ", ".join(clauses) + ("" if extraction.result.path is None else f" → {extraction.result.path}")


def _module(path: str) -> str:
    return fmt.name(path) or "the model"


def _boundary(extraction: Extraction) -> doc.Section:
    def cells(value: BoundaryValue) -> tuple[str, ...]:
        module = "model input" if value.module is None else _module(value.module)
        live = "" if extraction.live is None else fmt.name(value.live or "·")
        return fmt.name(value.type), shape_text(value.shape), module, live

    rows = (
        (kind, label, *cells(first))
        for kind, values in (("input", extraction.inputs), ("output", extraction.outputs))
        for label, (first, *_) in grouped(values, lambda value: value.name, cells)
    )
    columns = ("", "name", "type", "shape", "produced by", text_column("live module's", optional=True))
    return doc.table_section("Boundary", columns, rows, text_columns=5)
