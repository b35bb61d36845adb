"""Where(Expand(c), 0, -inf) => Expand(Where(c, 0, -inf)).

For elementwise operators whose other operands are single numbers. Refuses if the expanded value is read elsewhere.
Helps because the work is done once per element instead of once per copy.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.ops import BROADCASTS, UNARY
from sardonyx.passes._matching import number_of, require, required, with_operand
from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass


class SinkExpand(PairPass):
    """Elementwise work on copies."""

    accuracy = Accuracy.EXACT
    roots = tuple(sorted(BROADCASTS | UNARY))
    inner = ("Expand",)
    read_elsewhere = "the expanded value is read elsewhere"
    opset = 8  # the first with Expand
    example = Example(
        before="""
            (bool[B, 1, S] x) => (float[B, M, S] y) <float zero = {0}, float[1] low = {-9}, int64[2] rows = {4, 1}>
            { c = Not(x)  e = Expand(c, rows)  y = Where(e, zero, low) }
        """,
        after="{ c = Not(x)  e = Where(c, zero, low)  y = Expand(e, rows) }",
        near_miss="""
            (bool[B, 1, S] x) => (float[B, M, S] y, bool[B, M, S] e) <
                float zero = {0}, float[1] low = {-9}, int64[2] rows = {4, 1}
            > { c = Not(x)  e = Expand(c, rows)  y = Where(e, zero, low) }
        """,
        refusal="read elsewhere",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        rank = required(graph.rank(inner.inputs[0]))
        others = [value for place, value in enumerate(node.inputs) if place != index]
        require(all(number_of(other, graph, rank=rank) is not None for other in others))
        inputs = with_operand(node, index, inner.inputs[0])
        return Match((inner, node), build=lambda op: op.like(inner, (op.like(node, inputs), inner.inputs[1])))
