"""x + 0.0 => x.

For floats -0.0 + 0.0 is 0.0, which makes a difference only in a division or as text; so this is not part of the exact
passes. Refuses if x may be -0.0 and something nearby may divide by it or write it as text, and if the constant's shape
would enlarge the result.
Helps because models that mask nothing add a mask of zeros in every attention layer.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._numbers import may_be_negative_zero, shows_sign
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, require
from sardonyx.passes.cleanup.eliminate_noop_arithmetic import BROADCASTS, ENLARGES, neutral_operand, zeros

_SIDES = {"Add": ((0, 1), False), "Sub": ((1,), True)}  # where the zero may be, and whether it is -0.0


class EliminateAddZero(NodePass):
    """Additions of zero that change at most the sign of a zero."""

    accuracy = Accuracy.REASSOCIATES
    roots = tuple(_SIDES)
    opset = BROADCASTS
    example = Example(
        before="(float[N, 4] x) => (float[N, 4] y) <float zero = {0}> { a = Exp(x)  b = Add(a, zero)  y = Neg(b) }",
        after="{ a = Exp(x)  y = Neg(a) }",
        near_miss="""
            (float[N] x) => (float[1, N] y) <float[1, 1] zero = {0}> { a = Exp(x)  b = Add(a, zero)  y = Neg(b) }
        """,
        refusal=ENLARGES,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        sides, negative = _SIDES[node.op_type]
        other = neutral_operand(node, graph, sides, lambda array: zeros(array, negative=negative))
        shows = may_be_negative_zero(other, graph) and shows_sign(node.outputs[0], graph)
        require(not shows, "the sign of a zero may be visible")
        return Match((node,), build=lambda _: other)
