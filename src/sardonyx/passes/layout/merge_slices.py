"""Slice(Slice(x, a, b), c, d) => Slice(x, a + c, min(b, a + d)).

For constant ranges. Ranges along different axes are combined as they are; along the same axis the second range is
relative to the first, which requires a static size. Refuses negative steps along the same axis, computed ranges, and if
the value in between is read elsewhere. Helps because each Slice copies what it selects.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from sardonyx.passes._matching import require, required, static
from sardonyx.passes._parts import Ranges, ranges
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, PairPass, Replacement


class MergeSlices(PairPass):
    """Two consecutive Slices."""

    accuracy = Accuracy.EXACT
    roots = inner = ("Slice",)
    operand = 0
    read_elsewhere = "the value in between is read elsewhere"
    opset = 10  # before, ranges were attributes
    example = Example(
        before="""
            (float[N, 8] x) => (float[M, 2] y) <
                int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {9223372036854775807}, int64[1] zero = {0}
            > { a = Slice(x, one, end, zero)  b = Slice(a, two, end, one, two)  y = Slice(b, one, end, one) }
        """,
        after="""
            <
                int64[2] starts = {1, 4}, int64[2] ends = {9223372036854775807, 8}, int64[2] axes = {0, 1},
                int64[2] steps = {1, 2}
            > { y = Slice(x, starts, ends, axes, steps) }
        """,
        near_miss="""
            (float[N, 8] x) => (float[M, 8] y) <
                int64[1] one = {1}, int64[1] end = {9223372036854775807}, int64[1] zero = {0}
            > { a = Slice(x, one, end, zero)  y = Slice(a, one, end, zero) }
        """,
        refusal="whose size is dynamic",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        nodes = (inner, node)
        first, second = (required(ranges(each, graph), "a range is computed") for each in nodes)
        shape = required(graph.shape(inner.inputs[0]), "a range is computed")
        joint = dict(first)
        for axis, (start, end, step) in second.items():
            size, before = shape[axis], first.get(axis)
            if before is None:
                joint[axis] = (start, end, step)
                continue
            refusal = "both slice the same axis, whose size is dynamic or whose step is negative"
            require(before[2] > 0 and step > 0, refusal)
            combined = range(*slice(*before).indices(static(size, refusal)))[slice(start, end, step)]
            if len(combined) <= 1:  # its step and bounds may be beyond 64 bits
                combined = range(combined[0], combined[0] + 1) if combined else range(0)
            joint[axis] = (combined.start, combined.stop, combined.step)
        return Match(nodes, build=partial(_slice, inner.inputs[0], dict(sorted(joint.items()))))


def _slice(source: ir.Value | None, joint: Ranges, op: Builder) -> Replacement:
    starts, ends, steps = (np.array(column, np.int64) for column in zip(*joint.values(), strict=True))
    columns = {"starts": starts, "ends": ends, "axes": np.array(list(joint), np.int64), "steps": steps}
    if (steps == 1).all():
        del columns["steps"]
    return op.Slice(source, *(op.constant(column, name) for name, column in columns.items()))
