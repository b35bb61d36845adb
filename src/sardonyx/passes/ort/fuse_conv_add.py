"""Conv(x) + z => FusedConv(x, z), of ONNX Runtime.

z must have exactly the shape of the convolution's result, since the kernel does not broadcast. Refuses if that is
uncertain, and if the result is used elsewhere. Only for single precision, the only type with a kernel. Helps because a
residual is added while the result is written, and an activation can be fused after it.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._channels import USED_ELSEWHERE
from sardonyx.passes._matching import operand_producer, require, require_sole, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, OperandPass
from sardonyx.passes.ort._contrib import OrtPass, contrib


class FuseConvAdd(OrtPass, OperandPass):
    """A residual added to a convolution."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Add",)
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

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match:
        conv, other = required(operand_producer(node, index, ("Conv",))), node.inputs[1 - index]
        require(graph.dtype(other) == ir.DataType.FLOAT)
        require_sole(node, conv, graph, USED_ELSEWHERE)
        is_same = graph.same_shape(conv.outputs[0], other)
        require(is_same, "both sides of the sum may have different shapes", conv, node)
        inputs = (conv.inputs[0], conv.inputs[1], operand(conv, 2), other)
        return contrib("FusedConv", (conv, node), inputs, conv.attributes, graph)
