"""x / sqrt(mean(x²) + eps) * gamma => RMSNormalization(x, gamma).

In any form: squares as Pow or Mul, the division as Div, Reciprocal or Pow, gamma before or after it or absent, casts to
float and back. Refuses if the mean is over other than the last axes or drops them, if epsilon is outside the root, if
an inner value has other consumers, if a scale of ones would have more than 8,192 numbers, for squares in half
precision, which overflow from 256 on, and for doubles, which the operator may compute in single precision. Helps
because six passes over the data become one, also where ONNX Runtime's own fusion does not apply.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass
from sardonyx.passes.norms._normalisation import ROOTS, fused, normalised


class FuseRmsNorm(NodePass):
    """Decomposed root-mean-square normalisation."""

    accuracy = Accuracy.REASSOCIATES
    roots = ROOTS
    opset = 7  # before, operands broadcast only with an attribute
    needs = 23
    example = Example(
        before="""
            (float[N, S, 4] x) => (float[N, S, 4] y)
            <float two = {2}, float[1] eps = {0.00001}, int64[1] last = {-1}, float[4] gamma = {1, 2, 3, -4}> {
                s = Pow(x, two)  v = ReduceMean(s, last)  e = Add(v, eps)  d = Sqrt(e)  r = Reciprocal(d)
                n = Mul(x, r)  y = Mul(gamma, n)
            }
        """,
        after="{ y = RMSNormalization <epsilon = 0.00001> (x, gamma) }",
        near_miss="""
            <float eps = {0.00001}, int64[1] last = {-1}, float[4] gamma = {1, 2, 3, -4}> {
                s = Mul(x, x)  v = ReduceMean(s, last)  d = Sqrt(v)  e = Add(d, eps)  n = Div(x, e)  y = Mul(gamma, n)
            }
        """,
        refusal="epsilon is outside the square root",
        opset=23,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        norm = normalised(node, graph, about_mean=False)
        return fused(norm, norm.source, (), graph, bias=False)
