"""HardSwish(Conv(x)) => FusedConv(x), of ONNX Runtime.

The activation is a HardSwish, or a value times its HardSigmoid with 1/6 and 1/2. Refuses if the convolution's result is
used elsewhere. Only for single precision, the only type with a kernel. Helps because the runtime has no kernel for
HardSwish alone and would pass over the data twice more.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import is_used_outside
from sardonyx.passes._channels import USED_ELSEWHERE
from sardonyx.passes._matching import consumer_of
from sardonyx.passes.base import Accuracy, Example, Facts, Match, Refused
from sardonyx.passes.ort._contrib import OrtPass, fused_conv, is_plain_conv

_SIXTH = 1.0 / 6.0
_TOLERANCE = 1e-7


class FuseConvHardSwish(OrtPass):
    """A hard swish after a convolution."""

    name = "fuse-conv-hard-swish"
    accuracy = Accuracy.REASSOCIATES
    roots = ("HardSwish", "HardSigmoid")
    opset = 7
    example = Example(
        before="""
            agraph (float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y) <float[2, 2, 1, 1] w = {1, -2, 3, 4}> {
                a = Conv(x, w)  y = HardSwish(a)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
            agraph (float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y) <float[2, 2, 1, 1] w = {1, -2, 3, 4}> {
                y = com.microsoft.FusedConv <activation = "HardSwish"> (x, w)
            }
        """,
        near_miss="""
            agraph (float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y) <float[2, 2, 1, 1] w = {1, -2, 3, 4}> {
                a = Conv(x, w)  b = HardSwish(a)  y = Add(a, b)
            }
        """,
        refusal="used elsewhere",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        value = node.inputs[0]
        conv = value.producer() if value is not None else None
        if value is None or conv is None or not is_plain_conv(conv) or conv.graph is not node.graph:
            return None
        activation = (node,) if node.op_type == "HardSwish" else _gated(node, value, graph)
        if activation is None or graph.dtype(value) != ir.DataType.FLOAT:
            return None
        nodes = (conv, *activation)
        if is_used_outside(value, activation):
            return Refused(USED_ELSEWHERE, nodes)
        return fused_conv(conv, nodes, {"activation": "HardSwish"}, graph)


def _gated(gate: ir.Node, value: ir.Value, graph: Facts) -> tuple[ir.Node, ...] | None:
    """Return the hard sigmoid and its product with the value if they form a hard swish, otherwise None."""
    attributes = gate.attributes
    if abs(attributes.get_float("alpha", 0.2) - _SIXTH) > _TOLERANCE or attributes.get_float("beta", 0.5) != 0.5:
        return None
    product = consumer_of(gate.outputs[0], graph, ("Mul",))
    return (gate, product) if product is not None and value in product.inputs else None
