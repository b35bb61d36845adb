"""The adapters, by operator: one for each that `history` marks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.ops import RANDOM, REDUCES, SOFTMAXES
from sardonyx.ir.opsets.adapter_base import Adapter, CannotRaise, OpsetStep, Rewrite, rebuilt, rewritten
from sardonyx.ir.shapes import expr

# Operators whose attributes, defaults or inputs came to mean something else, or that the runtime does not follow.

_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def without_kernel(step: OpsetStep) -> None:
    """The same operator, but nothing to run it with."""
    raise CannotRaise("ONNX Runtime does not run it in opset 22")


def batch_normalization(step: OpsetStep) -> Rewrite | None:
    """Without the mode that had a mean for every place, and without the outputs that meant training."""
    if len(step.node.outputs) > 1:
        raise CannotRaise("it is in training")
    spatial = step.node.attributes.get_int("spatial")
    if step.passes(9) and spatial == 0:
        raise CannotRaise("opset 9 no longer has a mean for every place")
    return rewritten(step, drop=["spatial"]) if spatial is not None else None


def pool(step: OpsetStep) -> None:
    """The same unless sizes are rounded up: a last window may lie in the padding alone, and no longer counts."""
    if step.node.attributes.get_int("ceil_mode", 0):
        raise CannotRaise("its last windows, where sizes are rounded up, came to mean something else")


def conv_transpose(step: OpsetStep) -> None:
    """The same unless it splits the padding itself: which side gets more was turned round."""
    if step.node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
        raise CannotRaise("opset 11 pads the other side")


def one_hot(step: OpsetStep) -> None:
    """Negative numbers were outside, and count from the end now."""
    indices = step.graph.array(step.reads(0))
    if indices is None or (indices < 0).any():
        raise CannotRaise("negative numbers came to mean something else in opset 11")


def erf(step: OpsetStep) -> None:
    """Only of floating-point numbers now."""
    if step.dtype().kind in "iu":
        raise CannotRaise("opset 13 has it for floating-point numbers only")


def mean_variance_normalization(step: OpsetStep) -> Rewrite | None:
    """The default axes, said: since opset 13 onnx's own inference fails where they are not."""
    return rewritten(step, axes=[0, 2, 3]) if "axes" not in step.node.attributes else None


def grid_sample(step: OpsetStep) -> Rewrite | None:
    """Other words for the same modes."""
    mode = _GRID_MODES.get(step.node.attributes.get_string("mode", ""))
    return rewritten(step, mode=mode) if mode is not None else None


def roi_align(step: OpsetStep) -> Rewrite | None:
    """What was the only way is no longer the default."""
    if step.passes(22):
        without_kernel(step)
    if "coordinate_transformation_mode" in step.node.attributes:
        return None
    return rewritten(step, coordinate_transformation_mode="output_half_pixel")


def scan(step: OpsetStep) -> None:
    """The first Scan ran over a batch of sequences of different lengths."""
    raise CannotRaise("opset 9 no longer scans batches")


def scatter(step: OpsetStep) -> Rewrite:
    """Under its new name."""
    return rewritten(step, op_type="ScatterElements")


def group_normalization(step: OpsetStep) -> Rewrite:
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


def _repeated(step: OpsetStep, op: Builder, value: ir.Value | None, times: int) -> ir.Value:
    """Each element so many times, one after the other."""
    known = step.graph.array(value)
    if known is not None:
        return op.constant(np.repeat(known, times), "each")
    column = op.Reshape(value, op.constant(np.array([-1, 1], np.int64), "column"))
    rows = op.Expand(column, op.constant(np.array([1, times], np.int64), "times"))
    return op.Reshape(rows, op.constant(np.array([-1], np.int64), "flat"))


# Operators that once had numbers as attributes and now read them as inputs.

_SINGLE = 4  # bytes


def axes(step: OpsetStep) -> Rewrite | None:
    """Squeeze, Unsqueeze and the reductions: axes as an input. None, or an empty list, means all of them."""
    given = step.node.attributes.get_ints("axes")
    if given is None:
        return None
    constants = {1: ("axes", _ints(given))} if given or step.node.op_type == "Unsqueeze" else {}
    return rewritten(step, constants, drop=["axes"])


def split(step: OpsetStep) -> Rewrite | None:
    """The sizes as an input; where there are none, the number of parts has to be given since 18.

    ONNX Runtime then refuses to split an empty axis, so parts of an axis that may be empty cannot be counted.
    """
    sizes = step.node.attributes.get_ints("split")
    if step.passes(13) and sizes is not None:
        return rewritten(step, {1: ("split", _ints(sizes))}, drop=["split"])
    if not step.passes(18) or sizes is not None or step.reads(1) is not None:
        return None
    parts, axis = len(step.node.outputs), step.node.attributes.get_int("axis", 0)
    shape = step.graph.shape(step.reads(0))
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    if size == 0:
        return rewritten(step, {1: ("split", _ints([0] * parts))})
    if size is None or not expr.at_least(size, 1):
        raise CannotRaise("the axis that it splits may be empty, for which opset 18 has to name the sizes")
    return rewritten(step, num_outputs=parts)


def slice_(step: OpsetStep) -> Rewrite:
    """Starts, ends and axes as inputs."""
    attributes = step.node.attributes
    starts, ends, along = (attributes.get_ints(name) for name in ("starts", "ends", "axes"))
    if starts is None or ends is None:
        raise CannotRaise("it does not say where it starts and ends")
    constants = {
        1: ("starts", _ints(starts)),
        2: ("ends", _ints(ends)),
        3: ("axes", None if along is None else _ints(along)),
    }
    return rewritten(step, constants, drop=["starts", "ends", "axes"])


