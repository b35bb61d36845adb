"""An Inspection as text: what the model is, its interface, its operators and its module tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sardonyx.inspection import Coverage, Family, Fingerprint, Inspection, Module, OpUse, Port, RootNode, Weight
from sardonyx.rendering import words
from sardonyx.rendering.modules import module_label, module_rows
from sardonyx.rendering.names import grouped
from sardonyx.rendering.table import Column, Line, table, text_column
from sardonyx.rendering.view import View


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
        words.plural(found.counts.nodes, "node"),
        words.plural(found.parameters, "parameter"),
        words.size(found.file_bytes or found.counts.bytes),
        "no standard opset" if opset is None else f"opset {opset}",
    ]
    free = dict.fromkeys(dim or "?" for port in found.inputs for dim in port.shape or () if not isinstance(dim, int))
    if free:  # what a caller may choose; names that only outputs have are the exporter's
        parts.append("dynamic " + ", ".join(map(words.name, free)))
    return ", ".join(parts)


def _facts(found: Inspection, view: View) -> list[str]:
    counts = found.counts
    opsets = ", ".join(f"{words.name(domain) or 'ai.onnx'} {version}" for domain, version in found.opsets.items())
    facts = {
        "family": family_line(found.fingerprint),
        "opsets": opsets,
        "IR version": str(found.ir_version),
        "producer": words.name(found.producer) or "unknown",
        "file": words.size(found.file_bytes) if found.file_bytes else "in memory",
        "weights": f"{words.size(counts.bytes)} in {words.plural(counts.initializers, 'initializer')}",
        "parameters": words.count(found.parameters),
        "nodes": f"{words.count(counts.nodes)}, and {words.plural(counts.constants, 'Constant')} apart",
        "nodes by module": coverage_line(found.coverage),
    }
    if view.verbose:
        facts |= {words.name(key): words.name(value, 100) for key, value in found.metadata.items()}
    title = words.visible(found.path) if found.path else words.name(found.graph) or "model in memory"
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
    own = f" ({words.count(found.own)} of them in the model's own forward)" if found.own else ""
    return (
        f"{words.count(found.direct)} direct{own}, {words.count(found.inherited)} inherited, "
        f"{words.count(found.root)} at the root"
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
        shape = f"[{', '.join('?' if dim is None else words.name(str(dim)) for dim in port.shape)}]"
    return words.name(port.type), shape + (" has a default" if port.overridable else "")


def _dynamic(found: Inspection, view: View) -> list[str]:
    if not found.dynamic_dims:
        return []
    columns = (text_column("dim"), text_column("where"))
    lines: list[Line] = []
    for dim in found.dynamic_dims:
        where = _places(dim.where)
        places = where if view.verbose else where[:6]
        more = f" and {len(where) - len(places)} more" if len(places) < len(where) else ""
        lines.append(Line((words.name(dim.name), ", ".join(places) + more)))
    return [view.style.strong("Dynamic dims"), *table(columns, lines, view.style)]


def _places(where: Iterable[str]) -> list[str]:
    """Axes of inputs and outputs, given as name[axis]."""
    parts = {place: place.rpartition("[") for place in where}
    found = grouped(parts, lambda place: parts[place][0], lambda place: parts[place][2])
    return [f"{label}[{words.name(parts[first][2])}" for label, (first, *_) in found]


def _inside(found: Inspection, view: View) -> list[str]:
    """Functions and control-flow bodies, where there are any."""
    lines = [
        f"  function {words.name(f.domain)}.{words.name(f.name)}: {words.plural(f.nodes, 'node')}, called {f.calls}×"
        for f in found.functions
    ]
    lines += [
        f"  body {words.name(body.attribute)} of {words.name(body.op_type)} {words.name(body.node)}: "
        + words.plural(body.nodes, "node")
        for body in found.bodies
    ]
    return [view.style.strong("Functions and bodies"), *lines] if lines else []


def operators(uses: Iterable[OpUse], view: View) -> list[str]:
    """How often each operator occurs."""
    columns = (text_column("operator"), Column("nodes"))
    lines = [Line((operator_name(use.domain, use.op_type), words.count(use.count))) for use in uses]
    return [view.style.strong("Operators"), *table(columns, lines, view.style)] if lines else []


def operator_name(domain: str, op_type: str) -> str:
    """An operator, with its domain where it is not ONNX's own."""
    return (f"{words.name(domain)}::" if domain else "") + words.name(op_type)


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
                words.count(row.own[0]),
                words.count(row.total[0]),
                words.count(row.own[1]),
                words.count(row.total[1]),
                words.name(row.branch.tag),
            )
        )
        for row in module_rows(((m.path, m.tag, (m.nodes, m.parameters)) for m in modules), view, top)
    ]
    return [view.style.strong("Modules"), *table(columns, lines, view.style)]


def weight_table(heading: str, weights: Iterable[Weight], view: View) -> list[str]:
    """Weights, and the modules that read each."""
    columns = (text_column("weight"), text_column("type"), text_column("shape"), text_column("read by"))
    lines = [
        Line((words.name(w.name), words.name(w.type), str(list(w.shape)), ", ".join(map(module_name, w.modules))))
        for w in weights
    ]
    return [view.style.strong(heading), *table(columns, lines, view.style)] if lines else []


def module_name(path: str) -> str:
    """An instance path; the model itself has an empty one."""
    return words.name(path) or "(model)"


def _tied(found: Inspection, view: View) -> list[str]:
    return weight_table("Weights of several modules", found.tied, view) if view.verbose else []


def _root_nodes(found: Inspection, view: View) -> list[str]:
    return root_table(found.root_nodes, view) if view.verbose else []


def root_table(nodes: Iterable[RootNode], view: View) -> list[str]:
    """Nodes that no module could be found for, and why."""
    columns = (text_column("node"), text_column("operator"), text_column("why"))
    lines = [Line((words.name(n.name), words.name(n.op_type), words.visible(n.reason))) for n in nodes]
    return [view.style.strong("Nodes at the root"), *table(columns, lines, view.style)] if lines else []
