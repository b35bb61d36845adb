"""Where(Expand(c), 0, -inf) => Expand(Where(c, 0, -inf)).

For elementwise operators whose other operands are single numbers. Refuses if the expanded value is read elsewhere.
Helps because the work is done once per element instead of once per copy.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.ops import BROADCASTS, UNARY
from sardonyx.passes._matching import number_of, operand_producer, require, require_sole, required, with_operand
from sardonyx.passes.base import Accuracy, Example, Facts, Match, OperandPass


class SinkExpand(OperandPass):
    """Elementwise work on copies."""

    accuracy = Accuracy.EXACT
    roots = tuple(sorted(BROADCASTS | UNARY))
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

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match:
        expand = required(operand_producer(node, index, ("Expand",)))
        rank = required(graph.rank(expand.inputs[0]))
        others = [value for place, value in enumerate(node.inputs) if place != index]
        require(all(number_of(other, graph, rank=rank) is not None for other in others))
        require_sole(node, expand, graph, "the expanded value is read elsewhere")
        inputs = with_operand(node, index, expand.inputs[0])
        return Match((expand, node), build=lambda op: op.like(expand, (op.like(node, inputs), expand.inputs[1])))
