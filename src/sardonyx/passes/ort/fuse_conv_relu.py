"""Relu(Conv(x)) => FusedConv(x), of ONNX Runtime.

Also LeakyRelu, Sigmoid, Tanh, HardSigmoid, and Clip to constants, and a FusedConv without an activation. Standard ONNX
has no such operator, so on the portable target it is only reported as a missed fusion. Only for single precision, the
only type with a kernel. Refuses if the convolution's result is used elsewhere. Helps because the activation is applied
while the result is still in the cache.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._channels import USED_ELSEWHERE
from sardonyx.passes._matching import require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass
from sardonyx.passes.norms._arithmetic import bounds
from sardonyx.passes.ort._contrib import CONVOLUTIONS, OrtPass, contrib

_DEFAULTS = {"LeakyRelu": {"alpha": 0.01}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5}}


class FuseConvRelu(OrtPass, PairPass):
    """An activation after a convolution."""

    accuracy = Accuracy.EXACT
    roots = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "Clip")
    inner, operand = CONVOLUTIONS, 0
    read_elsewhere = USED_ELSEWHERE
    opset = 7
    example = Example(
        before="""
            (float[N, 1, 4, 4] x) => (float[N, 2, 4, 4] y) <
                float[2, 1, 3, 3] w = {1, 0, 2, -1, 1, 0, 3, -2, 1, 0, 1, 0, 2, -3, 1, 1, 1, -1}
            > { a = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Relu(a) }
        """,
        after="""
            { y = com.microsoft.FusedConv <pads = [1, 1, 1, 1], activation = "Relu"> (x, w) }
        """,
        near_miss="<float[2, 1, 1, 1] w = {1.0, 2.0}> { a = Conv(x, w)  b = Relu(a)  y = Add(a, b) }",
        refusal="used elsewhere",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        require("activation" not in inner.attributes)
        if node.op_type == "Clip":
            limits = required(bounds(node, graph))
            parameters = [limits.low, limits.high]
        else:
            defaults = _DEFAULTS.get(node.op_type, {})
            parameters = [node.attributes.get_float(name, default) for name, default in defaults.items()]
        activation = {"activation": node.op_type, "activation_params": parameters or None}
        return contrib("FusedConv", (inner, node), inner.inputs, {**inner.attributes, **activation}, graph)
