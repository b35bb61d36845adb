"""Slice(Slice(x, a, b), c, d) => Slice(x, a + c, min(b, a + d)).

For constant ranges. Ranges along different axes are combined as they are; along the same axis the second range is
relative to the first, which requires a static size. Refuses negative steps along the same axis, computed ranges, and if
the value in between is read elsewhere. Helps because each Slice copies what it selects.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from sardonyx.passes._matching import operand_producer
from sardonyx.passes._parts import Ranges, ranges
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement


class MergeSlices(NodePass):
    """Two consecutive Slices."""

    name = "merge-slices"
    accuracy = Accuracy.EXACT
    roots = ("Slice",)
    opset = 10  # before, ranges were attributes
    example = Example(
        before="""
            agraph (float[N, 8] x) => (float[M, 2] y) <
                int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {9223372036854775807}, int64[1] zero = {0}
            > { a = Slice(x, one, end, zero)  b = Slice(a, two, end, one, two)  y = Slice(b, one, end, one) }
        """,
        after="""
            agraph (float[N, 8] x) => (float[M, 2] y) <
                int64[2] starts = {1, 4}, int64[2] ends = {9223372036854775807, 8}, int64[2] axes = {0, 1},
                int64[2] steps = {1, 2}
            > { y = Slice(x, starts, ends, axes, steps) }
        """,
        near_miss="""
            agraph (float[N, 8] x) => (float[M, 8] y) <
                int64[1] one = {1}, int64[1] end = {9223372036854775807}, int64[1] zero = {0}
            > { a = Slice(x, one, end, zero)  y = Slice(a, one, end, zero) }
        """,
        refusal="whose size is dynamic",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        inner = operand_producer(node, 0, ("Slice",))
        if inner is None:
            return None
        nodes = (inner, node)
        first, second = ranges(inner, graph), ranges(node, graph)
        shape = graph.shape(inner.inputs[0])
        if first is None or second is None or shape is None:
            return Refused("a range is computed", nodes)
        if graph.sole_consumer(inner.outputs[0]) is not node:
            return Refused("the value in between is read elsewhere", nodes)
        joint = dict(first)
        for axis, (start, end, step) in second.items():
            size, before = shape[axis], first.get(axis)
            if before is None:
                joint[axis] = (start, end, step)
                continue
            if not isinstance(size, int) or before[2] < 0 or step < 0:
                return Refused("both slice the same axis, whose size is dynamic or whose step is negative", nodes)
            combined = range(*slice(*before).indices(size))[slice(start, end, step)]
            if len(combined) <= 1:  # its step and bounds may be beyond 64 bits
                combined = range(combined[0], combined[0] + 1) if combined else range(0)
            joint[axis] = (combined.start, combined.stop, combined.step)
        return Match(nodes, build=partial(_slice, inner.inputs[0], dict(sorted(joint.items()))))


def _slice(source: ir.Value | None, joint: Ranges, op: Builder) -> Replacement:
    starts, ends, steps = (np.array(column, np.int64) for column in zip(*joint.values(), strict=True))
    constants = [op.constant(starts, "starts"), op.constant(ends, "ends")]
    constants.append(op.constant(np.array(list(joint), np.int64), "axes"))
    if (steps != 1).any():
        constants.append(op.constant(steps, "steps"))
    return op.Slice(source, *constants)
