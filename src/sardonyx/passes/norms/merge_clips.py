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

from sardonyx.passes._matching import operand_producer
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement
from sardonyx.passes.norms._arithmetic import BOUNDS_AS_INPUTS, LARGEST, Range, bounds, merged


class MergeClips(NodePass):
    """Two consecutive clips."""

    name = "merge-clips"
    accuracy = Accuracy.EXACT
    roots = ("Clip", "Relu")
    opset = 6  # before, they had an attribute for working in place
    example = Example(
        before="""
            agraph (float[N] x) => (float[N] y) <float low = {-1}, float high = {6}, float four = {4}> {
                a = Clip(x, low, high)  b = Relu(a)  c = Relu(b)  y = Clip(c, , four)
            }
        """,
        after="agraph (float[N] x) => (float[N] y) <float zero = {0}, float four = {4}> { y = Clip(x, zero, four) }",
        near_miss="""
            agraph (float[N] x, float high) => (float[N] y) <float zero = {0}> {
                a = Clip(x, zero, high)  y = Relu(a)
            }
        """,
        refusal="a bound is computed",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        inner = operand_producer(node, 0, self.roots)
        dtype = graph.dtype(node.inputs[0])
        if inner is None or dtype is None or dtype not in LARGEST:
            return None
        nodes = (inner, node)
        if bounds(inner, graph) is None or bounds(node, graph) is None:
            return Refused("a bound is computed", nodes)
        if graph.sole_consumer(inner.outputs[0]) is not node:
            return Refused("the value in between is read elsewhere", nodes)
        combined = merged(inner, node, graph)
        if combined is None:
            return Refused("the sign of a zero would change", nodes)
        return Match(nodes, build=partial(_clip, inner.inputs[0], *combined, dtype, graph.opset(node)))


def _clip(
    source: ir.Value | None, operator: str, limits: Range, dtype: ir.DataType, opset: int, op: Builder
) -> Replacement:
    """Build one operator with the combined bounds."""
    if operator == "Relu":
        return op.Relu(source)
    low = None if limits.low == -LARGEST[dtype] else limits.low
    high = None if limits.high == LARGEST[dtype] else limits.high
    if opset < BOUNDS_AS_INPUTS:
        return op.Clip(source, min=low, max=high)
    return op.Clip(source, _bound(low, dtype, op), _bound(high, dtype, op))


def _bound(number: float | None, dtype: ir.DataType, op: Builder) -> ir.Value | None:
    return None if number is None else op.constant(np.array(number, dtype.numpy()), "bound")
