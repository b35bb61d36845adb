"""Cuts one module out of a model as a model of its own: its nodes, the constants they need, and a typed boundary.

Which nodes belong, what becomes an input, and when a cut is widened is decision 0005. The model that is cut stays as it
is, and the weights stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.errors import ModelError, UsageError
from sardonyx.graph.facts import Dim, Facts
from sardonyx.graph.flow import Flow, is_fixed
from sardonyx.graph.origins import write
from sardonyx.graph.scopes import bodies, is_constant, label
from sardonyx.provenance import ROOT, Hierarchy, is_within, lowest_common, module_of

_MADE_UP = "unk__"  # how onnx's inference names sizes that nobody named
_SHOWN = 5  # nodes in a message


@dataclass(frozen=True, slots=True, eq=False)
class Extract:
    """A module as a model, and how it was cut."""

    model: ir.Model
    path: str  # the module that was cut out, after widening; marked where this is not its first call
    asked: str  # the module that was asked for
    call: int  # which call of that module
    calls: int  # how often it is called
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    straddling: tuple[str, ...]  # nodes that made the cut wider
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Region:
    """The nodes of a module, and those that are repeated beside them; in the order of the graph."""

    inside: frozenset[ir.Node]
    repeated: frozenset[ir.Node]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


def extract(
    model: ir.Model, hierarchy: Hierarchy, path: str, *, call: int = 0, exact: bool = False, facts: Facts | None = None
) -> Extract:
    """The module at an instance path as a model of its own.

    Args:
        model: A sorted model whose nodes know their origins; it is not changed.
        hierarchy: What its tags say.
        path: The module's instance path; the empty path is the whole model.
        call: Which call of the module, where it was called more than once.
        exact: Refuse to cut a wider module out than was asked for.
        facts: What was already inferred about the model.

    Raises:
        UsageError: The module was not called that often.
        ModelError: It owns no node, or with `exact` a node does its work and that of others.
    """
    flow = Flow(model)
    calls = _calls(flow, path)
    if call >= max(len(calls), 1):
        times = "once" if len(calls) < 2 else f"{len(calls)} times"
        raise UsageError(f"{path or 'the model'} has no call {call}: it was called {times}", hint="calls count from 0")
    notes = () if len(calls) < 2 else (f"{path} is called {len(calls)} times: this is call {call}",)
    place = calls[call] if calls else path
    place, inside, straddling = _settle(flow, place, exact=exact)
    if not inside:
        raise ModelError(
            f"{path or 'the model'} owns no node of this model",
            hint="it only holds other modules or was never called; `sardonyx inspect` shows which modules own nodes",
        )
    calls = _calls(flow, module_of(place))
    region = _bounded(flow, inside) if place != ROOT else _whole(model, flow)
    made = _build(model, hierarchy, region, flow, place, facts)
    return Extract(
        made,
        place,
        path,
        calls.index(place),
        len(calls),
        tuple(value.name or "" for value in made.graph.inputs),
        tuple(value.name or "" for value in made.graph.outputs),
        tuple(map(label, straddling)),
        notes,
    )


def _calls(flow: Flow, module: str) -> list[str]:
    """The module's path with the marks of each of its calls, in order; without marks for the model itself."""
    depth = module.count(".") + 1
    found = {".".join(origin.split(".")[:depth]) for origins in flow.origins.values() for origin in origins}
    return sorted((path for path in found if module_of(path) == module), key=_marks) if module != ROOT else [ROOT]


def _marks(path: str) -> list[int]:
    return [int(part.rpartition("@")[2]) if "@" in part else 0 for part in path.split(".")]


def _settle(flow: Flow, place: str, *, exact: bool) -> tuple[str, frozenset[ir.Node], list[ir.Node]]:
    """The nearest module that can be cut out, its nodes, and the nodes that made it wider."""
    met: dict[ir.Node, None] = {}
    while True:
        inside, straddling = _inside(flow, place)
        if not straddling:
            return place, inside, list(met)
        if exact:
            names = ", ".join(map(label, straddling[:_SHOWN])) + (" …" if len(straddling) > _SHOWN else "")
            raise ModelError(
                f"{place} cannot be cut out exactly: {names} also does the work of other modules",
                hint="without --exact the nearest module that contains it is taken; the unoptimized file has it apart",
            )
        met.update(dict.fromkeys(straddling))
        wider = lowest_common([place, *(origin for node in straddling for origin in flow.origins[node])])
        place = wider if wider != place and is_within(place, wider) else place.rpartition(".")[0]


def _inside(flow: Flow, place: str) -> tuple[frozenset[ir.Node], list[ir.Node]]:
    """The nodes that do the module's work, and those that do it only together with others' work."""
    if place == ROOT:
        return frozenset(flow.nodes), []
    inside: set[ir.Node] = set()
    mixed: list[ir.Node] = []
    for node, origins in flow.origins.items():
        within = [is_within(origin, place) for origin in origins]
        if within and all(within):
            inside.add(node)
        elif any(within) and not flow.only_sizes(node):
            mixed.append(node)
    if not mixed:
        return frozenset(inside), []
    needed, fed = flow.above(inside), flow.below(inside)
    private: set[ir.Node] = set()  # what the module alone reads
    for node in reversed(mixed):
        read_outside = any(user not in inside and user not in private for user in flow.users(node))
        if not read_outside and flow.outputs.isdisjoint(node.outputs):
            private.add(node)
    shared = {node for node in mixed if node in needed and (node in fed or node not in private)}
    return frozenset(inside | (shared & fed)), [node for node in mixed if node not in shared]