def top_k(step: OpsetStep) -> Rewrite:
    """The number of elements as an input."""
    k = step.node.attributes.get_int("k")
    if k is None:
        raise CannotRaise("it does not say how many")
    return rewritten(step, {1: ("k", _ints([k]))}, drop=["k"])


def dft(step: OpsetStep) -> Rewrite:
    """The axis as an input; what it is by default has changed."""
    axis = np.array(step.node.attributes.get_int("axis", 1), np.int64)
    return rewritten(step, {2: ("axis", axis)}, drop=["axis"])


def clip(step: OpsetStep) -> Rewrite:
    """The bounds as inputs of the same type; without a bound, both know the largest finite number."""
    low, high = (step.node.attributes.get_float(name) for name in ("min", "max"))
    dtype = np.dtype(np.float32) if low is None and high is None else step.dtype()
    constants = {
        1: ("min", None if low is None else np.array(low, dtype)),
        2: ("max", None if high is None else np.array(high, dtype)),
    }
    return rewritten(step, constants, drop=["min", "max"])


def pad(step: OpsetStep) -> Rewrite:
    """The widths, and what to fill in where it is not zero, as inputs."""
    widths = step.node.attributes.get_ints("pads")
    value = step.node.attributes.get_float("value", 0.0)
    if widths is None:
        raise CannotRaise("it does not say how much")
    is_default = value == 0 and math.copysign(1.0, value) > 0  # -0.0 is another fill
    with np.errstate(over="ignore"):  # a number too large for half precision fills with infinity
        fill = None if is_default else np.array(value, step.dtype())
    return rewritten(step, {1: ("pads", _ints(widths)), 2: ("value", fill)}, drop=["pads", "value"])


def dropout(step: OpsetStep) -> Rewrite | None:
    """The ratio as an input; it still does nothing, since training has to be asked for."""
    if step.returns(1):
        raise CannotRaise("its mask came to mean something else")
    if step.passes(12) and step.dtype().itemsize < _SINGLE:
        raise CannotRaise("ONNX Runtime does not run it in half precision in opset 12")
    ratio = step.node.attributes.get_float("ratio")
    if not step.passes(12) or ratio is None:
        return None
    return rewritten(step, {1: ("ratio", np.array(ratio, np.float32))}, drop=["ratio"])


def _ints(numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, np.int64)


# Upsample and Resize: since 11 a Resize says how it finds its samples, which before was understood.

_NO_ROI = np.zeros(0, np.float32)
_BEFORE_11 = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def upsample(step: OpsetStep) -> Rewrite | None:
    """The scales as an input since 9; a Resize since 10."""
    scales = step.node.attributes.get_floats("scales")
    if step.new < 10:
        return rewritten(step, {1: ("scales", _scales(scales))}, drop=["scales"]) if scales is not None else None

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        factors = step.reads(1) if scales is None else op.constant(_scales(scales), "scales")
        return _resized(step, op, factors)

    return rewrite


def resize(step: OpsetStep) -> Rewrite | None:
    """Says what was understood before 11, and leaves out what is empty since that may be left out."""
    if step.passes(11):
        scales = step.graph.array(step.reads(1))
        if scales is None or (scales < 1).any():
            raise CannotRaise("before opset 11 nothing says how it shrinks")
        return lambda op: _resized(step, op, step.reads(1))
    if step.node.attributes.get_string("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        raise CannotRaise("opset 13 no longer has its coordinates")
    empty = [index for index in (1, 2) if _is_empty(step, index)]
    if step.reads(3) is not None and step.reads(2) is not None and 2 not in empty:
        raise CannotRaise("it has both scales and sizes")
    return rewritten(step, dict.fromkeys(empty, ("", None))) if empty else None


def _resized(step: OpsetStep, op: Builder, scales: ir.Value | None) -> Sequence[ir.Value]:
    source = step.reads(0)
    if step.new < 11:
        return rebuilt(op, step.node, [source, scales], op_type="Resize", drop=["scales"])
    roi = op.constant(_NO_ROI, "roi") if step.new < 13 else None
    return rebuilt(op, step.node, [source, roi, scales], op_type="Resize", drop=["scales"], **_BEFORE_11)


def _scales(numbers: Sequence[float]) -> np.ndarray:
    return np.array(numbers, np.float32)


def _is_empty(step: OpsetStep, index: int) -> bool:
    tensor = step.graph.tensor(step.reads(index))
    return tensor is not None and tensor.size == 0


# Softmax, LogSoftmax and Hardmax: before 13 they ran over all axes from one on, as if these were one axis.

_KEEPS_ZEROS = 14  # since which a Reshape can be told that a 0 is a size and no reference


def flattened(step: OpsetStep) -> Rewrite:
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


# Operators that ONNX Runtime 1.31 runs up to opset 21 only.
_WITHOUT_KERNEL = RANDOM - {"Bernoulli"} | {"GlobalLpPool", "MaxRoiPool"}

ADAPTERS: Mapping[str, Adapter] = {
    **dict.fromkeys(_WITHOUT_KERNEL, without_kernel),
    **dict.fromkeys(REDUCES, axes),
    "Squeeze": axes,
    "Unsqueeze": axes,
    "Split": split,
    "Slice": slice_,
    "TopK": top_k,
    "DFT": dft,
    "Clip": clip,
    "Pad": pad,
    "Dropout": dropout,
    **dict.fromkeys(SOFTMAXES, flattened),
    "Resize": resize,
    "Upsample": upsample,
    "AveragePool": pool,
    "MaxPool": pool,
    "BatchNormalization": batch_normalization,
    "ConvTranspose": conv_transpose,
    "Erf": erf,
    "GridSample": grid_sample,
    "GroupNormalization": group_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "OneHot": one_hot,
    "RoiAlign": roi_align,
    "Scan": scan,
    "Scatter": scatter,
}
