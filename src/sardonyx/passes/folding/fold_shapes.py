"""Shape(x: [2, 3]) => [2, 3].

Also anything computed from sizes that is a number although some of the sizes are symbolic: a dim that is selected, a
quotient in which they cancel, a comparison with only one possible result. Other symbolic dims are left alone. Helps
because exporters compute sizes at run time that are known ahead of time, and views depend on them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.scopes import is_constant, operator
from sardonyx.ir.shapes import COMPUTES_SIZES, INTEGERS, Contents
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, Refused, required

_OPERATORS = frozenset(COMPUTES_SIZES)


class FoldShapes(NodePass):
    """Sizes that are known ahead of time."""

    accuracy = Accuracy.EXACT
    roots = COMPUTES_SIZES
    example = Example(
        before="""
            (float[N, 4] x) => (float[N, 4] y)
            <int64 last = {-1}> { s = Shape(x)  d = Gather(s, last)  f = Cast <to = 1> (d)  y = Mul(x, f) }
        """,
        after="<int64 last = {-1}, int64 d = {4}> { f = Cast <to = 1> (d)  y = Mul(x, f) }",
        near_miss="<int64 first = {0}> { s = Shape(x)  d = Gather(s, first)  f = Cast <to = 1> (d)  y = Mul(x, f) }",
        refusal="dynamic",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        value = node.outputs[0]
        if graph.scope(node).in_function:
            return None
        if not _is_certain(node, graph):
            shapes = [producer for producer in node.predecessors() if operator(producer) == "Shape"]
            is_dynamic = len(shapes) > 0 and _contents(node, graph) is not None
            return Refused("the dims it selects are dynamic", (*shapes, node)) if is_dynamic else None
        if not value.is_graph_output() and all(_is_folded(user, graph) for user in value.consumers()):
            return None  # folded together with them
        shape, dtype = required(graph.static_shape(value)), required(graph.dtype(value))
        array = np.array(_contents(node, graph), dtype.numpy()).reshape(shape)
        return Match(_chain(node, graph), build=lambda op: op.constant(array, "size"))


def _contents(node: ir.Node, graph: Facts) -> Contents | None:
    """Return the elements of the small integer tensor that a node produces, otherwise None."""
    return graph.contents(node.outputs[0]) if graph.dtype(node.outputs[0]) in INTEGERS else None


def _is_certain(node: ir.Node, graph: Facts) -> bool:
    """Return whether a node produces one small integer tensor with all elements known."""
    if node.domain or node.op_type not in _OPERATORS or len(node.outputs) > 1:
        return False
    contents = _contents(node, graph)
    return contents is not None and all(isinstance(item, int) for item in contents)


def _is_folded(node: ir.Node, graph: Facts) -> bool:
    return not node.outputs[0].is_graph_output() and _is_certain(node, graph)


def _chain(node: ir.Node, graph: Facts) -> tuple[ir.Node, ...]:
    """Return the node after the nodes used by it alone and after the producers of its inputs."""
    chain: dict[ir.Node, None] = {node: None}
    frontier = [node]
    while frontier:
        for producer in frontier.pop().predecessors():
            if producer in chain or producer.graph is not node.graph:
                continue
            alone = all(user in chain for output in producer.outputs for user in output.consumers())
            if alone and (is_constant(producer) or _is_folded(producer, graph)):
                chain[producer] = None
                frontier.append(producer)
    producers = {
        member: None for member in node.predecessors() if member.graph is node.graph and not is_constant(member)
    }
    return (*(member for member in reversed({**producers, **chain}) if member is not node), node)
