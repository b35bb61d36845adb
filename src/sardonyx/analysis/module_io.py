"""Collect the contents of every module: its nodes, the edges between them, and the values that cross its boundary.

A module contains its own nodes and those of all modules below it. A `Constant` belongs to every module that reads it
and is never an input of a module. The time is proportional to the number of nodes times the depth of the modules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import bodies, is_constant, scopes

Chain = Callable[[str], tuple[str, ...]]  # a path -> the keys of the modules from the model down to it


class ModuleContents(Struct, frozen=True, eq=False):
    """The contents of one module; the sets are ordered, the nodes in the order in which they finish."""

    nodes: dict[ir.Node, None] = field(default_factory=dict[ir.Node, None])
    edges: dict[tuple[ir.Node, ir.Node], None] = field(default_factory=dict[tuple[ir.Node, ir.Node], None])
    inputs: dict[ir.Value, None] = field(default_factory=dict[ir.Value, None])  # produced outside, without initializers
    outputs: dict[ir.Value, None] = field(default_factory=dict[ir.Value, None])  # read outside, or outputs of the model


def module_contents(model: ir.Model, chain: Chain) -> dict[str, ModuleContents]:
    """Return the contents of every module that has a node, by the keys that `chain` returns."""
    return dict(_Collector(model, chain).modules)


class _Collector:
    def __init__(self, model: ir.Model, chain: Chain) -> None:
        self.modules: dict[str, ModuleContents] = defaultdict(ModuleContents)
        self._chain = chain
        self._holders = {
            value: scope.holder for scope in scopes(model) if scope.holder is not None for value in scope.graph.inputs
        }
        tops = [scope.graph for scope in scopes(model) if scope.holder is None]
        nodes = [node for graph in tops for node in _inner_first(graph)]
        # Constants come last: the order of modules is that in which their other nodes run.
        self._homes = {node: self._home(node) for node in sorted(nodes, key=is_constant)}
        for node in nodes:
            self._add(node)
        for graph in tops:
            for value in graph.outputs:
                self._add_output(value, {})

    def _home(self, node: ir.Node) -> Mapping[str, None]:
        """Return the keys of all modules that contain a node."""
        home = dict.fromkeys(self._chain(owner(node)))
        if is_constant(node):
            for reader in node.outputs[0].consumers():
                home |= dict.fromkeys(self._chain(owner(reader)))
        return home

    def _add(self, node: ir.Node) -> None:
        for key in self._homes[node]:
            self.modules[key].nodes[node] = None
        for value in node.inputs:
            if value is not None:
                self._connect(value, node)
        for _, body in bodies(node):  # the outputs of a body flow into the node that owns it
            for value in body.outputs:
                if value.producer() is not None:
                    self._connect(value, node)

    def _connect(self, value: ir.Value, reader: ir.Node) -> None:
        """Add an edge to every module that contains both ends, and an input or output to one that contains one end."""
        producer = value.producer()
        home = self._homes[reader]
        if producer is None:
            holder = self._holders.get(value)  # the inputs of a body come from the node that owns it
            if not value.is_initializer():
                self._add_input(value, home, {} if holder is None else self._homes[holder])
            return
        for key in home:
            if key in self._homes[producer]:
                self.modules[key].edges[producer, reader] = None
        self._add_input(value, home, self._homes[producer])
        if not is_constant(producer):
            self._add_output(value, home)

    def _add_input(self, value: ir.Value, home: Iterable[str], produced_in: Mapping[str, None]) -> None:
        for key in home:
            if key not in produced_in:
                self.modules[key].inputs[value] = None

    def _add_output(self, value: ir.Value, read_in: Mapping[str, None]) -> None:
        producer = value.producer()
        for key in self._homes[producer] if producer is not None else ():
            if key not in read_in:
                self.modules[key].outputs[value] = None


def _inner_first(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield all nodes of a graph and its bodies in the order in which they finish."""
    for node in graph:
        for _, body in bodies(node):
            yield from _inner_first(body)
        yield node
