"""Shape(x: [2, 3]) => [2, 3].

Also whatever is computed from sizes and comes to numbers although some of the sizes are symbolic: a dim that is picked,
a quotient in which they cancel, a comparison that can only turn out one way. Leaves other symbolic dims alone. Helps
because exporters compute sizes at run time that were known all along, and views wait for them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.ir.scopes import is_constant
from sardonyx.ir.shapes import COMPUTES_SIZES, INTEGERS
from sardonyx.passes.base import Example, NodePass
from sardonyx.records.run import Accuracy

_OPERATORS = frozenset(COMPUTES_SIZES)


class FoldShapes(NodePass):
    """Sizes that are known before the model runs."""

    name = "fold-shapes"
    accuracy = Accuracy.EXACT
    roots = COMPUTES_SIZES
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <int64 last = {-1}> {
                s = Shape(x)  d = Gather(s, last)  f = Cast <to = 1> (d)  y = Mul(x, f)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <int64 last = {-1}, int64 d = {4}> {
                f = Cast <to = 1> (d)  y = Mul(x, f)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <int64 first = {0}> {
                s = Shape(x)  d = Gather(s, first)  f = Cast <to = 1> (d)  y = Mul(x, f)
            }
        """,
        refusal="dynamic",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Integers, every one of which is certain, that something else than a size is made of."""
        if graph.scope(node).in_function:
            return None
        if not _is_certain(node, graph):
            asks = [maker for maker in node.predecessors() if maker.op_type == "Shape" and not maker.domain]
            return Refused("the dims it picks are dynamic", (*asks, node)) if asks and _is_size(node, graph) else None
        value = node.outputs[0]
        if not value.is_graph_output() and all(_is_folded(user, graph) for user in value.consumers()):
            return None  # this goes with them
        contents, shape, dtype = graph.contents(value), graph.static_shape(value), graph.dtype(value)
        assert contents is not None
        assert shape is not None
        assert dtype is not None
        return Match(_chain(node, graph), {"value": np.array(contents, dtype.numpy()).reshape(shape)})

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The numbers."""
        return op.constant(match.found["value"], "size")


def _is_size(node: ir.Node, graph: Facts) -> bool:
    return graph.dtype(node.outputs[0]) in INTEGERS and graph.contents(node.outputs[0]) is not None


def _is_certain(node: ir.Node, graph: Facts) -> bool:
    """Whether it makes one small tensor of integers, all of them known."""
    if node.domain or node.op_type not in _OPERATORS or len(node.outputs) > 1 or not _is_size(node, graph):
        return False
    return all(isinstance(item, int) for item in graph.contents(node.outputs[0]) or ())


def _is_folded(node: ir.Node, graph: Facts) -> bool:
    return not node.outputs[0].is_graph_output() and _is_certain(node, graph)


def _chain(node: ir.Node, graph: Facts) -> tuple[ir.Node, ...]:
    """The node after those that work for it alone, and after the makers of what it reads."""
    chain: dict[ir.Node, None] = {node: None}
    edge = [node]
    while edge:
        for maker in edge.pop().predecessors():
            if maker in chain or maker.graph is not node.graph:
                continue
            alone = all(user in chain for output in maker.outputs for user in output.consumers())
            if alone and (is_constant(maker) or _is_folded(maker, graph)):
                chain[maker] = None
                edge.append(maker)
    makers = {each: None for each in node.predecessors() if each.graph is node.graph and not is_constant(each)}
    return (*(each for each in reversed({**makers, **chain}) if each is not node), node)
