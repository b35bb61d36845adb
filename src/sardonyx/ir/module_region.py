"""The nodes that a module consists of, the values that cross its boundary (decision 0005), and its extraction.

An extracted module is a model of its own: its nodes, the constants they need, and typed inputs and outputs.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.errors import ModelError, UsageError
from sardonyx.ir.facts import Dataflow, Dependence, Facts
from sardonyx.ir.io import unmodeled_fields
from sardonyx.ir.origins import origins, write
from sardonyx.ir.scopes import bodies, declared_shape, is_constant, label, nodes_inside
from sardonyx.ir.shapes import expr
from sardonyx.records.provenance import ROOT, Hierarchy, Origins, is_within, lineage, lowest_common, merge, module_of


class Flow:
    """The main graph of one model with origins attached: which node reads which value, and which values are only sizes.

    A node with bodies (If, Loop, Scan) includes everything inside: it reads the values that its bodies capture, and has
    the origins of their nodes. The model is not changed.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.nodes = tuple(model.graph)
        self.outputs = frozenset(model.graph.outputs)
        self.reads: dict[ir.Node, tuple[ir.Value, ...]] = {}
        self.readers: dict[ir.Value, list[ir.Node]] = defaultdict(list)
        self.origins: dict[ir.Node, Origins] = {}
        self._flow = Dataflow()
        for node in self.nodes:
            body_nodes = list(nodes_inside(node))
            self.reads[node] = tuple(dict.fromkeys(_read(node)))
            self.origins[node] = merge(map(origins, (node, *body_nodes))) if body_nodes else origins(node)
            for value in self.reads[node]:
                self.readers[value].append(node)
            if not node.domain:  # results of other operators count as data
                self._flow.visit(node)

    @functools.cached_property
    def facts(self) -> Facts:
        """Types and shapes, inferred where the file declares none."""
        facts = Facts(self.model)
        facts.infer()
        return facts

    def dims(self, value: ir.Value) -> tuple[int | str | None, ...] | None:
        """Return the dimensions that follow from the graph, or else those that the file declares."""
        declared = declared_shape(value)
        shape = self.facts.shape(value)
        if shape is None:
            return declared
        inferred = tuple(map(expr.declared, shape))
        if declared is None or len(declared) != len(inferred):
            return inferred
        return tuple(declared_dim if dim is None else dim for dim, declared_dim in zip(inferred, declared, strict=True))

    def is_size(self, value: ir.Value) -> bool:
        """Return whether a value depends only on constants and on the sizes of other values."""
        return self._flow.of(value) is not Dependence.DATA

    def only_sizes(self, node: ir.Node) -> bool:
        """Return whether all results of a node are constants and sizes."""
        return all(map(self.is_size, node.outputs))

    def above(self, start: Iterable[ir.Node]) -> set[ir.Node]:
        """Return all nodes whose results these nodes depend on."""
        return _reach(start, lambda node: filter(None, (value.producer() for value in self.reads[node])))

    def below(self, start: Iterable[ir.Node]) -> set[ir.Node]:
        """Return all nodes that depend on results of these nodes."""
        return _reach(start, self.users)

    def users(self, node: ir.Node) -> Iterator[ir.Node]:
        """Return the nodes that read the results of a node."""
        return (reader for output in node.outputs for reader in self.readers.get(output, ()))


def is_fixed(value: ir.Value) -> bool:
    """Return whether a value is an initializer that no caller can override."""
    return value.is_initializer() and not value.is_graph_input()


