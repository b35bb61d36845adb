"""Gelu(x + b) => BiasGelu(x, b), or FastGelu(x, b) for the tanh form, of ONNX Runtime.

Refuses if the sum is used elsewhere. Only for single precision, the only type with a kernel, and a vector b along the
last axis. Helps because the bias is added while the activation is computed.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._channels import USED_ELSEWHERE
from sardonyx.passes._matching import require, required
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, PairPass, Replacement
from sardonyx.passes.ort._contrib import DOMAIN, OrtPass, as_biased, on_ort

_OPERATORS = {"none": "BiasGelu", "tanh": "FastGelu"}


class FuseBiasGelu(OrtPass, PairPass):
    """A bias before a Gelu."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Gelu",)
    inner = ("Add",)
    read_elsewhere = USED_ELSEWHERE
    opset = 20
    example = Example(
        before="""
            (float[N, S, 2] x) => (float[N, S, 2] y) <float[2] b = {1, -2}> { e = Sin(x)  a = Add(b, e)  y = Gelu(a) }
        """,
        after="{ e = Sin(x)  y = com.microsoft.BiasGelu(e, b) }",
        near_miss="{ a = Add(x, b)  g = Gelu(a)  y = Mul(g, a) }",
        refusal="used elsewhere",
        opset=20,
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        bias_sum = required(as_biased(inner, graph))
        operator = required(_OPERATORS.get(node.attributes.get_string("approximate", "none")))
        require(graph.dtype(bias_sum.source) == ir.DataType.FLOAT)

        def build(op: Builder) -> Replacement:
            return op.node(operator, (bias_sum.source, bias_sum.vector(op, graph)), domain=DOMAIN)

        return on_ort(Match((inner, node), build=build), operator, graph)
