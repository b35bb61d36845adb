"""SkipLayerNormalization(x + b, skip) => SkipLayerNormalization(x, skip, bias = b), of ONNX Runtime.

Also its simplified form, and a bias on the skip. Refuses if the sum is read elsewhere. For a bias that came to be
before the norm only after the norm was fused. Helps because the sum is computed together with the norm.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._channels import USED_ELSEWHERE
from sardonyx.passes._matching import require, required
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, PairPass, Replacement
from sardonyx.passes.ort._contrib import DOMAIN, LAYER, RMS, OrtPass, as_biased, on_ort


class FuseSkipBias(OrtPass, PairPass):
    """A bias before a fused residual norm."""

    accuracy = Accuracy.REASSOCIATES
    roots = (f"{DOMAIN}::{LAYER}", f"{DOMAIN}::{RMS}")
    inner = ("Add",)
    read_elsewhere = USED_ELSEWHERE
    opset = 7
    example = Example(
        before="""
            (float[N, S, 2] x, float[N, S, 2] skip) => (float[N, S, 2] y)
            <float[1, 1, 2] b = {1, -2}, float[2] scale = {2, 3}> {
                e = Sin(x)  a = Add(b, e)
                n, , , s = com.microsoft.SkipLayerNormalization <epsilon = 0.5> (a, skip, scale)  y = Mul(n, s)
            }
        """,
        after="""
            <float[2] b = {1, -2}, float[2] scale = {2, 3}> {
                e = Sin(x)
                n, , , s = com.microsoft.SkipLayerNormalization <epsilon = 0.5> (e, skip, scale, , b)  y = Mul(n, s)
            }
        """,
        near_miss="""
            <float[2] b = {1, -2}, float[2] scale = {2, 3}> {
                a = Add(x, b)  n = com.microsoft.SkipLayerNormalization(a, skip, scale)  y = Mul(n, a)
            }
        """,
        refusal="used elsewhere",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        bias = 4 if node.op_type == LAYER else 3  # the index of the bias operand
        require(index < 2 and operand(node, bias) is None)
        bias_sum = required(as_biased(inner, graph))

        def build(op: Builder) -> Replacement:
            inputs = [operand(node, place) for place in range(bias)]
            inputs[index] = bias_sum.source
            inputs.append(bias_sum.vector(op, graph))
            outputs = len(node.outputs)
            results = op.node(node.op_type, tuple(inputs), {**node.attributes}, domain=DOMAIN, outputs=outputs)
            for old, new in zip(node.outputs, results, strict=True):
                new.name = new.name if old.name else ""
            return [new if old.name else None for old, new in zip(node.outputs, results, strict=True)]

        return on_ort(Match((inner, node), build=build), node.op_type, graph)
