"""HardSwish(Conv(x)) => FusedConv(x), of ONNX Runtime.

The activation is a HardSwish, or a value times its HardSigmoid with 1/6 and 1/2. Refuses if the convolution's result is
used elsewhere. Only for single precision, the only type with a kernel. Helps because the runtime has no kernel for
HardSwish alone and would pass over the data twice more.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import is_used_outside
from sardonyx.passes._channels import USED_ELSEWHERE
from sardonyx.passes._matching import consumer_of, require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass
from sardonyx.passes.ort._contrib import CONVOLUTIONS, OrtPass, contrib

_SIXTH = 1.0 / 6.0
_SLOPE_TOLERANCE = 1e-7


class FuseConvHardSwish(OrtPass, PairPass):
    """A hard swish after a convolution."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("HardSwish", "HardSigmoid")
    inner, operand = CONVOLUTIONS, 0
    opset = 7
    example = Example(
        before="""
            (float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y)
            <float[2, 2, 1, 1] w = {1, -2, 3, 4}> { a = Conv(x, w)  y = HardSwish(a) }
        """,
        after="""
            { y = com.microsoft.FusedConv <activation = "HardSwish"> (x, w) }
        """,
        near_miss="{ a = Conv(x, w)  b = HardSwish(a)  y = Add(a, b) }",
        refusal="used elsewhere",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        value, activation = inner.outputs[0], (node,)
        require("activation" not in inner.attributes)
        if node.op_type == "HardSigmoid":
            slope, offset = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
            product = required(consumer_of(node.outputs[0], graph, ("Mul",)))
            require(abs(slope - _SIXTH) <= _SLOPE_TOLERANCE and offset == 0.5 and value in product.inputs)
            activation = (node, product)
        require(graph.dtype(value) == ir.DataType.FLOAT)
        require(not is_used_outside(value, activation), USED_ELSEWHERE, inner, *activation)
        attributes = {**inner.attributes, "activation": "HardSwish"}
        return contrib("FusedConv", (inner, *activation), inner.inputs, attributes, graph)
