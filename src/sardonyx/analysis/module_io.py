"""What is inside every module of a model: its nodes, how they are connected, and the values that cross its boundary.

A module holds its own nodes and those of all modules below it. A `Constant` is embedded: it is inside every module that
reads it, so no module takes one from outside. One walk over the nodes; the cost follows how many there are and how deep
they lie.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import bodies, is_constant, scopes

Chain = Callable[[str], tuple[str, ...]]  # a path -> the keys of all modules on the way from the model down to it


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """One module; every set keeps its order, that of the nodes is the one in which they finish."""

    nodes: dict[ir.Node, None] = field(default_factory=dict[ir.Node, None])
    edges: dict[tuple[ir.Node, ir.Node], None] = field(default_factory=dict[tuple[ir.Node, ir.Node], None])
    inputs: dict[ir.Value, None] = field(default_factory=dict[ir.Value, None])  # from elsewhere, and no initializers
    outputs: dict[ir.Value, None] = field(default_factory=dict[ir.Value, None])  # read elsewhere, or given by the model


def insides(model: ir.Model, chain: Chain) -> dict[str, Inside]:
    """What is inside every module that has a node, by the key that `chain` gives it."""
    return dict(_Walk(model, chain).modules)


class _Walk:
    def __init__(self, model: ir.Model, chain: Chain) -> None:
        self.modules: dict[str, Inside] = defaultdict(Inside)
        self._chain = chain
        self._holders = {
            value: scope.holder for scope in scopes(model) if scope.holder is not None for value in scope.graph.inputs
        }
        tops = [scope.graph for scope in scopes(model) if scope.holder is None]
        nodes = [node for graph in tops for node in _inner_first(graph)]
        # Modules become known by what computes in them: where a Constant stands says nothing about when they run.
        self._homes = {node: self._home(node) for node in sorted(nodes, key=is_constant)}
        for node in nodes:
            self._add(node)
        for graph in tops:
            for value in graph.outputs:
                self._leaves(value, {})

    def _home(self, node: ir.Node) -> Mapping[str, None]:
        """The keys of all modules a node is inside of."""
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
        for _, body in bodies(node):  # what a body gives goes to the node that holds it
            for value in body.outputs:
                if value.producer() is not None:
                    self._connect(value, node)

    def _connect(self, value: ir.Value, reader: ir.Node) -> None:
        """A value is read: an edge inside every module that has both ends, a boundary of one that has only one."""
        maker = value.producer()
        home = self._homes[reader]
        if maker is None:
            holder = self._holders.get(value)  # what a body is handed comes from the node that holds it
            if not value.is_initializer():
                self._enters(value, home, {} if holder is None else self._homes[holder])
            return
        for key in home:
            if key in self._homes[maker]:
                self.modules[key].edges[maker, reader] = None
        self._enters(value, home, self._homes[maker])
        if not is_constant(maker):
            self._leaves(value, home)

    def _enters(self, value: ir.Value, home: Iterable[str], made_in: Mapping[str, None]) -> None:
        for key in home:
            if key not in made_in:
                self.modules[key].inputs[value] = None

    def _leaves(self, value: ir.Value, read_in: Mapping[str, None]) -> None:
        maker = value.producer()
        for key in self._homes[maker] if maker is not None else ():
            if key not in read_in:
                self.modules[key].outputs[value] = None


def _inner_first(graph: ir.Graph) -> Iterator[ir.Node]:
    """All nodes below a graph in the order in which they finish."""
    for node in graph:
        for _, body in bodies(node):
            yield from _inner_first(body)
        yield node