def _bounded(flow: Flow, inside: frozenset[ir.Node]) -> _Region:
    """What the nodes need from elsewhere, and what of theirs is needed there; a constant is needed from nobody."""
    ordered = [node for node in flow.nodes if node in inside]
    made = dict.fromkeys(output for node in ordered for output in node.outputs)
    needed = dict.fromkeys(value for node in ordered for value in flow.reads[node] if value not in made)
    had = {*made, *(value for value in needed if not flow.is_size(value))}
    repeated: set[ir.Node] = set()
    inputs: list[ir.Value] = []
    for value in needed:
        if is_fixed(value):
            continue
        chain = _chain(flow, value, had) if flow.is_size(value) else None
        if chain is None:
            had.add(value)
            inputs.append(value)
        repeated |= chain or set()
    results = [value for node in ordered if not is_constant(node) for value in node.outputs if value.name]
    outputs = [value for value in results if _leaves(flow, value, inside, repeated)]
    ends = [value for value in results if not flow.readers.get(value)]
    return _Region(inside, frozenset(repeated), tuple(inputs), tuple(outputs or ends or made))


def _chain(flow: Flow, value: ir.Value, had: set[ir.Value]) -> set[ir.Node] | None:
    """The nodes that compute a size from constants and from what is there; None where something else is needed."""
    nodes: set[ir.Node] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if one in had or is_fixed(one):
            continue
        maker = one.producer()
        if maker is None or not flow.only_sizes(maker):
            return None
        if maker not in nodes:
            nodes.add(maker)
            waiting.extend(flow.reads[maker])
    return nodes


def _leaves(flow: Flow, value: ir.Value, inside: frozenset[ir.Node], repeated: set[ir.Node]) -> bool:
    """Whether a value is needed outside; a size that is computed again inside is no use outside by itself."""
    if value in flow.outputs:
        return True
    outside = [reader for reader in flow.readers.get(value, ()) if reader not in inside]
    return any(
        reader not in repeated or any(_leaves(flow, output, inside, repeated) for output in reader.outputs)
        for reader in outside
    )


def _whole(model: ir.Model, flow: Flow) -> _Region:
    return _Region(frozenset(flow.nodes), frozenset(), tuple(model.graph.inputs), tuple(model.graph.outputs))


def _build(
    model: ir.Model, hierarchy: Hierarchy, region: _Region, flow: Flow, place: str, facts: Facts | None
) -> ir.Model:
    """A model of copies of the nodes; tensors are shared with the source."""
    nodes = [node for node in flow.nodes if node in region.inside or node in region.repeated]
    read = dict.fromkeys(value for node in nodes for value in flow.reads[node])
    constants = [value for value in (*read, *region.outputs) if value.is_initializer()]
    graph = ir.GraphView(
        region.inputs,
        region.outputs,
        nodes=nodes,
        initializers=list(dict.fromkeys(constants)),
        opset_imports=dict(model.opset_imports),
        name=".".join(filter(None, (model.graph.name, place))),
    ).clone()
    _declare(zip((*region.inputs, *region.outputs), (*graph.inputs, *graph.outputs), strict=True), model, facts)
    made = ir.Model(
        graph,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=_functions(model, nodes),
        metadata_props=dict(model.metadata_props),
    )
    write(made, hierarchy)
    return made


def _declare(boundary: Iterable[tuple[ir.Value, ir.Value]], model: ir.Model, facts: Facts | None) -> None:
    """Give every value of the new boundary its type and shape."""
    declared = {*model.graph.inputs, *model.graph.outputs}
    for value, copy in boundary:
        if value in declared and value.shape is not None:
            continue
        if facts is None:
            facts = Facts(model)
            facts.infer()
        if value.type is None or isinstance(value.type, ir.TensorType):
            dtype = facts.dtype(value)
            if dtype is None:
                raise ModelError(
                    f"the type of '{value.name}' is not known, and it would be an input or output",
                    hint="cut a wider module out, or declare the type in the file",
                )
            copy.type = ir.TensorType(dtype)
        shape = _shape(facts, value)
        copy.shape = None if shape is None else ir.Shape(shape)


def _shape(facts: Facts, value: ir.Value) -> list[Dim] | None:
    """What follows from the graph, and where that is silent what the file says."""
    said = None if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    found = facts.shape(value)
    if found is None:
        return said
    follows = [None if isinstance(dim, str) and dim.startswith(_MADE_UP) else dim for dim in found]
    if said is None or len(said) != len(follows):
        return follows
    return [other if dim is None else dim for dim, other in zip(follows, said, strict=True)]


def _functions(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Function]:
    """Copies of the functions that these nodes call, and of those that they call in turn."""
    found: dict[ir.OperatorIdentifier, ir.Function] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        waiting.extend(inner for _, body in bodies(node) for inner in body)
        function = model.functions.get(node.op_identifier())
        if function is not None and node.op_identifier() not in found:
            found[node.op_identifier()] = function
            waiting.extend(function)
    return [function.clone() for key, function in model.functions.items() if key in found]
