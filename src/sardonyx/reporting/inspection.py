"""An Inspection as a document: what the model is, its interface, its operators and its module tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sardonyx.records.inspection import (
    Adoption,
    Coverage,
    Family,
    Fingerprint,
    Inspection,
    Module,
    ModuleInspection,
    Opportunities,
    OpUse,
    Port,
    RootNode,
    Weight,
)
from sardonyx.records.provenance import UNTAGGED
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Column, Row, Span, Text, Tone, View, text_column
from sardonyx.reporting.module_rows import grouped, listed, module_cell, module_rows
from sardonyx.reporting.run import PASSES_LISTED, main_passes, skipped_row, skipped_section

_PLACES_SHOWN = 4  # groups of inputs or outputs on one screen
_OPERATORS_SHOWN = 10
_WEIGHTS_SHOWN = 4
_SHARED_SHOWN = 5  # nodes
_FAMILY_NAMES = {Family.VISION_TRANSFORMER: "vision transformer", Family.MLP: "MLP"}


def inspection_document(inspection: Inspection, view: View) -> doc.Document:
    """Return the answer of `inspect`: one screen, the modules first, or everything if verbose."""
    title = inspection.path or fmt.name(inspection.graph) or "model in memory"
    modules = module_table(inspection.modules, view)
    if view.verbose:
        root = root_table(() if is_untagged(inspection.coverage) else inspection.root_nodes)
        facts, *contents = inspected(inspection)
        blocks = (*contents, modules, weight_table("Weights of several modules", inspection.tied), root)
        return doc.Document(blocks, title, (facts,), Span(inspection_sentence(inspection), Tone.STRONG))
    folded = [fmt.plural(len(inspection.functions), "function")] if inspection.functions else []
    if inspection.bodies:
        folded.append(fmt.plural(len(inspection.bodies), "body of control flow", "bodies of control flow"))
    summary = doc.Facts.of({
        **_operators_and_ports(inspection, inspection.counts.constants),
        "nodes by module": coverage_line(inspection.coverage, inspection.evidence),
        "architecture (guess)": _architecture(inspection.fingerprint),
        "also": f"{', '.join(folded)} (-v lists them)" if folded else None,
    })  # fmt: skip
    return doc.Document((modules, summary), title, sentence=Span(inspection_sentence(inspection), Tone.STRONG))


def inspection_sentence(inspection: Inspection) -> str:
    """Return the model in one line."""
    parts = [
        fmt.plural(inspection.counts.nodes, "node"),
        fmt.plural(inspection.parameters, "parameter"),
        fmt.size(inspection.file_bytes or inspection.counts.bytes),
        fmt.opset(inspection.opsets),
    ]
    dynamic = dict.fromkeys(
        dim or f"{port.name}[{axis}]"
        for port in inspection.inputs
        for axis, dim in enumerate(port.shape or ())
        if not isinstance(dim, int)
    )
    if dynamic:  # a caller can choose only the dimensions of inputs
        parts.append("dynamic " + ", ".join(map(fmt.name, dynamic)))
    return ", ".join(parts)


def inspected(inspection: Inspection) -> tuple[doc.Block, ...]:
    """Return what the file is in a line each, its interface, functions and operators."""
    counts = inspection.counts
    opsets = (f"{fmt.name(domain) or 'ai.onnx'} {version}" for domain, version in inspection.opsets.items())
    facts: dict[str, Text] = {
        "architecture (guess)": _architecture(inspection.fingerprint),
        "opsets": ", ".join(opsets),
        "IR version": str(inspection.ir_version),
        "producer": fmt.name(inspection.producer) or "unknown",
        "file": fmt.size(inspection.file_bytes) if inspection.file_bytes else "in memory",
        "weights": f"{fmt.size(counts.bytes)} in {fmt.plural(counts.initializers, 'initializer')}",
        "parameters": inspection.parameters,
        "nodes": node_count(counts.nodes, counts.constants),
        "nodes by module": coverage_line(inspection.coverage, inspection.evidence),
    }
    facts |= {fmt.name(key): fmt.name(value, 100) for key, value in inspection.metadata.items()}
    dims = ((fmt.name(dim.name), _places(dim.where)) for dim in inspection.dynamic_dims)
    folded = [
        f"function {fmt.name(f.domain)}.{fmt.name(f.name)}: {fmt.plural(f.nodes, 'node')}, called {f.calls}×"
        for f in inspection.functions
    ]
    folded += [
        f"body {fmt.name(body.attribute)} of {fmt.name(body.op_type)} {fmt.name(body.node)}: "
        + fmt.plural(body.nodes, "node")
        for body in inspection.bodies
    ]
    return (
        doc.Facts(facts),
        interface(inspection.inputs, inspection.outputs),
        doc.table_section("Dynamic dimensions", ("dimension", "where"), dims, text_columns=2),
        doc.Section("Functions and bodies", (doc.Notes(folded),)),
        _operators(inspection.ops),
    )


def _places(where: Iterable[str]) -> str:
    """Return places of a dimension, given as name[axis], in groups."""
    parts = {place: place.rpartition("[") for place in where}
    groups = grouped(parts, lambda place: parts[place][0], lambda place: parts[place][2])
    return ", ".join(f"{label}[{fmt.name(parts[first][2])}" for label, (first, *_) in groups)


def _operators_and_ports(found: Inspection | ModuleInspection, constants: int) -> dict[str, str | None]:
    """Return the operators, inputs and outputs in a line each."""
    uses = [use for use in found.ops if (use.domain, use.op_type) != ("", "Constant")]
    names = [f"{operator_name(use.domain, use.op_type)} {fmt.count(use.count)}" for use in uses]
    more = f" (plus {fmt.count(constants)} Constant)" if constants else ""  # depends on the exporter
    facts: dict[str, str | None] = {"operators": listed(names, _OPERATORS_SHOWN) + more}
    for kind, ports in (("inputs", found.inputs), ("outputs", found.outputs)):
        labels: dict[tuple[str, str], list[str]] = {}  # those that share type and shape are listed together
        for label, (port, *_) in grouped(ports, lambda port: port.name, _port):
            labels.setdefault(_port(port), []).append(label)
        shown = [f"{', '.join(each)} {type_name} {shape}" for (type_name, shape), each in labels.items()]
        facts[kind] = listed(shown, _PLACES_SHOWN) or None
    return facts


def node_count(nodes: int, constants: int) -> str:
    """Return the number of nodes, with that of Constant nodes apart: 215 (plus 65 constants)."""
    return f"{fmt.count(nodes)} (plus {fmt.plural(constants, 'constant')})"


def family_name(family: Family) -> str:
    """Return an architecture family in words."""
    return _FAMILY_NAMES.get(family, family.value)


def _architecture(fingerprint: Fingerprint) -> str:
    """Return the guessed architecture with the confidence and the evidence."""
    evidence = ", ".join(fingerprint.evidence)
    return f"{family_name(fingerprint.family)} ({100 * fingerprint.confidence:.0f} % sure): {evidence}"


def is_untagged(coverage: Coverage) -> bool:
    """Return whether the module of no node is known."""
    return bool(coverage.root) and not coverage.direct and not coverage.inherited


def coverage_line(coverage: Coverage, evidence: Mapping[str, int] | None = None) -> str:
    """Return how the modules of the nodes are known, and what told them if the file has no tags."""
    if is_untagged(coverage):
        return UNTAGGED
    rest = [f"{fmt.count(coverage.inherited)} inherited", f"{fmt.count(coverage.root)} at the root"]
    foreign = [f"{fmt.count(number)} from {kind}" for kind, number in (evidence or {}).items() if kind != "tags"]
    own = f" ({fmt.count(coverage.own)} of them in the model's own forward)" if coverage.own else ""
    return ", ".join([*(foreign or [f"{fmt.count(coverage.direct)} direct{own}"]), *rest])


def interface(inputs: Iterable[Port], outputs: Iterable[Port]) -> doc.Section:
    """Return the inputs and outputs with their types and shapes."""
    rows = (
        (kind, label, *_port(port))
        for kind, ports in (("input", inputs), ("output", outputs))
        for label, (port, *_) in grouped(ports, lambda port: port.name, _port)
    )
    return doc.table_section("Interface", ("", "name", "type", "shape"), rows, text_columns=4)


def _port(port: Port) -> tuple[str, str]:
    return fmt.name(port.type), shape_text(port.shape) + (" has a default" if port.overridable else "")


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    """Return a shape in brackets, unknown dimensions as question marks."""
    if shape is None:
        return "any rank"
    return f"[{', '.join('?' if dim is None else fmt.name(str(dim)) for dim in shape)}]"


def _operators(uses: Iterable[OpUse]) -> doc.Section:
    rows = ((operator_name(use.domain, use.op_type), use.count) for use in uses)
    return doc.table_section("Operators", ("operator", "nodes"), rows)


def operator_name(domain: str, op_type: str) -> str:
    """Return an operator, with its domain if it is not a standard one."""
    return (f"{fmt.name(domain)}::" if domain else "") + fmt.name(op_type)


def module_table(modules: Sequence[Module], view: View, top: str = "") -> doc.Section:
    """Return the tree of modules from `top` down: what each owns, and the totals with the modules below it."""
    rows = (
        (module_cell(row), row.own[0], row.total[0], row.own[1], row.total[1], fmt.name(row.branch.tag))
        for row in module_rows(((m.path, m.tag, (m.nodes, m.parameters)) for m in modules), view, top)
    )
    numbers = (Column("own nodes", 2), "nodes", Column("own parameters", 3), "parameters")
    return doc.table_section("Modules", ("module", *numbers, text_column("kind", 1)), rows)


def weight_table(title: str, weights: Iterable[Weight]) -> doc.Section:
    """Return weights and the modules that read each."""
    rows = (
        (*map(fmt.name, (w.name, w.type)), str(list(w.shape)), ", ".join(map(fmt.module, w.modules))) for w in weights
    )
    return doc.table_section(title, ("weight", "type", "shape", "read by"), rows, text_columns=4)


def root_table(nodes: Iterable[RootNode]) -> doc.Section:
    """Return the nodes without a module, and why they have none."""
    rows = ((fmt.name(node.name), fmt.name(node.op_type), node.reason) for node in nodes)
    return doc.table_section("Nodes at the root", ("node", "operator", "why"), rows, text_columns=3)


# A single module: its interface, its contents, and what it shares with other modules.


def module_document(module: ModuleInspection, view: View) -> doc.Document:
    """Return the answer of `inspect --module`."""
    inner = f"{module.path}." if module.path else ""
    shared = [
        weight
        for weight in module.weights
        if module.path and not all(path == module.path or path.startswith(inner) for path in weight.modules)
    ]
    sentence = Span(module_sentence(module), Tone.STRONG)
    modules, nodes = module_table(module.modules, view, module.path), list(map(fmt.name, module.shared_nodes))
    if not view.verbose:
        weights = [f"{fmt.name(each.name.removeprefix(inner))} {list(each.shape)}" for each in module.weights]
        summary = doc.Facts.of({
            "class": fmt.name((module.kind or "unknown").rpartition(".")[2]),
            "called": f"{len(module.calls)}×" if module.calls else None,
            **_operators_and_ports(module, module.constants),
            "weights": listed(weights, _WEIGHTS_SHOWN) or None,
            "read by others too": listed([fmt.name(weight.name) for weight in shared], _SHARED_SHOWN) or None,
            "shared nodes": f"{listed(nodes, _SHARED_SHOWN)} (other modules own them)" if nodes else None,
        })  # fmt: skip
        return doc.Document((modules, summary), module.tag, sentence=sentence)
    facts = doc.Facts.of({
        "model": module.model,
        "path": fmt.module(module.path),
        "class": fmt.name(module.kind or "unknown", 100),
        "parameters": module.parameters,
        "nodes": node_count(module.nodes, module.constants),
        "nodes by module": coverage_line(module.coverage),
        "called": f"{len(module.calls)}×: {', '.join(map(fmt.name, module.calls))}" if module.calls else None,
    })  # fmt: skip
    blocks = (
        interface(module.inputs, module.outputs),
        _operators(module.ops),
        modules,
        weight_table("Weights", module.weights),
        weight_table("Weights that other modules read too", shared),
        doc.Section("Nodes shared with other modules, which own them", (doc.Paragraph(", ".join(nodes)),)),
    )
    return doc.Document(blocks, module.tag, (facts,), sentence)


def module_sentence(module: ModuleInspection) -> str:
    """Return the module in one line."""
    parts = (
        fmt.plural(module.nodes, "node"),
        fmt.plural(module.parameters, "parameter"),
        fmt.plural(len(module.inputs), "input"),
        fmt.plural(len(module.outputs), "output"),
    )
    return f"{fmt.module(module.path)}: {', '.join(parts)}"


# What `adopt` found in a file of another exporter.

_ROOTS_SHOWN = 10


def adoption_document(adoption: Adoption) -> doc.Document:
    """Return the answer of `adopt`."""
    evidence = (f"{fmt.count(number)} from {kind}" for kind, number in adoption.evidence.items())
    facts: dict[str, Text] = {
        "nodes by module": coverage_line(adoption.coverage),
        "evidence": ", ".join(evidence) or "none",
        "modules with nodes": adoption.modules,
    }
    roots = [
        f"{fmt.name(node.op_type)} {fmt.name(node.name)}: {fmt.one_line(node.reason)}"
        for node in (() if is_untagged(adoption.coverage) else adoption.root_nodes)
    ]
    lines = doc.capped(roots, _ROOTS_SHOWN, "and {:,} more; --json lists them all")
    head = (doc.Facts(facts), doc.Notes([*lines, *map(fmt.one_line, adoption.notes)]))
    return doc.Document((), adoption.source, head, Span(adoption_sentence(adoption), Tone.STRONG))


def adoption_sentence(adoption: Adoption) -> str:
    """Return how many nodes have a module, in one line."""
    known = adoption.coverage.direct + adoption.coverage.inherited
    nodes = f"{fmt.count(known)} of {fmt.plural(adoption.nodes, 'node')} with a module"
    return nodes + (", nothing written" if adoption.output is None else f" → {adoption.output}")


# Opportunities: what each pass would rewrite, and what it would skip for which reason.


def opportunities_document(opportunities: Opportunities, view: View) -> doc.Document:
    """Return the answer of `inspect --opportunities`."""
    blocks = (main_passes(opportunities.passes, PASSES_LISTED), skipped_section(opportunities.passes))
    if view.verbose:
        rows: list[Row] = []
        for record in opportunities.passes:
            if record.rewrites or record.refusals:
                ordered = sorted(record.modules, key=lambda path: (-record.modules[path], path))  # most rewrites first
                where = ", ".join(map(fmt.module, ordered)) or "·"
                rows.append(Row((fmt.name(record.name), record.rewrites or "·", fmt.change(record.nodes), where)))
                rows += map(skipped_row, record.refusals)
        columns = ("pass", "would rewrite", "nodes", text_column("where"))
        blocks = (doc.table_section("Passes", columns, rows),)
    sentence = Span(opportunities_sentence(opportunities), Tone.STRONG)
    return doc.Document(blocks, opportunities.path or "model in memory", sentence=sentence)


def opportunities_sentence(opportunities: Opportunities) -> str:
    """Return how many nodes an optimization would leave, and how many matches it would skip."""
    before, after = opportunities.before.nodes, opportunities.after.nodes
    skipped = f"{fmt.count(opportunities.left)} of {fmt.plural(opportunities.found, 'match', 'matches')} skipped"
    gives = f"would give {fmt.counts(before, after)} nodes ({fmt.percent(before, after)})"
    return f"optimizing for {fmt.name(opportunities.target)} {gives}; {skipped}"
