"""An Inspection as text: what the model is, its interface, its operators and its module tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sardonyx.records.inspection import (
    Coverage,
    Family,
    Fingerprint,
    Inspection,
    Module,
    ModuleInspection,
    OpUse,
    Port,
    RootNode,
    Weight,
)
from sardonyx.reporting import formatting
from sardonyx.reporting.module_rows import module_label, module_rows
from sardonyx.reporting.name_groups import grouped
from sardonyx.reporting.options import View
from sardonyx.reporting.table import Column, Line, table, text_column


def render_inspection(found: Inspection, view: View | None = None) -> str:
    """The whole answer of `inspect`; its last line is the sentence."""
    view = view or View()
    blocks = [
        _facts(found, view),
        interface(found.inputs, found.outputs, view),
        _dynamic(found, view),
        _inside(found, view),
        operators(found.ops, view),
        module_table(found.modules, view),
        _tied(found, view),
        _root_nodes(found, view),
        [view.style.strong(inspection_sentence(found))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def inspection_sentence(found: Inspection) -> str:
    """The model in one line."""
    opset = found.opsets.get("", found.opsets.get("ai.onnx"))
    parts = [
        formatting.plural(found.counts.nodes, "node"),
        formatting.plural(found.parameters, "parameter"),
        formatting.size(found.file_bytes or found.counts.bytes),
        "no standard opset" if opset is None else f"opset {opset}",
    ]
    free = dict.fromkeys(dim or "?" for port in found.inputs for dim in port.shape or () if not isinstance(dim, int))
    if free:  # what a caller may choose; names that only outputs have are the exporter's
        parts.append("dynamic " + ", ".join(map(formatting.name, free)))
    return ", ".join(parts)


def _facts(found: Inspection, view: View) -> list[str]:
    counts = found.counts
    opsets = ", ".join(f"{formatting.name(domain) or 'ai.onnx'} {version}" for domain, version in found.opsets.items())
    facts = {
        "family": family_line(found.fingerprint),
        "opsets": opsets,
        "IR version": str(found.ir_version),
        "producer": formatting.name(found.producer) or "unknown",
        "file": formatting.size(found.file_bytes) if found.file_bytes else "in memory",
        "weights": f"{formatting.size(counts.bytes)} in {formatting.plural(counts.initializers, 'initializer')}",
        "parameters": formatting.count(found.parameters),
        "nodes": f"{formatting.count(counts.nodes)}, and {formatting.plural(counts.constants, 'Constant')} apart",
        "nodes by module": coverage_line(found.coverage),
    }
    if view.verbose:
        facts |= {formatting.name(key): formatting.name(value, 100) for key, value in found.metadata.items()}
    title = formatting.visible(found.path) if found.path else formatting.name(found.graph) or "model in memory"
    return titled(title, facts, view)


def family_name(family: Family) -> str:
    """A family as prose has it."""
    return {Family.VISION_TRANSFORMER: "vision transformer", Family.MLP: "perceptron (MLP)"}.get(family, family.value)


def family_line(found: Fingerprint) -> str:
    """What kind of network it is, how sure that is, and why."""
    return f"{family_name(found.family)} ({100 * found.confidence:.0f} % sure): {', '.join(found.evidence)}"


def titled(title: str, facts: Mapping[str, str], view: View) -> list[str]:
    """A heading, and facts below it."""
    width = max(map(len, facts))
    return [view.style.strong(title), *(f"  {key:<{width}}  {value}" for key, value in facts.items())]


def coverage_line(found: Coverage) -> str:
    """How the modules of the nodes are known, root ones never passed off as known."""
    own = f" ({formatting.count(found.own)} of them in the model's own forward)" if found.own else ""
    return (
        f"{formatting.count(found.direct)} direct{own}, {formatting.count(found.inherited)} inherited, "
        f"{formatting.count(found.root)} at the root"
    )


def interface(inputs: Iterable[Port], outputs: Iterable[Port], view: View) -> list[str]:
    """What goes in and what comes out."""
    columns = (text_column(""), text_column("name"), text_column("type"), text_column("shape"))
    lines = [
        Line((kind, label, *_port(port)))
        for kind, ports in (("input", inputs), ("output", outputs))
        for label, (port, *_) in grouped(ports, lambda port: port.name, _port)
    ]
    return [view.style.strong("Interface"), *table(columns, lines, view.style)] if lines else []


def _port(port: Port) -> tuple[str, str]:
    """What is shown of an input or output besides its name."""
    if port.shape is None:
        shape = "any rank"
    else:
        shape = f"[{', '.join('?' if dim is None else formatting.name(str(dim)) for dim in port.shape)}]"
    return formatting.name(port.type), shape + (" has a default" if port.overridable else "")


def _dynamic(found: Inspection, view: View) -> list[str]:
    if not found.dynamic_dims:
        return []
    columns = (text_column("dim"), text_column("where"))
    lines: list[Line] = []
    for dim in found.dynamic_dims:
        where = _places(dim.where)
        places = where if view.verbose else where[:6]
        more = f" and {len(where) - len(places)} more" if len(places) < len(where) else ""
        lines.append(Line((formatting.name(dim.name), ", ".join(places) + more)))
    return [view.style.strong("Dynamic dims"), *table(columns, lines, view.style)]


def _places(where: Iterable[str]) -> list[str]:
    """Axes of inputs and outputs, given as name[axis]."""
    parts = {place: place.rpartition("[") for place in where}
    found = grouped(parts, lambda place: parts[place][0], lambda place: parts[place][2])
    return [f"{label}[{formatting.name(parts[first][2])}" for label, (first, *_) in found]


def _inside(found: Inspection, view: View) -> list[str]:
    """Functions and control-flow bodies, where there are any."""
    lines = [
        f"  function {formatting.name(f.domain)}.{formatting.name(f.name)}: {formatting.plural(f.nodes, 'node')},"
        f" called {f.calls}×"
        for f in found.functions
    ]
    lines += [
        f"  body {formatting.name(body.attribute)} of {formatting.name(body.op_type)} {formatting.name(body.node)}: "
        + formatting.plural(body.nodes, "node")
        for body in found.bodies
    ]
    return [view.style.strong("Functions and bodies"), *lines] if lines else []


def operators(uses: Iterable[OpUse], view: View) -> list[str]:
    """How often each operator occurs."""
    columns = (text_column("operator"), Column("nodes"))
    lines = [Line((operator_name(use.domain, use.op_type), formatting.count(use.count))) for use in uses]
    return [view.style.strong("Operators"), *table(columns, lines, view.style)] if lines else []


def operator_name(domain: str, op_type: str) -> str:
    """An operator, with its domain where it is not ONNX's own."""
    return (f"{formatting.name(domain)}::" if domain else "") + formatting.name(op_type)