def _reach(start: Iterable[ir.Node], step: Callable[[ir.Node], Iterable[ir.Node]]) -> set[ir.Node]:
    reached: set[ir.Node] = set()
    pending = list(start)
    while pending:
        for node in step(pending.pop()):
            if node not in reached:
                reached.add(node)
                pending.append(node)
    return reached


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node reads, then those that its bodies read from outside."""
    yield from (value for value in node.inputs if value is not None)
    for _, body in bodies(node):
        own = {*body.inputs, *body.initializers.values(), *(value for inner in body for value in inner.outputs)}
        for inner in body:
            yield from (value for value in _read(inner) if value not in own)


_NODES_SHOWN = 5  # nodes in a message
_SLICING_SHAPE = 15  # the opset since which Shape can return a slice of the dimensions


class StandIn(Struct, frozen=True):
    """An input of the extracted model whose dimensions `start:end` are those that a Shape outside of it returns."""

    value: ir.Value
    start: int
    end: int
    sliced: bool  # whether it has other dimensions too


class Region(Struct, frozen=True):
    """The nodes of a module, the nodes outside that are copied with them, and the values on the boundary."""

    inside: frozenset[ir.Node]
    repeated: frozenset[ir.Node]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    stand_ins: Mapping[ir.Node, StandIn] = field(default_factory=dict[ir.Node, StandIn])  # of repeated Shapes


def calls_of(flow: Flow, module: str) -> list[str]:
    """Return the path of each call of a module, in order; calls after the first one are marked."""
    depth = module.count(".") + 1
    paths = {".".join(origin.split(".")[:depth]) for origins in flow.origins.values() for origin in origins}

    def marks(path: str) -> list[int]:
        return [int(part.rpartition("@")[2]) if "@" in part else 0 for part in path.split(".")]

    return sorted((path for path in paths if module_of(path) == module), key=marks) if module != ROOT else [ROOT]


def _widened(flow: Flow, module: str, *, exact: bool) -> tuple[str, frozenset[ir.Node], list[ir.Node]]:
    """Return the nearest enclosing module that can be extracted, its nodes, and the nodes that widened it."""
    causes: dict[ir.Node, None] = {}
    while True:
        inside, straddling = members(flow, module)
        if not straddling:
            return module, inside, list(causes)
        if exact:
            raise ModelError(
                f"{module} cannot be extracted exactly: {_shown(straddling)} also does the work of other modules",
                hint="without `exact` the nearest enclosing module is extracted; the unoptimized file has it separate",
            )
        causes.update(dict.fromkeys(straddling))
        wider = lowest_common([module, *(origin for node in straddling for origin in flow.origins[node])])
        module = wider if wider != module and is_within(module, wider) else module.rpartition(".")[0]


def _shown(nodes: Sequence[ir.Node]) -> str:
    return ", ".join(map(label, nodes[:_NODES_SHOWN])) + (" …" if len(nodes) > _NODES_SHOWN else "")


def _refusal(flow: Flow, place: str, straddling: Sequence[ir.Node]) -> ModelError:
    """Return the error for a module that cannot be extracted, which names the nearest one that can."""

    def distance(path: str) -> tuple[int, int, str]:
        shared = sum(one == other for one, other in zip(path.split("."), place.split("."), strict=False))
        return -shared, path.count("."), path

    modules = {path for origins in flow.origins.values() for origin in origins for path in lineage(origin)[1:]}
    nearest = sorted(modules, key=distance)
    other = next((path for path in nearest if not is_within(place, path) and not members(flow, path)[1]), None)
    suggestion = f"{module_of(other)} can be extracted; " if other is not None else ""
    return ModelError(
        f"only the whole model contains {place}: {_shown(straddling)} also does the work of other modules",
        hint=f"{suggestion}optimizing with `keep_modules={module_of(place)}` keeps it separate",
    )


def members(flow: Flow, module: str) -> tuple[frozenset[ir.Node], list[ir.Node]]:
    """Return the nodes of a module, and the nodes that do its work together with the work of others.

    A mixed node (some origins inside, some outside) is accepted if the module depends on it and it depends on the
    module (it joins the module), or if the module depends on it and others read it too (it becomes an input).
    """
    if module == ROOT:
        return frozenset(flow.nodes), []
    inside: set[ir.Node] = set()
    mixed: list[ir.Node] = []
    for node, paths in flow.origins.items():
        within = [is_within(path, module) for path in paths]
        if within and all(within):
            inside.add(node)
        elif any(within) and not flow.only_sizes(node):
            mixed.append(node)
    if not mixed:
        return frozenset(inside), []
    needed, fed = flow.above(inside), flow.below(inside)
    private: set[ir.Node] = set()  # mixed nodes whose results only the module reads
    for node in reversed(mixed):
        read_outside = any(user not in inside and user not in private for user in flow.users(node))
        if not read_outside and flow.outputs.isdisjoint(node.outputs):
            private.add(node)
    shared = {node for node in mixed if node in needed and (node in fed or node not in private)}
    return frozenset(inside | (shared & fed)), [node for node in mixed if node not in shared]


def _bounded(flow: Flow, inside: frozenset[ir.Node]) -> Region:
    """Return the region of these nodes: the values they read from outside, and those that are read outside.

    Constants are not inputs.
    """
    ordered = [node for node in flow.nodes if node in inside]
    produced = dict.fromkeys(output for node in ordered for output in node.outputs)
    needed = dict.fromkeys(value for node in ordered for value in flow.reads[node] if value not in produced)
    tensors = [value for value in needed if not flow.is_size(value)]
    sizes = _Sizes(flow, {*produced, *tensors}, tensors)
    inputs = [value for value in needed if not is_fixed(value) and not (flow.is_size(value) and sizes.repeat(value))]
    results = [value for node in ordered if not is_constant(node) for value in node.outputs if value.name]
    outputs = [value for value in results if _leaves(flow, value, inside, sizes.repeated)]
    ends = [value for value in results if not flow.readers.get(value)]
    return Region(
        inside, frozenset(sizes.repeated), tuple(inputs), tuple(outputs or ends or produced), dict(sizes.stand_ins)
    )


class _Sizes:
    """Copies arithmetic on sizes into a module, as far as the values and inputs of the module determine the sizes."""

    def __init__(self, flow: Flow, available: set[ir.Value], tensors: Sequence[ir.Value]) -> None:
        self._flow, self._available, self._tensors = flow, available, tensors
        self._slicing = flow.model.opset_imports.get("", 0) >= _SLICING_SHAPE
        self.repeated: set[ir.Node] = set()
        self.stand_ins: dict[ir.Node, StandIn] = {}

    def repeat(self, value: ir.Value) -> bool:
        """Copy the nodes that compute a size and return True; if they need other values, the size becomes an input."""
        nodes: set[ir.Node] = set()
        stand_ins: dict[ir.Node, StandIn] = {}
        pending = [value]
        while pending:
            operand = pending.pop()
            producer = operand.producer()
            if operand in self._available or is_fixed(operand) or producer in nodes:
                continue
            if producer is None or not self._flow.only_sizes(producer):
                self._available.add(value)
                return False
            nodes.add(producer)
            stand_in = self._stand_in(producer)
            if stand_in is None:
                pending.extend(self._flow.reads[producer])
            else:
                stand_ins[producer] = stand_in
        self.repeated |= nodes
        self.stand_ins |= stand_ins
        return True

    def _stand_in(self, node: ir.Node) -> StandIn | None:
        """Return a stand-in for the operand of a Shape that is not available, otherwise None.

        That is an input of the extracted model which has the same dimensions in a row.
        """
        measured = node.inputs[0] if node.op_type == "Shape" else None
        if measured is None or measured in self._available or self._flow.is_size(measured):
            return None
        start, end = node.attributes.get("start"), node.attributes.get("end")
        bounds = slice(None if start is None else start.as_int(), None if end is None else end.as_int())
        part = (self._flow.dims(measured) or ())[bounds]
        if not part or None in part:
            return None
        for tensor in self._tensors:
            dims = self._flow.dims(tensor) or ()
            for first in range(len(dims) - len(part) + 1):
                sliced = len(dims) > len(part)
                if dims[first : first + len(part)] == part and (self._slicing or not sliced):
                    return StandIn(tensor, first, first + len(part), sliced)
        return None


def _leaves(flow: Flow, value: ir.Value, inside: frozenset[ir.Node], repeated: set[ir.Node]) -> bool:
    """Return whether a value is needed outside; for a size that is computed again inside, whether its results are."""
    pending, visited = [value], {value}
    while pending:
        current = pending.pop()
        if current in flow.outputs:
            return True
        for reader in flow.readers.get(current, ()):
            if reader in inside:
                continue
            if reader not in repeated:
                return True
            pending.extend(output for output in reader.outputs if output not in visited)
            visited.update(reader.outputs)
    return False


class Extract(Struct, frozen=True, eq=False):
    """A module as a model, and how it was extracted."""

    model: ir.Model
    path: str  # the extracted module, after widening; marked if this is not its first call
    asked: str  # the requested module
    call: int  # which call of that module
    calls: int  # how often it is called
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    straddling: tuple[str, ...]  # nodes because of which it was widened
    notes: tuple[str, ...]


def extract(model: ir.Model, hierarchy: Hierarchy, path: str, *, call: int = 0, exact: bool = False) -> Extract:
    """Return the module at an instance path as a model of its own.

    Args:
        model: A sorted model whose nodes have their origins attached; it is not changed.
        hierarchy: The modules that its tags describe.
        path: The instance path of the module; the empty path is the whole model.
        call: The index of the call, if the module is called more than once.
        exact: Refuse to extract a wider module than requested.

    Raises:
        UsageError: if the module is not called that often.
        ModelError: if it owns no node, if only the whole model contains it, or with `exact` if a node does its work and
            that of others.
    """
    flow = Flow(model)
    calls = calls_of(flow, path)
    if call >= max(len(calls), 1):
        times = "once" if len(calls) < 2 else f"{len(calls)} times"
        raise UsageError(f"{path or 'the model'} has no call {call}: it was called {times}", hint="calls count from 0")
    notes = () if len(calls) < 2 else (f"{path} is called {len(calls)} times: this is call {call}",)
    requested = calls[call] if calls else path
    module, inside, straddling = _widened(flow, requested, exact=exact)
    if straddling and all(node in inside or flow.only_sizes(node) for node in flow.nodes):
        raise _refusal(flow, requested, straddling)
    if not inside:
        raise ModelError(
            f"{path or 'the model'} owns no node of this model",
            hint="it only contains other modules or is never called; `sardonyx inspect` shows which modules own nodes",
        )
    calls = calls_of(flow, module_of(module))
    whole = Region(frozenset(flow.nodes), frozenset(), tuple(model.graph.inputs), tuple(model.graph.outputs))
    extracted = _built(flow, hierarchy, whole if module == ROOT else _bounded(flow, inside), module)
    return Extract(
        extracted,
        module,
        path,
        calls.index(module),
        len(calls),
        tuple(value.name or "" for value in extracted.graph.inputs),
        tuple(value.name or "" for value in extracted.graph.outputs),
        tuple(map(label, straddling)),
        notes,
    )


def _built(flow: Flow, hierarchy: Hierarchy, region: Region, module: str) -> ir.Model:
    """Return a model of copies of the nodes, which shares the tensors of the source."""
    model = flow.model
    nodes = [node for node in flow.nodes if node in region.inside or node in region.repeated]
    operands = dict.fromkeys(value for node in nodes for value in flow.reads[node])
    constants = [value for value in (*operands, *region.outputs) if value.is_initializer()]
    measured = dict.fromkeys(
        value for node in region.stand_ins for value in flow.reads[node] if value not in region.inputs
    )
    graph = ir.GraphView(
        (*region.inputs, *measured),  # values that only Shapes read are removed below
        region.outputs,
        nodes=nodes,
        initializers=list(dict.fromkeys(constants)),
        opset_imports=dict(model.opset_imports),
        name=".".join(filter(None, (model.graph.name, module))),
    ).clone()
    copies, inputs = dict(zip(nodes, graph, strict=True)), dict(zip(region.inputs, graph.inputs, strict=False))
    for node, stand_in in region.stand_ins.items():  # Shapes read inputs instead of values outside
        copies[node].replace_input_with(0, inputs[stand_in.value])
        copies[node].attributes.clear()
        if stand_in.sliced:
            copies[node].attributes.add(ir.AttrInt64("start", stand_in.start))
            copies[node].attributes.add(ir.AttrInt64("end", stand_in.end))
    del graph.inputs[len(region.inputs) :]
    _declare(zip((*region.inputs, *region.outputs), (*graph.inputs, *graph.outputs), strict=True), flow)
    is_external = unmodeled_fields.meta(model.graph).get(unmodeled_fields.EXTERNAL)
    unmodeled_fields.meta(graph)[unmodeled_fields.EXTERNAL] = is_external
    extracted = ir.Model(
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
    write(extracted, hierarchy)
    return extracted


def _declare(boundary: Iterable[tuple[ir.Value, ir.Value]], flow: Flow) -> None:
    """Set the type and shape of every input and output of the extracted model."""
    declared = {*flow.model.graph.inputs, *flow.model.graph.outputs}
    for value, copy in boundary:
        if value in declared and value.shape is not None:
            continue
        if value.type is None or isinstance(value.type, ir.TensorType):
            dtype = flow.facts.dtype(value)
            if dtype is None:
                raise ModelError(
                    f"the type of '{value.name}' is unknown, but it would be an input or output",
                    hint="extract a wider module, or declare the type in the file",
                )
            copy.type = ir.TensorType(dtype)
        shape = flow.dims(value)
        copy.shape = None if shape is None else ir.Shape(shape)


def _functions(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Function]:
    """Return copies of the functions that these nodes call, directly or indirectly."""
    called: dict[ir.OperatorIdentifier, ir.Function] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        pending.extend(inner for _, body in bodies(node) for inner in body)
        function = model.functions.get(node.op_identifier())
        if function is not None and node.op_identifier() not in called:
            called[node.op_identifier()] = function
            pending.extend(function)
    return [function.clone() for key, function in model.functions.items() if key in called]
