"""x + 0.0 => x.

For floats the sum makes 0.0 of a -0.0, which only a division by it would tell: so this is apart from the exact passes.
Refuses where x may be -0.0 and something nearby may divide by it, and where the constant's shape would enlarge the
result. Helps because masks of a model that masks nothing are added in every attention layer.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes._zeros import divides, may_be_negative_zero
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.cleanup.eliminate_noop_arithmetic import BROADCASTS, ENLARGES, neutral_operand, zeros
from sardonyx.records.run import Accuracy

_SIDES = {"Add": ((0, 1), False), "Sub": ((1,), True)}  # where the zero may stand, and the sign that is not exact there


class EliminateAddZero(NodePass):
    """Adding a zero that at most changes the sign of a zero."""

    name = "eliminate-add-zero"
    accuracy = Accuracy.REASSOCIATES
    roots = tuple(_SIDES)
    opset = BROADCASTS
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <float zero = {0}> { a = Exp(x)  b = Add(a, zero)  y = Neg(b) }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <float zero = {0}> { a = Exp(x)  y = Neg(a) }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N] x) => (float[1, N] y) <float[1, 1] zero = {0}> { a = Exp(x)  b = Add(a, zero)  y = Neg(b) }
        """,
        refusal=ENLARGES,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """A float zero added or taken away."""
        sides, negative = _SIDES[node.op_type]
        found = neutral_operand(node, graph, sides, lambda array: zeros(array, negative=negative))
        if not isinstance(found, ir.Value):
            return found
        if may_be_negative_zero(found, graph) and divides(node.outputs[0], graph):
            return Refused("the sign of a zero may show in a division", (node,))
        return Match((node,), {"source": found})

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The operand that passes through."""
        return match.found["source"]
