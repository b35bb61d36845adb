"""Parts of a value along its axes: a Split as every operator set writes it, and the ranges of a Slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.passes._matching import operand

SIZES_AS_INPUT_SINCE = 13

Ranges = Mapping[int, tuple[int, int, int]]  # start, end and step by axis


def split_into(source: ir.Value, axis: int, sizes: Sequence[int], op: Builder) -> tuple[ir.Value, ...]:
    """The parts of a value along an axis."""
    if op.scope.opset < SIZES_AS_INPUT_SINCE:
        return op.node("Split", (source,), {"axis": axis, "split": list(sizes)}, outputs=len(sizes))
    lengths = op.constant(np.array(sizes, np.int64), "sizes")
    return op.node("Split", (source, lengths), {"axis": axis}, outputs=len(sizes))


def ranges(node: ir.Node, graph: Facts) -> Ranges | None:
    """The constant ranges of a Slice that has them as inputs; None where one is computed or an axis is not known."""
    rank = graph.rank(node.inputs[0])
    starts, ends = graph.ints(operand(node, 1)), graph.ints(operand(node, 2))
    if rank is None or starts is None or ends is None:
        return None
    axes, steps = operand(node, 3), operand(node, 4)
    which = tuple(range(len(starts))) if axes is None else graph.ints(axes)
    by = (1,) * len(starts) if steps is None else graph.ints(steps)
    if which is None or by is None or not len(starts) == len(ends) == len(which) == len(by) or 0 in by:
        return None
    if any(not -rank <= axis < rank for axis in which):
        return None
    found = {axis % rank: each for axis, each in zip(which, zip(starts, ends, by, strict=True), strict=True)}
    return found if len(found) == len(which) else None
