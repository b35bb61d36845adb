"""x * Sigmoid(alpha * x) => QuickGelu(x, alpha), of ONNX Runtime.

With alpha = 1 this is SiLU, also called Swish. Refuses if the gate is used elsewhere. Only for single precision, the
only type with a kernel. Helps because it takes one pass over the data.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._channels import USED_ELSEWHERE
from sardonyx.passes._matching import number_of, operand_producer, other_operand, require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass
from sardonyx.passes.ort._contrib import OrtPass, contrib


class FuseQuickGelu(OrtPass, PairPass):
    """A value times the sigmoid of a multiple of it."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Mul",)
    inner = ("Sigmoid",)
    read_elsewhere = USED_ELSEWHERE
    opset = 7  # before, Mul broadcast only with an attribute
    example = Example(
        before="""
            (float[N, 4] x) => (float[N, 4] y)
            <float alpha = {1.5}> { e = Sin(x)  a = Mul(e, alpha)  s = Sigmoid(a)  y = Mul(s, e) }
        """,
        after="{ e = Sin(x)  y = com.microsoft.QuickGelu <alpha = 1.5> (e) }",
        near_miss="(float[N, 4] x) => (float[N, 4] y) { s = Sigmoid(x)  m = Mul(s, x)  y = Add(m, s) }",
        refusal="used elsewhere",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        alpha, nodes, value = 1.0, (inner, node), required(node.inputs[1 - index])
        if inner.inputs[0] is not value:
            times = required(operand_producer(inner, 0, ("Mul",)))
            factor = required(other_operand(times, value))
            alpha, nodes = float(required(number_of(factor, graph, rank=1))), (times, inner, node)
            require((graph.rank(value) or 0) > 0)
        return contrib("QuickGelu", nodes, (value,), {"alpha": alpha}, graph)
