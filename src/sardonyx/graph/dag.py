"""The operations inside every module of a model and how they are connected, in one document.

A module holds its own operations and those of all modules below it. A `Constant` is embedded: it is inside every module
that reads it, so no module takes one from outside. The cost follows the nodes and how deep they lie; no weight is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import onnx_ir as ir

from sardonyx.graph.attributes import attributes_of, type_name
from sardonyx.graph.layout import Layout
from sardonyx.graph.origins import how, origins, owner
from sardonyx.graph.scopes import bodies, is_constant, label, scopes
from sardonyx.graph.tagged import Source, tagged
from sardonyx.module_graphs import HierarchyDag, Initializer, ModuleGraph, Operation
from sardonyx.provenance import module_of

_Thing = TypeVar("_Thing", bound=Hashable)
Ordered = dict[str, None]  # a set that keeps its order


def dag(source: Source, *, module: str | None = None, include_torch_nn: bool = False) -> HierarchyDag:
    """The graph of every module, all operations and all initializers of a model.

    Args:
        source: A model file, a `ModelProto` or an `onnx_ir.Model`.
        module: Only this module and those below it: a tag, an instance path, or a glob over either.
        include_torch_nn: Torch's own modules (Linear, LayerNorm, …) get a tag and a graph of their own too.

    Raises:
        UsageError: where no module has that name.
    """
    found = tagged(source)
    layout = Layout(found.hierarchy, include_torch_nn)
    graphs = _Graphs(found.model, layout)
    kept = None if module is None else layout.below(layout.select(module))
    return graphs.document(found.name, kept)


class _Names(Generic[_Thing]):
    """A name for everything that no other has: its own, with a number behind it where another had it first."""

    def __init__(self) -> None:
        self.of: dict[_Thing, str] = {}
        self._given: dict[str, int] = {}

    def give(self, thing: _Thing, wanted: str) -> str:
        known = self.of.get(thing)
        if known is not None:
            return known
        name = wanted
        while name in self._given:
            self._given[wanted] += 1
            name = f"{wanted}#{self._given[wanted]}"
        self._given[name] = 1
        self.of[thing] = name
        return name


@dataclass(frozen=True, slots=True)
class _Sets:
    """What a module collects while the nodes are walked."""

    nodes: Ordered
    edges: dict[tuple[str, str], None]
    inputs: Ordered
    outputs: Ordered


class _Graphs:
    """One walk over all nodes, bodies before the nodes that hold them."""

    def __init__(self, model: ir.Model, layout: Layout) -> None:
        self._layout = layout
        self._nodes: _Names[ir.Node] = _Names()
        self._values: _Names[ir.Value] = _Names()
        self._homes: dict[ir.Node, Mapping[str, None]] = {}
        self._holders: dict[ir.Value, ir.Node] = {}  # of what a body is handed
        self._modules: dict[str, _Sets] = defaultdict(lambda: _Sets({}, {}, {}, {}))
        self._operations: dict[str, Operation] = {}
        self._initializers: list[ir.Value] = []
        for scope in scopes(model):
            self._initializers.extend(scope.graph.initializers.values())
            if scope.holder is not None:
                self._holders |= dict.fromkeys(scope.graph.inputs, scope.holder)
            for value in (*scope.graph.inputs, *scope.graph.initializers.values()):
                self._name(value)
        tops = [scope.graph for scope in scopes(model) if scope.holder is None]
        walk = [node for graph in tops for node in _inner_first(graph)]
        for node in sorted(walk, key=is_constant):  # modules are known by what computes in them, in that order
            self._homes[node] = self._home(node)
        for node in walk:
            self._nodes.give(node, label(node))
        for node in walk:
            self._add(node)
        for graph in tops:
            for value in graph.outputs:
                self._leaves(value, {})

    def _name(self, value: ir.Value | None) -> str:
        return "" if value is None else self._values.give(value, value.name or "value")

    def _home(self, node: ir.Node) -> Mapping[str, None]:
        """The tags of all modules a node is inside of."""
        home: Ordered = dict.fromkeys(self._layout.chain(owner(node)))
        if is_constant(node):
            for reader in node.outputs[0].consumers():
                home |= dict.fromkeys(self._layout.chain(owner(reader)))
        return home

    def _add(self, node: ir.Node) -> None:
        name, home = self._nodes.of[node], self._homes[node]
        self._operations[name] = self._operation(node)
        for tag in home:
            self._modules[tag].nodes[name] = None
        for value in node.inputs:
            if value is not None:
                self._connect(value, node)
        for _, body in bodies(node):
            for value in body.outputs:
                if value.producer() is not None:
                    self._connect(value, node)

    def _connect(self, value: ir.Value, reader: ir.Node) -> None:
        """A value is read: an edge inside every module that has both ends, a boundary of one that has only one."""
        maker = value.producer()
        home = self._homes[reader]
        if maker is None:
            if not value.is_initializer():
                holder = self._holders.get(value)
                self._enters(value, home, {} if holder is None else self._homes[holder])
            return
        edge = (self._nodes.of[maker], self._nodes.of[reader])
        for tag in home:
            if tag in self._homes[maker]:
                self._modules[tag].edges[edge] = None
        self._enters(value, home, self._homes[maker])
        if not is_constant(maker):
            self._leaves(value, home)

    def _enters(self, value: ir.Value, home: Iterable[str], made_in: Mapping[str, None]) -> None:
        for tag in home:
            if tag not in made_in:
                self._modules[tag].inputs[self._name(value)] = None

    def _leaves(self, value: ir.Value, read_in: Mapping[str, None]) -> None:
        maker = value.producer()
        for tag in self._homes[maker] if maker is not None else ():
            if tag not in read_in:
                self._modules[tag].outputs[self._name(value)] = None

    def _operation(self, node: ir.Node) -> Operation:
        path = owner(node)
        plain = module_of(path)
        others = [*sorted(origins(node)), *(map(owner, node.outputs[0].consumers()) if is_constant(node) else ())]
        return Operation(
            op_type=node.op_type,
            domain=node.domain,
            inputs=tuple(map(self._name, node.inputs)),
            outputs=tuple(map(self._name, node.outputs)),
            tags=tuple(dict.fromkeys(self._layout.chain(each)[-1] for each in (plain, *others))),
            module_path=plain,
            how=how(node),
            attributes=attributes_of(node, self._nodes.of),
            call=path if path != plain else None,
        )

    def document(self, name: str, kept: set[str] | None) -> HierarchyDag:
        """All of it, or what is inside the modules to keep."""
        children = self._layout.children(among=self._modules)
        modules = {
            tag: self._module(tag, children.get(tag, ()))
            for tag in self._layout.from_the_top(children)
            if tag in self._modules and (kept is None or tag in kept)
        }
        inside = {node: None for graph in modules.values() for node in graph.nodes}
        operations = {node: operation for node, operation in self._operations.items() if node in inside}
        return HierarchyDag(name, modules, operations, self._weights(operations, everything=kept is None))

    def _module(self, tag: str, children: Iterable[str]) -> ModuleGraph:
        sets, path = self._modules[tag], self._layout.paths[tag]
        kind = self._layout.hierarchy.classes.get(path)
        return ModuleGraph(
            path, kind, tuple(sets.nodes), tuple(sets.edges), tuple(children), tuple(sets.inputs), tuple(sets.outputs)
        )

    def _weights(self, operations: Mapping[str, Operation], *, everything: bool) -> dict[str, Initializer]:
        weights: dict[str, Initializer] = {}
        for value in self._initializers:
            users = dict.fromkeys(self._nodes.of[user] for user in value.consumers())
            tensor = value.const_value
            if tensor is None or not (everything or any(user in operations for user in users)):
                continue
            tags = dict.fromkeys(self._operations[user].tags[0] for user in users)
            shape = tuple(int(dim) for dim in tensor.shape.numpy())
            weights[self._name(value)] = Initializer(type_name(tensor.dtype), shape, tuple(tags), tuple(users))
        return weights


def _inner_first(graph: ir.Graph) -> Iterator[ir.Node]:
    """All nodes below a graph in the order in which they finish."""
    for node in graph:
        for _, body in bodies(node):
            yield from _inner_first(body)
        yield node
