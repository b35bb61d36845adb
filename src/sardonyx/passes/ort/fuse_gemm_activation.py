"""Tanh(Gemm(a, b, c)) => FusedGemm(a, b, c), of ONNX Runtime.

Also Relu, LeakyRelu, Sigmoid, Softplus and Softsign. Refuses if the product is used elsewhere. Only for single
precision, the only type with a kernel. Helps because the activation is applied to the product in place.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._channels import USED_ELSEWHERE
from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass
from sardonyx.passes.ort._contrib import OrtPass, contrib


class FuseGemmActivation(OrtPass, PairPass):
    """An activation after a matrix product."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Tanh", "Relu", "LeakyRelu", "Sigmoid", "Softplus", "Softsign")
    inner = ("Gemm",)
    read_elsewhere = USED_ELSEWHERE
    opset = 11  # since then the third operand is optional, as in the runtime's operator
    example = Example(
        before="""
            (float[N, 2] x) => (float[N, 3] y) <float[3, 2] w = {1, 2, -3, 4, 5, -6}, float[3] b = {1, 2, -3}>
            { a = Gemm <transB = 1> (x, w, b)  y = Tanh(a) }
        """,
        after="""
            { y = com.microsoft.FusedGemm <transB = 1, activation = "Tanh"> (x, w, b) }
        """,
        near_miss="""
            <float[2, 3] w = {1, 2, -3, 4, 5, -6}, float[3] b = {1, 2, -3}> {
                a = Gemm(x, w, b)  s = Sigmoid(a)  y = Mul(a, s)
            }
        """,
        refusal="used elsewhere",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        slope = node.attributes.get_float("alpha", 0.01) if node.op_type == "LeakyRelu" else None
        attributes = {**inner.attributes, "activation": node.op_type, "activation_alpha": slope}
        return contrib("FusedGemm", (inner, node), inner.inputs, attributes, graph)