def module_table(modules: Sequence[Module], view: View, top: str = "") -> list[str]:
    """The tree of modules from `top` down, with what each owns and holds."""
    if not modules:
        return []
    columns = (
        text_column("module"),
        Column("own nodes"),
        Column("nodes"),
        Column("own parameters"),
        Column("parameters"),
        text_column("kind"),
    )
    lines = [
        Line(
            (
                module_label(row),
                formatting.count(row.own[0]),
                formatting.count(row.total[0]),
                formatting.count(row.own[1]),
                formatting.count(row.total[1]),
                formatting.name(row.branch.tag),
            )
        )
        for row in module_rows(((m.path, m.tag, (m.nodes, m.parameters)) for m in modules), view, top)
    ]
    return [view.style.strong("Modules"), *table(columns, lines, view.style)]


def weight_table(heading: str, weights: Iterable[Weight], view: View) -> list[str]:
    """Weights, and the modules that read each."""
    columns = (text_column("weight"), text_column("type"), text_column("shape"), text_column("read by"))
    lines = [
        Line(
            (
                formatting.name(w.name),
                formatting.name(w.type),
                str(list(w.shape)),
                ", ".join(map(module_name, w.modules)),
            )
        )
        for w in weights
    ]
    return [view.style.strong(heading), *table(columns, lines, view.style)] if lines else []


def module_name(path: str) -> str:
    """An instance path; the model itself has an empty one."""
    return formatting.name(path) or "(model)"


def _tied(found: Inspection, view: View) -> list[str]:
    return weight_table("Weights of several modules", found.tied, view) if view.verbose else []


def _root_nodes(found: Inspection, view: View) -> list[str]:
    return root_table(found.root_nodes, view) if view.verbose else []


def root_table(nodes: Iterable[RootNode], view: View) -> list[str]:
    """Nodes that no module could be found for, and why."""
    columns = (text_column("node"), text_column("operator"), text_column("why"))
    lines = [Line((formatting.name(n.name), formatting.name(n.op_type), formatting.visible(n.reason))) for n in nodes]
    return [view.style.strong("Nodes at the root"), *table(columns, lines, view.style)] if lines else []


# A ModuleInspection as text: one module, what it takes and gives, what is in it, what it shares.

_WEIGHTS = 12  # rows that still read at a glance


def render_module(found: ModuleInspection, view: View | None = None) -> str:
    """The whole answer of `inspect --module`; its last line is the sentence."""
    view = view or View()
    tied = [weight for weight in found.weights if _is_shared(weight.modules, found.path)]
    shown = found.weights if view.verbose or len(found.weights) <= _WEIGHTS else ()
    blocks = [
        _module_facts(found, view),
        interface(found.inputs, found.outputs, view),
        operators(found.ops, view),
        module_table(found.modules, view, found.path),
        weight_table("Weights", shown, view),
        weight_table("Weights that other modules read too", tied, view),
        _shared_nodes(found, view),
        [view.style.strong(module_sentence(found))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def module_sentence(found: ModuleInspection) -> str:
    """The module in one line."""
    parts = (
        formatting.plural(found.nodes, "node"),
        formatting.plural(found.parameters, "parameter"),
        formatting.plural(len(found.inputs), "input"),
        formatting.plural(len(found.outputs), "output"),
    )
    return f"{module_name(found.path)}: {', '.join(parts)}"


def _module_facts(found: ModuleInspection, view: View) -> list[str]:
    facts = {
        "model": formatting.visible(found.model),
        "path": module_name(found.path),
        "class": formatting.name(found.kind or "unknown", 100),
        "parameters": formatting.count(found.parameters),
        "nodes": f"{formatting.count(found.nodes)}, and {formatting.plural(found.constants, 'Constant')} apart",
        "nodes by module": coverage_line(found.coverage),
    }
    if found.calls:
        facts["called"] = f"{len(found.calls)}×: {', '.join(map(formatting.name, found.calls))}"
    return titled(formatting.visible(found.tag), facts, view)


def _is_shared(modules: tuple[str, ...], path: str) -> bool:
    return path != "" and any(module != path and not module.startswith(path + ".") for module in modules)


def _shared_nodes(found: ModuleInspection, view: View) -> list[str]:
    if not found.shared_nodes:
        return []
    names = found.shared_nodes if view.verbose else found.shared_nodes[:5]
    more = f" and {len(found.shared_nodes) - len(names)} more" if len(names) < len(found.shared_nodes) else ""
    listed = "  " + ", ".join(map(formatting.name, names)) + more
    return [view.style.strong("Nodes shared with other modules, which own them"), listed]
