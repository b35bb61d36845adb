"""CastLike(x, y) => Cast(x, type(y)).

Does not apply if the type of y is unknown. Helps because torch's exporter writes CastLike(constant, x) for every
scalar, and a node that reads x cannot be folded into a constant.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, required


class EliminateCastLike(NodePass):
    """CastLike to a known type."""

    accuracy = Accuracy.EXACT
    roots = ("CastLike",)
    example = Example(
        before="(float[N] x, int64[N] i) => (float[N] y) { a = CastLike(i, x)  y = Add(x, a) }",
        after="{ a = Cast <to = 1> (i)  y = Add(x, a) }",
        near_miss="{ a = Cast <to = 1> (i)  y = Add(x, a) }",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        dtype = required(graph.dtype(operand(node, 1)))
        attributes = {**node.attributes, "to": int(dtype)}  # a Cast that handles overflow as the CastLike did
        return Match((node,), build=lambda op: op.node("Cast", (node.inputs[0],), attributes))
