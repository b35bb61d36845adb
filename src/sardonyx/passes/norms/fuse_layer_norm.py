"""(x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) * gamma + beta => LayerNormalization(x, gamma, beta).

In any spelling: squares as Pow or Mul, the division as Div, Reciprocal or Pow, gamma before or after it, gamma or beta
absent, casts to float and back. Refuses where the mean is over other than the last axes or drops them, where epsilon is
outside the root, where an inner value has other consumers, where a scale of ones would have more than 8,192 numbers,
for squares in half precision, which overflow from 256 on, for doubles, which the operator may compute in single
precision, and without an epsilon. Helps because eight sweeps over the data become one, also where ONNX Runtime's own
fusion does not look.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.norms._arithmetic import uncast
from sardonyx.passes.norms._means import centred
from sardonyx.passes.norms._norm_operands import fused, weight
from sardonyx.passes.norms._normalised import ROOTS, Normalised, normalised
from sardonyx.records.run import Accuracy


class FuseLayerNorm(NodePass):
    """Layer normalisation spelled out."""

    name = "fuse-layer-norm"
    accuracy = Accuracy.REASSOCIATES
    roots = ROOTS
    opset = 7  # before, operands were broadcast by an attribute
    needs = 17
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 17]>
            agraph (float[N, S, 4] x) => (float[N, S, 4] y) <
                float two = {2}, float[1] eps = {0.00001}, float[4] gamma = {1, 2, 3, -4}, float[4] beta = {4, 3, 2, 1}
            > {
                m = ReduceMean <axes = [-1]> (x)  c = Sub(x, m)  s = Pow(c, two)  v = ReduceMean <axes = [-1]> (s)
                e = Add(eps, v)  d = Sqrt(e)  n = Div(c, d)  g = Mul(n, gamma)  y = Add(beta, g)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 17]>
            agraph (float[N, S, 4] x) => (float[N, S, 4] y)
            <float[4] gamma = {1, 2, 3, -4}, float[4] beta = {4, 3, 2, 1}> {
                y = LayerNormalization <epsilon = 0.00001> (x, gamma, beta)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 17]>
            agraph (float[N, 4, S] x) => (float[N, 4, S] y) <float eps = {0.00001}, float[4, 1] gamma = {1, 2, 3, -4}> {
                m = ReduceMean <axes = [1]> (x)  c = Sub(x, m)  s = Mul(c, c)  v = ReduceMean <axes = [1]> (s)
                e = Add(v, eps)  d = Sqrt(e)  n = Div(c, d)  y = Mul(n, gamma)
            }
        """,
        refusal="not over the last axes",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """The square root of a mean square, by which the squared value is divided, that being x - mean(x)."""
        found = normalised(node, graph, about_mean=True)
        if not isinstance(found, Normalised):
            return found
        if not found.epsilon:  # the operator's variance of equal numbers is 0 where the source's is a rounding error
            return Refused("it has no epsilon", found.nodes)
        bare, casts = uncast(found.source, node, graph)
        middle = centred(bare, node, graph)
        if isinstance(middle, Refused):
            return Refused(middle.reason, (*middle.nodes, *found.nodes))
        if middle is None:
            return None
        if middle.axes != found.axes:
            return Refused("mean and variance are over different axes", (*middle.nodes, *found.nodes))
        return fused(found, middle.source, (*middle.nodes, *casts), graph, bias=True, widened=bool(casts))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """One operator."""
        found = match.found
        scale, bias = weight(found["scale"], op, "scale"), weight(found["bias"], op, "bias")
        return op.LayerNormalization(found["source"], scale, bias, axis=found["axis"], epsilon=found["epsilon"])
