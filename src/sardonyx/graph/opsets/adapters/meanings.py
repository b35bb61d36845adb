"""Operators whose attributes, defaults or inputs came to mean something else, or that the runtime does not follow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.opsets.adapter import CannotRaise, Rewrite, Step, rebuilt, rewritten

_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def without_kernel(step: Step) -> None:
    """The same operator, but nothing to run it with."""
    raise CannotRaise("ONNX Runtime does not run it in opset 22")


def batch_normalization(step: Step) -> Rewrite | None:
    """Without the mode that had a mean for every place, and without the outputs that meant training."""
    if len(step.node.outputs) > 1:
        raise CannotRaise("it is in training")
    spatial = step.node.attributes.get_int("spatial")
    if step.passes(9) and spatial == 0:
        raise CannotRaise("opset 9 no longer has a mean for every place")
    return rewritten(step, drop=["spatial"]) if spatial is not None else None


def pool(step: Step) -> None:
    """The same unless sizes are rounded up: a last window may lie in the padding alone, and no longer counts."""
    if step.node.attributes.get_int("ceil_mode", 0):
        raise CannotRaise("its last windows, where sizes are rounded up, came to mean something else")


def conv_transpose(step: Step) -> None:
    """The same unless it splits the padding itself: which side gets more was turned round."""
    if step.node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
        raise CannotRaise("opset 11 pads the other side")


def one_hot(step: Step) -> None:
    """Negative numbers were outside, and count from the end now."""
    indices = step.graph.array(step.reads(0))
    if indices is None or (indices < 0).any():
        raise CannotRaise("negative numbers came to mean something else in opset 11")


def erf(step: Step) -> None:
    """Only of floating-point numbers now."""
    if step.dtype().kind in "iu":
        raise CannotRaise("opset 13 has it for floating-point numbers only")


def mean_variance_normalization(step: Step) -> Rewrite | None:
    """The default axes, said: since opset 13 onnx's own inference fails where they are not."""
    return rewritten(step, axes=[0, 2, 3]) if "axes" not in step.node.attributes else None


def grid_sample(step: Step) -> Rewrite | None:
    """Other words for the same modes."""
    mode = _GRID_MODES.get(step.node.attributes.get_string("mode", ""))
    return rewritten(step, mode=mode) if mode is not None else None


def roi_align(step: Step) -> Rewrite | None:
    """What was the only way is no longer the default."""
    if step.passes(22):
        without_kernel(step)
    if "coordinate_transformation_mode" in step.node.attributes:
        return None
    return rewritten(step, coordinate_transformation_mode="output_half_pixel")


def scan(step: Step) -> None:
    """The first Scan ran over a batch of sequences of different lengths."""
    raise CannotRaise("opset 9 no longer scans batches")


def scatter(step: Step) -> Rewrite:
    """Under its new name."""
    return rewritten(step, op_type="ScatterElements")


def group_normalization(step: Step) -> Rewrite:
    """Scale and bias for every channel instead of every group; computed in its own type, as it was."""
    shape = step.graph.shape(step.reads(0))
    groups = step.node.attributes.get_int("num_groups")
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    if not isinstance(channels, int) or not groups:
        raise CannotRaise("it is not known how many channels it has")
    share, stash = channels // groups, step.dtype()

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        inputs = [step.reads(0), *(_repeated(step, op, step.reads(index), share) for index in (1, 2))]
        return rebuilt(op, step.node, inputs, stash_type=ir.DataType.from_numpy(stash).value)

    return rewrite


def _repeated(step: Step, op: Builder, value: ir.Value | None, times: int) -> ir.Value:
    """Each element so many times, one after the other."""
    known = step.graph.array(value)
    if known is not None:
        return op.constant(np.repeat(known, times), "each")
    column = op.Reshape(value, op.constant(np.array([-1, 1], np.int64), "column"))
    rows = op.Expand(column, op.constant(np.array([1, times], np.int64), "times"))
    return op.Reshape(rows, op.constant(np.array([-1], np.int64), "flat"))
