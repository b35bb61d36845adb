"""x + 0.0 => x.

For floats this turns a -0.0 that was made +0.0 back into -0.0, which only a division by it would tell: so it is apart
from the exact passes. Refuses where the constant's shape would enlarge the result. Helps because masks of a model that
masks nothing are added in every attention layer.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.facts import Facts
from sardonyx.graph.rules import Match, Refused, Replacement
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.tidy.eliminate_noop_arithmetic import BROADCASTS, ENLARGES, neutral_operand, zeros
from sardonyx.record import Accuracy

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
        return Match((node,), {"source": found}) if isinstance(found, ir.Value) else found

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The operand that passes through."""
        return match.found["source"]
