"""Where(Expand(c), 0, -inf) => Expand(Where(c, 0, -inf)).

For elementwise operators whose other operands are single numbers. Refuses if the expanded value is read elsewhere.
Helps because the work is done once per element instead of once per copy.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.ops import BROADCASTS, UNARY
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import operand_producer, with_operand
from sardonyx.passes.base import Accuracy, Example, Facts, Match, OperandPass, Refused


class SinkExpand(OperandPass):
    """Elementwise work on copies."""

    name = "sink-expand"
    accuracy = Accuracy.EXACT
    roots = tuple(sorted(BROADCASTS | UNARY))
    opset = 8  # the first with Expand
    example = Example(
        before="""
            agraph (bool[B, 1, S] x) => (float[B, M, S] y)
            <float zero = {0}, float[1] low = {-9}, int64[2] rows = {4, 1}> {
                c = Not(x)  e = Expand(c, rows)  y = Where(e, zero, low)
            }
        """,
        after="""
            agraph (bool[B, 1, S] x) => (float[B, M, S] y)
            <float zero = {0}, float[1] low = {-9}, int64[2] rows = {4, 1}> {
                c = Not(x)  e = Where(c, zero, low)  y = Expand(e, rows)
            }
        """,
        near_miss="""
            agraph (bool[B, 1, S] x) => (float[B, M, S] y, bool[B, M, S] e)
            <float zero = {0}, float[1] low = {-9}, int64[2] rows = {4, 1}> {
                c = Not(x)  e = Expand(c, rows)  y = Where(e, zero, low)
            }
        """,
        refusal="read elsewhere",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match | Refused | None:
        expand = operand_producer(node, index, ("Expand",))
        if expand is None or not _others_are_numbers(node, index, operand(expand, 0), graph):
            return None
        if graph.sole_consumer(expand.outputs[0]) is not node:
            return Refused("the expanded value is read elsewhere", (expand, node))
        inputs = with_operand(node, index, expand.inputs[0])
        return Match((expand, node), build=lambda op: op.like(expand, (op.like(node, inputs), expand.inputs[1])))


def _others_are_numbers(node: ir.Node, index: int, source: ir.Value | None, graph: Facts) -> bool:
    """Return whether all other operands are single numbers of no higher rank than the value before the Expand."""
    rank = graph.rank(source)
    others = [value for position, value in enumerate(node.inputs) if position != index]
    return rank is not None and all(
        graph.scalar(other) is not None and (graph.rank(other) or 0) <= rank for other in others
    )
