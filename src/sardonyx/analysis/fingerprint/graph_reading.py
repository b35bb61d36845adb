"""A model as the fingerprint reads it: its live nodes in order, and what their values depend on.

Dead nodes are left out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterator

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from sardonyx.ir.dataflow import Dataflow, Dependence
from sardonyx.ir.scopes import bodies

# Writes a model out without calls, in time that grows with its nodes.


class _NoNames(set[str]):
    """Names of which none is ever taken."""

    def __contains__(self, name: object) -> bool:
        """Never."""
        return False


class Inline(InlinePass):
    """Inlining that leaves equal names equal.

    The base class tries one number after another for each name that every call of a function brings again: quadratic
    in the calls. Nothing that reads the result goes by names.
    """

    def _reset(self, model: ir.Model) -> None:
        super()._reset(model)
        self._used_value_names = _NoNames()
        self._used_node_names = _NoNames()


NEAR = 64  # values that a search around a place looks at, layers and all: a few layers of any spelling
WITHIN = 512  # values that a search between layers looks at: attention in windows is spelled in hundreds of nodes

_MOST_NODES = 1 << 11  # of a model that is written out without calls, or so many times the nodes that are stored:
_GROWTH = 4
_DEEPEST = 64  # calls within calls

_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft", "com.ms.internal.nhwc"})


class Reading:
    """The live part of one model, its functions written out; the model is not changed."""

    def __init__(self, model: ir.Model) -> None:
        model = _written_out(model) if model.functions else model
        self.model = model
        self.graph = model.graph
        self.names: dict[ir.Node, str] = {}  # live nodes in order, and their operators; "" for foreign ones
        self._flow = Dataflow(defaults_are_constants=True)
        live, holders = _live(model.graph)
        for node in _in_order(model.graph, live, holders):
            name = node.op_type if node.domain in _DOMAINS else ""
            self.names[node] = name
            self._flow.visit(node, op_type=name)

    def dependence(self, value: ir.Value) -> Dependence:
        """What a value depends on; an input with a default is the weight that it was before IR version 4."""
        return self._flow.of(value)

    def is_data(self, value: ir.Value | None) -> bool:
        """Whether a value follows from inputs."""
        return value is not None and self._flow.of(value) is Dependence.DATA

    def data(self, node: ir.Node) -> Iterator[ir.Value]:
        """The inputs of a node that follow from inputs of the model."""
        operands = self._flow.operands(node, self.names[node])
        return (value for value in operands if value is not None and self._flow.of(value) is Dependence.DATA)

    def readers(self, value: ir.Value) -> list[ir.Node]:
        """The live nodes that read a value."""
        return [node for node in value.consumers() if node in self.names]

    def upward(self, start: ir.Value, stop: Container[ir.Node], limit: int = WITHIN) -> Iterator[ir.Value]:
        """A value and the data it is made from, the nearest first, not looking behind nodes that stop."""
        seen, waiting = {start}, deque([start])
        while waiting and len(seen) < limit:
            value = waiting.popleft()
            yield value
            maker = value.producer()
            if maker is None or maker in stop:
                continue
            for each in self.data(maker):
                if each not in seen:
                    seen.add(each)
                    waiting.append(each)
        yield from waiting

    def downward(self, start: ir.Value, stop: Container[ir.Node]) -> Iterator[ir.Node]:
        """The nodes that read a value or what is made from it, the nearest first, not looking behind ones that stop."""
        seen, waiting = {start}, deque([start])
        while waiting and len(seen) < WITHIN:
            for reader in self.readers(waiting.popleft()):
                yield reader
                if reader in stop:
                    continue
                for each in reader.outputs:
                    if each not in seen and self._flow.of(each) is Dependence.DATA:
                        seen.add(each)
                        waiting.append(each)


def above(start: ir.Node) -> set[ir.Node]:
    """All nodes whose results a node needs."""
    found: set[ir.Node] = set()
    waiting = [start]
    while waiting:
        for value in waiting.pop().inputs:
            maker = value.producer() if value is not None else None
            if maker is not None and maker not in found:
                found.add(maker)
                waiting.append(maker)
    return found


def _written_out(model: ir.Model) -> ir.Model:
    """A copy without calls; the model itself where a call cannot be replaced, which then is a foreign operator."""
    from onnx_ir.passes import PreconditionError  # only here: it loads every pass of its library

    stored = sum(1 for graph in (model, *model.functions.values()) for _ in graph.graph.all_nodes())
    if _written_size(model) > max(_MOST_NODES, _GROWTH * stored):
        return model
    copy = model.clone()
    for function in copy.functions.values():  # of operators only the names count here, which no version changes
        function.opset_imports.update({domain: copy.opset_imports.get(domain, 1) for domain in function.opset_imports})
    try:
        Inline()(copy)
    except (ValueError, PreconditionError):  # calls in a circle, graphs for arguments, more inputs than there are
        return model
    return copy


def _written_size(model: ir.Model) -> float:
    """How many nodes a model has without calls: functions that call each other twice over make more than can be."""
    known: dict[tuple[str, str, str], float] = {}

    def size(graph: ir.Graph, depth: int) -> float:
        return math.inf if depth > _DEEPEST else sum(node_size(node, depth) for node in graph.all_nodes())

    def node_size(node: ir.Node, depth: int) -> float:
        key = node.op_identifier()
        if key not in model.functions:
            return 1
        if key not in known:
            known[key] = math.inf  # of one that calls itself
            known[key] = size(model.functions[key].graph, depth + 1)
        return known[key]

    return size(model.graph, 0)


def _live(graph: ir.Graph) -> tuple[set[ir.Node], set[ir.Node]]:
    """The nodes that outputs need, bodies included, and those of them that have bodies."""
    needed: set[ir.Node] = set()
    holders: set[ir.Node] = set()
    waiting = [value.producer() for value in graph.outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in needed:
            continue
        needed.add(node)
        waiting.extend([value.producer() for value in node.inputs if value is not None])
        for _, body in bodies(node):
            holders.add(node)
            waiting.extend([value.producer() for value in body.outputs])
    return needed, holders


def _in_order(graph: ir.Graph, needed: set[ir.Node], holders: set[ir.Node]) -> Iterator[ir.Node]:
    for node in graph:
        if node in needed:
            if node in holders:
                for _, body in bodies(node):
                    yield from _in_order(body, needed, holders)
            yield node
