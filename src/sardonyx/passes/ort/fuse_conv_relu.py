"""Relu(Conv(x)) => FusedConv(x), of ONNX Runtime.

Also LeakyRelu, Sigmoid, Tanh, HardSigmoid, and Clip to constants, and a FusedConv without an activation. Standard ONNX
has no such operator, so on the portable target it is only reported as a missed fusion. Only for single precision, the
only type with a kernel. Refuses if the convolution's result is used elsewhere. Helps because the activation is applied
while the result is still in the cache.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._channels import USED_ELSEWHERE
from sardonyx.passes.base import Accuracy, Example, Facts, Match, Refused
from sardonyx.passes.norms._arithmetic import bounds
from sardonyx.passes.ort._contrib import OrtPass, fused_conv, is_plain_conv


class FuseConvRelu(OrtPass):
    """An activation after a convolution."""

    name = "fuse-conv-relu"
    accuracy = Accuracy.EXACT
    roots = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "Clip")
    opset = 7
    example = Example(
        before="""
            agraph (float[N, 1, 4, 4] x) => (float[N, 2, 4, 4] y)
            <float[2, 1, 3, 3] w = {1, 0, 2, -1, 1, 0, 3, -2, 1, 0, 1, 0, 2, -3, 1, 1, 1, -1}> {
                a = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Relu(a)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
            agraph (float[N, 1, 4, 4] x) => (float[N, 2, 4, 4] y)
            <float[2, 1, 3, 3] w = {1, 0, 2, -1, 1, 0, 3, -2, 1, 0, 1, 0, 2, -3, 1, 1, 1, -1}> {
                y = com.microsoft.FusedConv <pads = [1, 1, 1, 1], activation = "Relu"> (x, w)
            }
        """,
        near_miss="""
            agraph (float[N, 1, 4, 4] x) => (float[N, 2, 4, 4] y) <float[2, 1, 1, 1] w = {1.0, 2.0}> {
                a = Conv(x, w)  b = Relu(a)  y = Add(a, b)
            }
        """,
        refusal="used elsewhere",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        value = node.inputs[0]
        conv = value.producer() if value is not None else None
        if value is None or conv is None or not is_plain_conv(conv) or conv.graph is not node.graph:
            return None
        if graph.sole_consumer(value) is not node:
            return Refused(USED_ELSEWHERE, (conv, node))
        parameters = _parameters(node, graph)
        if parameters is None or graph.dtype(value) != ir.DataType.FLOAT:
            return None
        activation = {"activation": node.op_type, "activation_params": parameters or None}
        return fused_conv(conv, (conv, node), activation, graph)


def _parameters(node: ir.Node, graph: Facts) -> tuple[float, ...] | None:
    """Return the parameters of an activation, or None if they are not constant."""
    attributes = node.attributes
    match node.op_type:
        case "LeakyRelu":
            return (attributes.get_float("alpha", 0.01),)
        case "HardSigmoid":
            return (attributes.get_float("alpha", 0.2), attributes.get_float("beta", 0.5))
        case "Clip":
            limits = bounds(node, graph)
            return None if limits is None else (limits.low, limits.high)
        case _:
            return ()
