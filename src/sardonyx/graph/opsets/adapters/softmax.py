"""Softmax, LogSoftmax and Hardmax: before 13 they ran over all axes from one on, as if these were one axis."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.opsets.adapter import CannotRaise, Rewrite, Step, rebuilt, rewritten
from sardonyx.graph.shapes import expr

_KEEPS_ZEROS = 14  # since which a Reshape can be told that a 0 is a size and no reference


def flattened(step: Step) -> Rewrite:
    """The same over the last axis where that was the only one, else over the flattened rest."""
    axis = step.node.attributes.get_int("axis", 1)
    rank = step.graph.rank(step.reads(0))
    if axis == -1 or (rank is not None and axis % max(rank, 1) == rank - 1):
        return rewritten(step, axis=-1)

    shape = step.graph.shape(step.reads(0))
    if step.new < _KEEPS_ZEROS and not (shape is not None and all(expr.at_least(dim, 1) for dim in shape)):
        raise CannotRaise("an axis may be empty, for which opset 13 has no Reshape")

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        source = step.node.inputs[0]
        flat = op.Flatten(source, axis=axis)
        (result,) = rebuilt(op, step.node, [flat], axis=-1)
        keep = {"allowzero": 1} if step.new >= _KEEPS_ZEROS else {}
        return (op.Reshape(result, op.Shape(source), **keep),)

    return rewrite
