"""Clip(Clip(x, a, b), c, d) => Clip(x, max(a, c), min(b, d)), and likewise with Relu, which is Clip(x, 0, ∞).

Two that overlap nowhere become the constant bound that remains. Refuses where a bound is computed, where one has its
bounds the wrong way round, and where the value in between is read elsewhere. Helps because each is a sweep over the
data, and because what fuses an activation into a convolution takes one.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.facts import Facts
from sardonyx.graph.rules import Match, Refused, Replacement
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.norms.parts.bounds import Range, bounds
from sardonyx.passes.shared.matching import maker
from sardonyx.record import Accuracy

_BOUNDS_AS_INPUTS = 11  # the opset
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


class MergeClips(NodePass):
    """Bounds after bounds."""

    name = "merge-clips"
    accuracy = Accuracy.REASSOCIATES  # which of two zeros or NaNs comes out is the kernel's business
    roots = ("Clip", "Relu")
    opset = 6  # before, they could be told to work in place
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N] x) => (float[N] y) <float low = {-1}, float high = {6}, float four = {4}> {
                a = Clip(x, low, high)  b = Relu(a)  c = Relu(b)  y = Clip(c, , four)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N] x) => (float[N] y) <float zero = {0}, float four = {4}> { y = Clip(x, zero, four) }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N] x, float high) => (float[N] y) <float zero = {0}> {
                a = Clip(x, zero, high)  y = Relu(a)
            }
        """,
        refusal="a bound is computed",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """One right after another."""
        inner = maker(node, 0, self.roots)
        dtype = graph.dtype(node.inputs[0])
        if inner is None or dtype not in _FLOATS:
            return None
        nodes = (inner, node)
        first, second = bounds(inner, graph), bounds(node, graph)
        if first is None or second is None:
            return Refused("a bound is computed", nodes)
        if not (first.low <= first.high and second.low <= second.high):
            return Refused("the bounds are the wrong way round", nodes)
        if graph.sole_user(inner.outputs[0]) is not node:
            return Refused("the value in between is read elsewhere", nodes)
        both = Range(second.clipped(first.low), second.clipped(first.high))
        return Match(nodes, {"range": both, "dtype": dtype, "opset": graph.opset(node)})

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """One with the bounds of both."""
        source, both, dtype = match.nodes[0].inputs[0], match.found["range"], match.found["dtype"]
        if (both.low, both.high) == (0.0, math.inf):
            return op.Relu(source)
        if match.found["opset"] < _BOUNDS_AS_INPUTS:
            low, high = (None if math.isinf(bound) else bound for bound in (both.low, both.high))
            return op.Clip(source, min=low, max=high)
        return op.Clip(source, *(_bound(bound, dtype, op) for bound in (both.low, both.high)))


def _bound(number: float, dtype: ir.DataType, op: Builder) -> ir.Value | None:
    return None if math.isinf(number) else op.constant(np.array(number, dtype.numpy()), "bound")
