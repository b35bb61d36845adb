"""x / sqrt(mean(x²) + eps) * gamma => RMSNormalization(x, gamma).

In any spelling: squares as Pow or Mul, the division as Div, Reciprocal or Pow, gamma before or after it or absent,
casts to float and back. Refuses where the mean is over other than the last axes or drops them, where epsilon is outside
the root, where an inner value has other consumers, where a scale of ones would have more than 8,192 numbers, for
squares in half precision, which overflow from 256 on, and for doubles, which the operator may compute in single
precision. Helps because six sweeps over the data become one, also where ONNX Runtime's own fusion does not look.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.norms._norm_operands import fused, weight
from sardonyx.passes.norms._normalised import ROOTS, Normalised, normalised
from sardonyx.records.run import Accuracy


class FuseRmsNorm(NodePass):
    """Root-mean-square normalisation spelled out."""

    name = "fuse-rms-norm"
    accuracy = Accuracy.REASSOCIATES
    roots = ROOTS
    opset = 7  # before, operands were broadcast by an attribute
    needs = 23
    example = Example(
        before="""
            <ir_version: 11, opset_import: ["" : 23]>
            agraph (float[N, S, 4] x) => (float[N, S, 4] y) <
                float two = {2}, float[1] eps = {0.00001}, int64[1] last = {-1}, float[4] gamma = {1, 2, 3, -4}
            > {
                s = Pow(x, two)  v = ReduceMean(s, last)  e = Add(v, eps)  d = Sqrt(e)  r = Reciprocal(d)
                n = Mul(x, r)  y = Mul(gamma, n)
            }
        """,
        after="""
            <ir_version: 11, opset_import: ["" : 23]>
            agraph (float[N, S, 4] x) => (float[N, S, 4] y) <float[4] gamma = {1, 2, 3, -4}> {
                y = RMSNormalization <epsilon = 0.00001> (x, gamma)
            }
        """,
        near_miss="""
            <ir_version: 11, opset_import: ["" : 23]>
            agraph (float[N, S, 4] x) => (float[N, S, 4] y) <
                float eps = {0.00001}, int64[1] last = {-1}, float[4] gamma = {1, 2, 3, -4}
            > {
                s = Mul(x, x)  v = ReduceMean(s, last)  d = Sqrt(v)  e = Add(d, eps)  n = Div(x, e)  y = Mul(gamma, n)
            }
        """,
        refusal="epsilon is outside the square root",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """The square root of a mean square, by which the squared value is divided."""
        found = normalised(node, graph, about_mean=False)
        return fused(found, found.source, (), graph, bias=False) if isinstance(found, Normalised) else found

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """One operator."""
        found = match.found
        scale = weight(found["scale"], op, "scale")
        return op.RMSNormalization(found["source"], scale, axis=found["axis"], epsilon=found["epsilon"])
