"""Clip(Clip(x, a, b), c, d) => Clip(x, max(a, c), min(b, d)), and likewise with Relu, which is Clip(x, 0, ∞).

Exact to the bit: a missing bound clips infinities to the largest finite number, and two ranges that do not overlap
become a constant. Refuses if a bound is computed or NaN, if the value in between has other consumers, and if the sign
of a zero would change (a bound of -0.0; Relu before a Clip in half precision). Helps because each is a pass over the
data, and because fusions of an activation into a convolution take only one.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from sardonyx.passes._matching import require, required
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, PairPass, Replacement
from sardonyx.passes.norms._arithmetic import BOUNDS_AS_INPUTS, LARGEST, bounds, merged


class MergeClips(PairPass):
    """Two consecutive clips."""

    accuracy = Accuracy.EXACT
    roots = inner = ("Clip", "Relu")
    operand = 0
    read_elsewhere = "the value in between is read elsewhere"
    opset = 6  # before, they had an attribute for working in place
    example = Example(
        before="""
            (float[N] x) => (float[N] y) <float low = {-1}, float high = {6}, float four = {4}>
            { a = Clip(x, low, high)  b = Relu(a)  c = Relu(b)  y = Clip(c, , four) }
        """,
        after="<float zero = {0}, float four = {4}> { y = Clip(x, zero, four) }",
        near_miss="""
            (float[N] x, float high) => (float[N] y) <float zero = {0}> { a = Clip(x, zero, high)  y = Relu(a) }
        """,
        refusal="a bound is computed",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        dtype, nodes = required(graph.dtype(node.inputs[0])), (inner, node)
        require(dtype in LARGEST)
        is_constant = bounds(inner, graph) is not None and bounds(node, graph) is not None
        require(is_constant, "a bound is computed")
        operator, limits = required(merged(inner, node, graph), "the sign of a zero would change")
        if operator == "Relu":
            return Match(nodes, build=lambda op: op.Relu(inner.inputs[0]))
        low = None if limits.low == -LARGEST[dtype] else limits.low
        high = None if limits.high == LARGEST[dtype] else limits.high
        if graph.opset(node) < BOUNDS_AS_INPUTS:
            return Match(nodes, build=lambda op: op.Clip(inner.inputs[0], min=low, max=high))
        return Match(nodes, build=partial(_clip, inner.inputs[0], low, high, dtype))


def _clip(
    source: ir.Value | None, low: float | None, high: float | None, dtype: ir.DataType, op: Builder
) -> Replacement:
    numbers = (None if bound is None else np.array(bound, dtype.numpy()) for bound in (low, high))
    return op.Clip(source, *(None if number is None else op.constant(number, "bound") for number in numbers))
