"""How values flow between the nodes of a model's main graph: who reads what, and what is nothing but sizes.

A node with bodies (If, Loop, Scan) counts as one with everything inside it: it reads what its bodies capture and comes
from where their nodes come from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from sardonyx.graph.facts import RANDOM
from sardonyx.graph.origins import origins
from sardonyx.graph.scopes import bodies
from sardonyx.provenance import Origins, merge

_MEASURES = frozenset({"Shape", "Size"})


class Flow:
    """The main graph of one model, whose nodes know their origins; nothing is changed."""

    def __init__(self, model: ir.Model) -> None:
        self.nodes = tuple(model.graph)
        self.outputs = frozenset(model.graph.outputs)
        self.reads: dict[ir.Node, tuple[ir.Value, ...]] = {}
        self.readers: dict[ir.Value, list[ir.Node]] = defaultdict(list)
        self.origins: dict[ir.Node, Origins] = {}
        self._sizes: set[ir.Value] = set()
        for node in self.nodes:
            within = list(_nodes_inside(node))
            self.reads[node] = tuple(dict.fromkeys(_read(node)))
            self.origins[node] = merge(map(origins, (node, *within))) if within else origins(node)
            for value in self.reads[node]:
                self.readers[value].append(node)
            if self._is_arithmetic(node):
                self._sizes.update(node.outputs)

    def _is_arithmetic(self, node: ir.Node) -> bool:
        """Whether a node measures, or computes from constants and measures alone."""
        if node.domain not in ("", "ai.onnx") or node.op_type in RANDOM or any(True for _ in bodies(node)):
            return False
        return node.op_type in _MEASURES or all(map(self.is_size, self.reads[node]))

    def is_size(self, value: ir.Value) -> bool:
        """Whether a value follows from constants and from the sizes of other values."""
        return value in self._sizes or is_fixed(value)

    def only_sizes(self, node: ir.Node) -> bool:
        """Whether all that a node makes are constants and sizes."""
        return all(map(self.is_size, node.outputs))

    def above(self, start: Iterable[ir.Node]) -> set[ir.Node]:
        """All nodes whose results some of these nodes need."""
        return _reach(start, self._makers)

    def below(self, start: Iterable[ir.Node]) -> set[ir.Node]:
        """All nodes that need results of some of these nodes."""
        return _reach(start, self.users)

    def users(self, node: ir.Node) -> Iterator[ir.Node]:
        """The nodes that read a node's results."""
        return (reader for output in node.outputs for reader in self.readers.get(output, ()))

    def _makers(self, node: ir.Node) -> Iterator[ir.Node]:
        return (maker for value in self.reads[node] if (maker := value.producer()) is not None)


def is_fixed(value: ir.Value) -> bool:
    """Whether a value is a constant of the file that no caller can override."""
    return value.is_initializer() and not value.is_graph_input()


def _reach(start: Iterable[ir.Node], step: Callable[[ir.Node], Iterable[ir.Node]]) -> set[ir.Node]:
    found: set[ir.Node] = set()
    waiting = list(start)
    while waiting:
        for node in step(waiting.pop()):
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


def _nodes_inside(node: ir.Node) -> Iterator[ir.Node]:
    for _, body in bodies(node):
        for inner in body:
            yield inner
            yield from _nodes_inside(inner)


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, and then what its bodies read from outside of them."""
    yield from (value for value in node.inputs if value is not None)
    for _, body in bodies(node):
        own = {*body.inputs, *body.initializers.values(), *(value for inner in body for value in inner.outputs)}
        for inner in body:
            yield from (value for value in _read(inner) if value not in own)
