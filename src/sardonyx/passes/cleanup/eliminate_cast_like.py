"""CastLike(x, y) => Cast(x, type(y)).

Does not apply if the type of y is unknown. Helps because torch's exporter writes CastLike(constant, x) for every
scalar, and a node that reads x cannot be folded into a constant.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, Refused


class EliminateCastLike(NodePass):
    """CastLike to a known type."""

    name = "eliminate-cast-like"
    accuracy = Accuracy.EXACT
    roots = ("CastLike",)
    example = Example(
        before="agraph (float[N] x, int64[N] i) => (float[N] y) { a = CastLike(i, x)  y = Add(x, a) }",
        after="agraph (float[N] x, int64[N] i) => (float[N] y) { a = Cast <to = 1> (i)  y = Add(x, a) }",
        near_miss="agraph (float[N] x, int64[N] i) => (float[N] y) { a = Cast <to = 1> (i)  y = Add(x, a) }",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        dtype = graph.dtype(operand(node, 1))
        if dtype is None:
            return None
        attributes = {**node.attributes, "to": int(dtype)}  # a Cast that handles overflow as the CastLike did
        return Match((node,), build=lambda op: op.node("Cast", (node.inputs[0],), attributes))
