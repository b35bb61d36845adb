"""An Inspection as a document: what the model is, its interface, its operators and its module tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

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
from sardonyx.reporting import formatting
from sardonyx.reporting.document import (
    Column,
    Document,
    Facts,
    Notes,
    Paragraph,
    Row,
    Section,
    Span,
    Text,
    Tone,
    View,
    table_section,
    text_column,
)
from sardonyx.reporting.module_rows import grouped, listed, module_cell, module_rows
from sardonyx.reporting.run import PASSES_LISTED, main_passes, skipped_row, skipped_section

_PLACES_SHOWN = 4  # groups of inputs or outputs on one screen
_OPERATORS_SHOWN = 10
_WEIGHTS_SHOWN = 4
_SHARED_SHOWN = 5  # nodes
_FAMILY_NAMES = {Family.VISION_TRANSFORMER: "vision transformer", Family.MLP: "MLP"}


def inspection_document(inspection: Inspection, view: View) -> Document:
    """Return the answer of `inspect`: one screen, the modules first, or everything if verbose."""
    title = inspection.path or formatting.name(inspection.graph) or "model in memory"
    sentence = Span(inspection_sentence(inspection), Tone.STRONG)
    if not view.verbose:
        modules = module_table(inspection.modules, view)
        return Document(title=title, blocks=(modules, _summary(inspection)), sentence=sentence)
    return Document(
        title=title,
        head=(inspection_facts(inspection),),
        blocks=(
            interface(inspection.inputs, inspection.outputs),
            dynamic_dimensions(inspection),
            functions(inspection),
            operators(inspection.ops),
            module_table(inspection.modules, view),
            weight_table("Weights of several modules", inspection.tied),
            root_table(() if is_untagged(inspection.coverage) else inspection.root_nodes),
        ),
        sentence=sentence,
    )


def _summary(inspection: Inspection) -> Facts:
    """Return what is not a module in a line each: operators, interface, how the modules are known."""
    facts = _operators_and_ports(inspection, inspection.counts.constants)
    facts["nodes by module"] = coverage_line(inspection.coverage, inspection.evidence)
    facts["architecture (guess)"] = architecture(inspection.fingerprint)
    folded = [
        formatting.plural(len(found), what, several)
        for what, several, found in (
            ("function", None, inspection.functions),
            ("body of control flow", "bodies of control flow", inspection.bodies),
        )
        if found
    ]
    return Facts(facts | ({"also": f"{', '.join(folded)} (-v lists them)"} if folded else {}))


def _operators_and_ports(found: Inspection | ModuleInspection, constants: int) -> dict[str, Text]:
    """Return the operators, inputs and outputs in a line each."""
    uses = [use for use in found.ops if (use.domain, use.op_type) != ("", "Constant")]
    names = [f"{operator_name(use.domain, use.op_type)} {formatting.count(use.count)}" for use in uses]
    more = f" (plus {formatting.count(constants)} Constant)" if constants else ""  # depends on the exporter
    facts: dict[str, Text] = {"operators": listed(names, _OPERATORS_SHOWN) + more}
    ports = {"inputs": found.inputs, "outputs": found.outputs}
    return facts | {label: listed(_port_groups(group), _PLACES_SHOWN) for label, group in ports.items() if group}


def _port_groups(ports: Iterable[Port]) -> list[str]:
    """Return names of inputs or outputs with their type and shape; those that share both are listed together."""
    names: dict[tuple[str, str], list[str]] = {}
    for label, (port, *_) in grouped(ports, lambda port: port.name, _port):
        names.setdefault(_port(port), []).append(label)
    return [f"{', '.join(labels)} {type_name} {shape}" for (type_name, shape), labels in names.items()]


def inspection_sentence(inspection: Inspection) -> str:
    """Return the model in one line."""
    parts = [
        formatting.plural(inspection.counts.nodes, "node"),
        formatting.plural(inspection.parameters, "parameter"),
        formatting.size(inspection.file_bytes or inspection.counts.bytes),
        formatting.opset(inspection.opsets),
    ]
    dims = (
        dim or f"{port.name}[{axis}]"
        for port in inspection.inputs
        for axis, dim in enumerate(port.shape or ())
        if not isinstance(dim, int)
    )
    dynamic = dict.fromkeys(dims)
    if dynamic:  # a caller can choose only the dimensions of inputs
        parts.append("dynamic " + ", ".join(map(formatting.name, dynamic)))
    return ", ".join(parts)


def inspection_facts(inspection: Inspection) -> Facts:
    """Return what the file is in a line each."""
    counts = inspection.counts
    opsets = (f"{formatting.name(domain) or 'ai.onnx'} {version}" for domain, version in inspection.opsets.items())
    facts: dict[str, Text] = {
        "architecture (guess)": architecture(inspection.fingerprint),
        "opsets": ", ".join(opsets),
        "IR version": str(inspection.ir_version),
        "producer": formatting.name(inspection.producer) or "unknown",
        "file": formatting.size(inspection.file_bytes) if inspection.file_bytes else "in memory",
        "weights": f"{formatting.size(counts.bytes)} in {formatting.plural(counts.initializers, 'initializer')}",
        "parameters": formatting.count(inspection.parameters),
        "nodes": node_count(counts.nodes, counts.constants),
        "nodes by module": coverage_line(inspection.coverage, inspection.evidence),
    }
    return Facts(
        facts | {formatting.name(key): formatting.name(value, 100) for key, value in inspection.metadata.items()}
    )


def node_count(nodes: int, constants: int) -> str:
    """Return the number of nodes, with that of Constant nodes apart: 215 (plus 65 constants)."""
    return f"{formatting.count(nodes)} (plus {formatting.plural(constants, 'constant')})"


def family_name(family: Family) -> str:
    """Return an architecture family in words."""
    return _FAMILY_NAMES.get(family, family.value)


def architecture(fingerprint: Fingerprint) -> str:
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
    foreign = [f"{formatting.count(number)} from {kind}" for kind, number in (evidence or {}).items() if kind != "tags"]
    if foreign:
        rest = (coverage.inherited, "inherited"), (coverage.root, "at the root")
        return ", ".join([*foreign, *(f"{formatting.count(number)} {how}" for number, how in rest)])
    own = f" ({formatting.count(coverage.own)} of them in the model's own forward)" if coverage.own else ""
    return (
        f"{formatting.count(coverage.direct)} direct{own}, {formatting.count(coverage.inherited)} inherited, "
        f"{formatting.count(coverage.root)} at the root"
    )


def interface(inputs: Iterable[Port], outputs: Iterable[Port]) -> Section:
    """Return the inputs and outputs with their types and shapes."""
    rows = (
        (kind, label, *_port(port))
        for kind, ports in (("input", inputs), ("output", outputs))
        for label, (port, *_) in grouped(ports, lambda port: port.name, _port)
    )
    return table_section("Interface", ("", "name", "type", "shape"), rows, text_columns=4)


def _port(port: Port) -> tuple[str, str]:
    return formatting.name(port.type), shape_text(port.shape) + (" has a default" if port.overridable else "")


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    """Return a shape in brackets, unknown dimensions as question marks."""
    if shape is None:
        return "any rank"
    return f"[{', '.join('?' if dim is None else formatting.name(str(dim)) for dim in shape)}]"


def dynamic_dimensions(inspection: Inspection) -> Section:
    """Return the dynamic dimensions, and the inputs and outputs that have each."""

    def places(where: Iterable[str]) -> Iterator[str]:
        parts = {place: place.rpartition("[") for place in where}  # given as name[axis]
        for label, (first, *_) in grouped(parts, lambda place: parts[place][0], lambda place: parts[place][2]):
            yield f"{label}[{formatting.name(parts[first][2])}"

    rows = ((formatting.name(dim.name), ", ".join(places(dim.where))) for dim in inspection.dynamic_dims)
    return table_section("Dynamic dimensions", ("dimension", "where"), rows, text_columns=2)


def functions(inspection: Inspection) -> Section:
    """Return the functions of a model, and the bodies of control flow."""
    lines = [
        f"function {formatting.name(f.domain)}.{formatting.name(f.name)}: {formatting.plural(f.nodes, 'node')},"
        f" called {f.calls}×"
        for f in inspection.functions
    ]
    lines += [
        f"body {formatting.name(body.attribute)} of {formatting.name(body.op_type)} {formatting.name(body.node)}: "
        + formatting.plural(body.nodes, "node")
        for body in inspection.bodies
    ]
    return Section("Functions and bodies", (Notes(lines),))


def operators(uses: Iterable[OpUse]) -> Section:
    """Return how often each operator occurs."""
    rows = ((operator_name(use.domain, use.op_type), formatting.count(use.count)) for use in uses)
    return table_section("Operators", ("operator", "nodes"), rows)


def operator_name(domain: str, op_type: str) -> str:
    """Return an operator, with its domain if it is not a standard one."""
    return (f"{formatting.name(domain)}::" if domain else "") + formatting.name(op_type)


def module_table(modules: Sequence[Module], view: View, top: str = "") -> Section:
    """Return the tree of modules from `top` down: what each owns, and the totals with the modules below it."""
    rows = (
        (
            module_cell(row),
            *(formatting.count(number) for pair in zip(row.own, row.total, strict=True) for number in pair),
            formatting.name(row.branch.tag),
        )
        for row in module_rows(((m.path, m.tag, (m.nodes, m.parameters)) for m in modules), view, top)
    )
    numbers = (Column("own nodes", 2), "nodes", Column("own parameters", 3), "parameters")
    return table_section("Modules", ("module", *numbers, text_column("kind", 1)), rows)


def weight_table(title: str, weights: Iterable[Weight]) -> Section:
    """Return weights and the modules that read each."""
    rows = (
        (*map(formatting.name, (w.name, w.type)), str(list(w.shape)), ", ".join(map(formatting.module, w.modules)))
        for w in weights
    )
    return table_section(title, ("weight", "type", "shape", "read by"), rows, text_columns=4)


def root_table(nodes: Iterable[RootNode]) -> Section:
    """Return the nodes without a module, and why they have none."""
    rows = ((formatting.name(node.name), formatting.name(node.op_type), node.reason) for node in nodes)
    return table_section("Nodes at the root", ("node", "operator", "why"), rows, text_columns=3)


# A single module: its interface, its contents, and what it shares with other modules.


def module_document(module: ModuleInspection, view: View) -> Document:
    """Return the answer of `inspect --module`."""
    within = (module.path, f"{module.path}.")  # everything is within the model itself
    shared = [
        weight
        for weight in module.weights
        if module.path and not all(path == within[0] or path.startswith(within[1]) for path in weight.modules)
    ]
    sentence = Span(module_sentence(module), Tone.STRONG)
    modules = module_table(module.modules, view, module.path)
    if not view.verbose:
        return Document(title=module.tag, blocks=(modules, _module_summary(module, shared)), sentence=sentence)
    shared_nodes = ", ".join(map(formatting.name, module.shared_nodes))
    return Document(
        title=module.tag,
        head=(_module_facts(module),),
        blocks=(
            interface(module.inputs, module.outputs),
            operators(module.ops),
            modules,
            weight_table("Weights", module.weights),
            weight_table("Weights that other modules read too", shared),
            Section("Nodes shared with other modules, which own them", (Paragraph(shared_nodes),)),
        ),
        sentence=sentence,
    )


def module_sentence(module: ModuleInspection) -> str:
    """Return the module in one line."""
    parts = (
        formatting.plural(module.nodes, "node"),
        formatting.plural(module.parameters, "parameter"),
        formatting.plural(len(module.inputs), "input"),
        formatting.plural(len(module.outputs), "output"),
    )
    return f"{formatting.module(module.path)}: {', '.join(parts)}"


def _module_summary(module: ModuleInspection, shared: Sequence[Weight]) -> Facts:
    """Return what is not a module below it in a line each."""
    facts: dict[str, Text] = {"class": formatting.name((module.kind or "unknown").rpartition(".")[2])}
    if module.calls:
        facts["called"] = f"{len(module.calls)}×"
    facts |= _operators_and_ports(module, module.constants)
    inner = f"{module.path}." if module.path else ""
    names = [f"{formatting.name(each.name.removeprefix(inner))} {list(each.shape)}" for each in module.weights]
    if names:
        facts["weights"] = listed(names, _WEIGHTS_SHOWN)
    if shared:
        facts["read by others too"] = listed([formatting.name(weight.name) for weight in shared], _SHARED_SHOWN)
    if module.shared_nodes:
        nodes = listed(list(map(formatting.name, module.shared_nodes)), _SHARED_SHOWN)
        facts["shared nodes"] = f"{nodes} (other modules own them)"
    return Facts(facts)


def _module_facts(module: ModuleInspection) -> Facts:
    facts: dict[str, Text] = {
        "model": module.model,
        "path": formatting.module(module.path),
        "class": formatting.name(module.kind or "unknown", 100),
        "parameters": formatting.count(module.parameters),
        "nodes": node_count(module.nodes, module.constants),
        "nodes by module": coverage_line(module.coverage),
    }
    if module.calls:
        facts["called"] = f"{len(module.calls)}×: {', '.join(map(formatting.name, module.calls))}"
    return Facts(facts)


# What `adopt` found in a file of another exporter.

_ROOTS_SHOWN = 10


def adoption_document(adoption: Adoption) -> Document:
    """Return the answer of `adopt`."""
    untagged = is_untagged(adoption.coverage)
    evidence = (f"{formatting.count(number)} from {kind}" for kind, number in adoption.evidence.items())
    facts: dict[str, Text] = {
        "nodes by module": coverage_line(adoption.coverage),
        "evidence": ", ".join(evidence) or "none",
        "modules with nodes": formatting.count(adoption.modules),
    }
    shown = () if untagged else adoption.root_nodes[:_ROOTS_SHOWN]
    lines = [
        f"{formatting.name(node.op_type)} {formatting.name(node.name)}: {formatting.one_line(node.reason)}"
        for node in shown
    ]
    if len(adoption.root_nodes) > len(shown) and not untagged:
        lines.append(f"and {formatting.count(len(adoption.root_nodes) - len(shown))} more; --json lists them all")
    return Document(
        title=adoption.source,
        head=(Facts(facts), Notes([*lines, *map(formatting.one_line, adoption.notes)])),
        blocks=(),
        sentence=Span(adoption_sentence(adoption), Tone.STRONG),
    )


def adoption_sentence(adoption: Adoption) -> str:
    """Return how many nodes have a module, in one line."""
    known = adoption.coverage.direct + adoption.coverage.inherited
    nodes = f"{formatting.count(known)} of {formatting.plural(adoption.nodes, 'node')} with a module"
    return nodes + (", nothing written" if adoption.output is None else f" → {adoption.output}")


# Opportunities: what each pass would rewrite, and what it would skip for which reason.


def opportunities_document(opportunities: Opportunities, view: View) -> Document:
    """Return the answer of `inspect --opportunities`."""
    return Document(
        title=opportunities.path or "model in memory",
        blocks=(_passes(opportunities),)
        if view.verbose
        else (main_passes(opportunities.passes, PASSES_LISTED), skipped_section(opportunities.passes)),
        sentence=Span(opportunities_sentence(opportunities), Tone.STRONG),
    )


def opportunities_sentence(opportunities: Opportunities) -> str:
    """Return how many nodes an optimization would leave, and how many matches it would skip."""
    before, after = opportunities.before.nodes, opportunities.after.nodes
    counts = formatting.from_to(formatting.count(before), formatting.count(after))
    return (
        f"optimizing for {formatting.name(opportunities.target)} would give {counts} nodes "
        f"({formatting.percent(before, after)}); "
        f"{formatting.count(opportunities.left)} of "
        f"{formatting.plural(opportunities.found, 'match', 'matches')} skipped"
    )


def _passes(opportunities: Opportunities) -> Section:
    rows: list[Row] = []
    for record in opportunities.passes:
        if not record.rewrites and not record.refusals:
            continue
        count = formatting.count(record.rewrites) if record.rewrites else "·"
        ordered = sorted(record.modules, key=lambda path: (-record.modules[path], path))  # most rewrites first
        where = ", ".join(map(formatting.module, ordered)) or "·"
        rows.append(Row((formatting.name(record.name), count, formatting.change(record.nodes), where)))
        rows += map(skipped_row, record.refusals)
    return table_section("Passes", ("pass", "would rewrite", "nodes", text_column("where")), rows)
