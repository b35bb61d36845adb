"""(x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) * gamma + beta => LayerNormalization(x, gamma, beta).

In any form: squares as Pow or Mul, the division as Div, Reciprocal or Pow, gamma before or after it, gamma or beta
absent, casts to float and back. Refuses if the mean is over other than the last axes or drops them, if epsilon is
outside the root, if an inner value has other consumers, if a scale of ones would have more than 8,192 numbers, for
squares in half precision, which overflow from 256 on, for doubles, which the operator may compute in single precision,
and without an epsilon. Helps because eight passes over the data become one, also where ONNX Runtime's own fusion does
not apply.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._matching import require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass
from sardonyx.passes.norms._arithmetic import uncast
from sardonyx.passes.norms._normalisation import ROOTS, centred, fused, normalised


class FuseLayerNorm(NodePass):
    """Decomposed layer normalisation."""

    accuracy = Accuracy.REASSOCIATES
    roots = ROOTS
    opset = 7  # before, operands broadcast only with an attribute
    needs = 17
    example = Example(
        before="""
            (float[N, S, 4] x) => (float[N, S, 4] y)
            <float two = {2}, float[1] eps = {0.00001}, float[4] gamma = {1, 2, 3, -4}, float[4] beta = {4, 3, 2, 1}> {
                m = ReduceMean <axes = [-1]> (x)  c = Sub(x, m)  s = Pow(c, two)  v = ReduceMean <axes = [-1]> (s)
                e = Add(eps, v)  d = Sqrt(e)  n = Div(c, d)  g = Mul(n, gamma)  y = Add(beta, g)
            }
        """,
        after="{ y = LayerNormalization <epsilon = 0.00001> (x, gamma, beta) }",
        near_miss="""
            (float[N, 4, S] x) => (float[N, 4, S] y) <float eps = {0.00001}, float[4, 1] gamma = {1, 2, 3, -4}> {
                m = ReduceMean <axes = [1]> (x)  c = Sub(x, m)  s = Mul(c, c)  v = ReduceMean <axes = [1]> (s)
                e = Add(v, eps)  d = Sqrt(e)  n = Div(c, d)  y = Mul(n, gamma)
            }
        """,
        refusal="not over the last axes",
        opset=17,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        norm = normalised(node, graph, about_mean=True)
        # For equal numbers the operator gets a variance of 0, the model a rounding error.
        require(norm.epsilon != 0, "it has no epsilon", *norm.nodes)
        bare, casts = uncast(norm.source, node, graph)
        difference = required(centred(bare, node, graph))
        nodes = (*difference.nodes, *norm.nodes)
        require(not difference.fault, difference.fault, *nodes)
        require(difference.axes == norm.axes, "mean and variance are over different axes", *nodes)
        return fused(norm, difference.source, (*difference.nodes, *casts), graph, bias=True, widened=bool(casts))
