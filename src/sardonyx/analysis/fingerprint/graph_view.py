"""The view of a model that the fingerprint works on: live nodes in order, functions inlined, with their data flow."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from sardonyx.ir.dataflow import Dataflow, Dependence
from sardonyx.ir.functions import DEEPEST, inlined, inlining_limit
from sardonyx.ir.scopes import bodies

NEAR = 64  # values that a search across layers visits: enough for a few layers in any decomposition
WITHIN = 512  # values that a search between two layers visits: windowed attention takes hundreds of nodes

_DOMAINS = frozenset({"", "com.microsoft", "com.ms.internal.nhwc"})


class _NoNames(set[str]):
    """A set of names in use that reports every name as free."""

    def __contains__(self, name: object) -> bool:
        """Return False."""
        return False


class _Inline(InlinePass):
    """Inlining that allows duplicate names, in time linear in the nodes.

    The base class makes names unique by trying one number after another, which is quadratic in the number of calls of a
    function. Nothing that reads the result uses names.
    """

    def _reset(self, model: ir.Model) -> None:
        super()._reset(model)
        self._used_value_names = _NoNames()
        self._used_node_names = _NoNames()


class GraphView:
    """The live part of one model with its functions inlined in a copy; the model itself is not changed."""

    def __init__(self, model: ir.Model) -> None:
        model = _inlined(model) if model.functions else model
        self.model = model
        self.graph = model.graph
        self.names: dict[ir.Node, str] = {}  # live nodes in order, with their operators; "" for unknown domains
        self._flow = Dataflow(defaults_are_constants=True)
        live, with_bodies = _live(model.graph)
        for node in _in_order(model.graph, live, with_bodies):
            name = node.op_type if node.domain in _DOMAINS else ""
            self.names[node] = name
            self._flow.visit(node, op_type=name)

    def dependence(self, value: ir.Value) -> Dependence:
        """Return what a value depends on; an input with a default counts as a weight, as it was before IR version 4."""
        return self._flow.of(value)

    def is_data(self, value: ir.Value | None) -> bool:
        """Return whether a value depends on the data of the model's inputs."""
        return value is not None and self._flow.of(value) is Dependence.DATA

    def data(self, node: ir.Node) -> Iterator[ir.Value]:
        """Return the operands of a node that depend on the data of the model's inputs."""
        operands = self._flow.operands(node, self.names[node])
        return (value for value in operands if value is not None and self._flow.of(value) is Dependence.DATA)

    def readers(self, value: ir.Value) -> list[ir.Node]:
        """Return the live nodes that read a value."""
        return [node for node in value.consumers() if node in self.names]

    def upward(self, start: ir.Value, stop: Container[ir.Node], limit: int = WITHIN) -> Iterator[ir.Value]:
        """Yield a value and the data it is computed from, nearest first, without passing the nodes in `stop`."""
        seen, waiting = {start}, deque([start])
        while waiting and len(seen) < limit:
            value = waiting.popleft()
            yield value
            producer = value.producer()
            if producer is None or producer in stop:
                continue
            for operand in self.data(producer):
                if operand not in seen:
                    seen.add(operand)
                    waiting.append(operand)
        yield from waiting

    def downward(self, start: ir.Value, stop: Container[ir.Node]) -> Iterator[ir.Node]:
        """Yield the nodes that depend on a value, nearest first, without passing the nodes in `stop`."""
        seen, waiting = {start}, deque([start])
        while waiting and len(seen) < WITHIN:
            for reader in self.readers(waiting.popleft()):
                yield reader
                if reader in stop:
                    continue
                for output in reader.outputs:
                    if output not in seen and self._flow.of(output) is Dependence.DATA:
                        seen.add(output)
                        waiting.append(output)


def above(start: ir.Node) -> set[ir.Node]:
    """Return all nodes that a node depends on."""
    ancestors: set[ir.Node] = set()
    waiting = [start]
    while waiting:
        for value in waiting.pop().inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer not in ancestors:
                ancestors.add(producer)
                waiting.append(producer)
    return ancestors


def _inlined(model: ir.Model) -> ir.Model:
    """Return a copy with all functions inlined, or the model itself if that fails or grows it too much."""
    from onnx_ir.passes import PreconditionError  # imported late: it loads every pass of onnx_ir

    size = inlined(model)
    if size.nodes > inlining_limit(model) or size.depth > DEEPEST:
        return model
    copy = model.clone()
    for function in copy.functions.values():  # only operator names matter here, and those are the same in every opset
        function.opset_imports.update({domain: copy.opset_imports.get(domain, 1) for domain in function.opset_imports})
    try:
        _Inline()(copy)
    except (ValueError, PreconditionError):  # recursive calls, graphs as arguments, too many inputs
        return model
    return copy


def _live(graph: ir.Graph) -> tuple[set[ir.Node], set[ir.Node]]:
    """Return the nodes that the outputs depend on, those in bodies included, and those of them that have bodies."""
    needed: set[ir.Node] = set()
    with_bodies: set[ir.Node] = set()
    waiting = [value.producer() for value in graph.outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in needed:
            continue
        needed.add(node)
        waiting.extend([value.producer() for value in node.inputs if value is not None])
        for _, body in bodies(node):
            with_bodies.add(node)
            waiting.extend([value.producer() for value in body.outputs])
    return needed, with_bodies


def _in_order(graph: ir.Graph, needed: set[ir.Node], with_bodies: set[ir.Node]) -> Iterator[ir.Node]:
    for node in graph:
        if node in needed:
            if node in with_bodies:
                for _, body in bodies(node):
                    yield from _in_order(body, needed, with_bodies)
            yield node
