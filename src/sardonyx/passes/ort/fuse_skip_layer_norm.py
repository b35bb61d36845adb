"""LayerNormalization(x + skip [+ bias]) => SkipLayerNormalization(x, skip, scale, shift, bias), of ONNX Runtime.

The sum is an additional output if something else reads it. Refuses sums whose parts may differ in shape by more than a
missing batch, more than three axes, and normalisation over other axes than the last: the kernel takes nothing else.
Helps if the number of nodes counts: two additions go. If only time counts, skip it: in ONNX Runtime 1.31 the CPU kernel
measured 3 to 5 times slower than the sum and the norm separately, which made whole encoders 4 to 9 % slower.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.support import SKIP_NORMALIZATION
from sardonyx.passes.base import Accuracy, Example, Facts, Match
from sardonyx.passes.ort._contrib import LAYER, OrtPass, skip_match


class FuseSkipLayerNorm(OrtPass):
    """A residual sum before a layer normalisation."""

    accuracy = Accuracy.REASSOCIATES
    slower = SKIP_NORMALIZATION.fact
    roots = ("LayerNormalization",)
    opset = 17
    example = Example(
        before="""
            (float[N, S, 2] x, float[N, S, 2] skip) => (float[N, S, 2] y)
            <float[2, 2] w = {1, 2, -3, 4}, float[2] b = {1, -2}, float[2] scale = {2, 3}, float[2] shift = {4, 5}> {
                m = MatMul(x, w)  a = Add(m, b)  s = Add(a, skip)
                n = LayerNormalization <epsilon = 0.5> (s, scale, shift)  y = Mul(n, s)
            }
        """,
        after="""{
            m = MatMul(x, w)
            n, , , s = com.microsoft.SkipLayerNormalization <epsilon = 0.5> (m, skip, scale, shift, b)
            y = Mul(n, s)
        }""",
        near_miss="""
            (float[N, H, S, 2] x, float[N, H, S, 2] skip) => (float[N, H, S, 2] y)
            <float[2] scale = {2, 3}> { s = Add(x, skip)  y = LayerNormalization(s, scale) }
        """,
        refusal="matrices or a batch of matrices",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        return skip_match(LAYER, node, graph)
