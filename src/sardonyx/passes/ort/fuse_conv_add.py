"""Conv(x) + z => FusedConv(x, z), of ONNX Runtime.

z must have exactly the shape of the convolution's result, since the kernel does not broadcast. Refuses if that is
uncertain, and if the result is used elsewhere. Only for single precision, the only type with a kernel. Helps because a
residual is added while the result is written, and an activation can be fused after it.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._channels import USED_ELSEWHERE
from sardonyx.passes._matching import require
from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass
from sardonyx.passes.ort._contrib import OrtPass, contrib


class FuseConvAdd(OrtPass, PairPass):
    """A residual added to a convolution."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Add",)
    inner = ("Conv",)
    read_elsewhere = USED_ELSEWHERE
    opset = 7  # before, Add broadcast only with an attribute
    example = Example(
        before="""
            (float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y)
            <float[2, 2, 1, 1] w = {1, -2, 3, 4}> { z = Sin(x)  a = Conv(z, w)  y = Add(z, a) }
        """,
        after="{ z = Sin(x)  y = com.microsoft.FusedConv(z, w, , z) }",
        near_miss="""
            (float[N, 2, 4, 4] x, float[N, 2, 1, 1] z) => (float[N, 2, 4, 4] y)
            <float[2, 2, 1, 1] w = {1, -2, 3, 4}> { a = Conv(x, w)  y = Add(z, a) }
        """,
        refusal="different shapes",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        other = node.inputs[1 - index]
        require(graph.dtype(other) == ir.DataType.FLOAT)
        is_same = graph.same_shape(inner.outputs[0], other)
        require(is_same, "both sides of the sum may have different shapes")
        inputs = (*inner.inputs[:2], operand(inner, 2), other)
        return contrib("FusedConv", (inner, node), inputs, inner.attributes, graph)
