"""The adapters by operator, one for each operator that `raising` marks.

A model is raised completely or not at all, so an adapter first checks its node and returns a rewrite, and no rewrite
runs before every node was checked. By then a node may read other values, so rewrites look up its inputs again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import RANDOM, REDUCES, SOFTMAXES
from sardonyx.ir.rules import Builder
from sardonyx.ir.shapes import expr

Rewrite = Callable[[Builder], Sequence[ir.Value]]


class CannotRaise(Exception):
    """The node has no equivalent in the newer operator set, or it is not certain."""


class OpsetStep(Struct, frozen=True, eq=False):
    """One node that is converted from one operator set to another."""

    node: ir.Node
    graph: Facts
    old: int
    new: int

    def passes(self, version: int) -> bool:
        """Return whether the conversion crosses this version."""
        return self.old < version <= self.new

    def reads(self, index: int) -> ir.Value | None:
        """Return an input as it is now, or None if it is omitted."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def returns(self, index: int) -> bool:
        """Return whether the node has this output and it is used."""
        if index >= len(self.node.outputs):
            return False
        output = self.node.outputs[index]
        return output.is_graph_output() or bool(output.uses())

    def dtype(self) -> np.dtype[Any]:
        """Return the numpy type of the first input, for constants that must have the same type."""
        dtype = self.graph.dtype(self.reads(0))
        if dtype is None:
            raise CannotRaise("the type of its constants is unknown")
        return dtype.numpy()


Adapter = Callable[[OpsetStep], Rewrite | None]  # None: the node may stay as it is


def rewritten(
    step: OpsetStep,
    constants: Mapping[int, tuple[str, np.ndarray | None]] | None = None,
    *,
    drop: Sequence[str] = (),
    op_type: str | None = None,
    **changed: Any,
) -> Rewrite:
    """Return a rewrite to the same node with attributes dropped or changed, and constants as inputs (None: omitted)."""
    node = step.node

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        inputs = list(node.inputs)
        for index, (hint, array) in (constants or {}).items():
            inputs += [None] * (index + 1 - len(inputs))
            inputs[index] = None if array is None else op.constant(array, hint)
        return rebuilt(op, node, inputs, drop=drop, op_type=op_type, **changed)

    return rewrite


def rebuilt(
    op: Builder,
    node: ir.Node,
    inputs: Sequence[ir.Value | None],
    *,
    drop: Sequence[str] = (),
    op_type: str | None = None,
    **changed: Any,
) -> tuple[ir.Value, ...]:
    """Create a node like another one on other inputs; omitted outputs stay omitted."""
    attributes: dict[str, Any] = {**node.attributes, **changed}
    for name in drop:
        attributes.pop(name, None)
    values = op.node(op_type or node.op_type, tuple(inputs), attributes, outputs=len(node.outputs))
    for old, value in zip(node.outputs, values, strict=True):
        if not old.name:
            value.name = ""
    return values


# Operators whose attributes, defaults or inputs changed their meaning, or whose new version the runtime lacks.

_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def without_kernel(step: OpsetStep) -> None:
    """Refuse: the operator is the same, but ONNX Runtime has no kernel for the newer version."""
    raise CannotRaise("ONNX Runtime does not run it in opset 22")


def batch_normalization(step: OpsetStep) -> Rewrite | None:
    """Drop `spatial`; refuse a mean for every position, and the outputs that meant training."""
    if len(step.node.outputs) > 1:
        raise CannotRaise("it is in training mode")
    spatial = step.node.attributes.get_int("spatial")
    if step.passes(9) and spatial == 0:
        raise CannotRaise("opset 9 has no mean for every position")
    return rewritten(step, drop=["spatial"]) if spatial is not None else None


def pool(step: OpsetStep) -> None:
    """Refuse if sizes are rounded up: a last window that lies in the padding alone no longer counts."""
    if step.node.attributes.get_int("ceil_mode", 0):
        raise CannotRaise("its last windows changed their meaning, because sizes are rounded up")


def conv_transpose(step: OpsetStep) -> None:
    """Refuse automatic padding: the side that gets the larger part was swapped."""
    if step.node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
        raise CannotRaise("opset 11 pads the other side")


def one_hot(step: OpsetStep) -> None:
    """Refuse indices that may be negative: they were out of range, and now count from the end."""
    indices = step.graph.array(step.reads(0))
    if indices is None or (indices < 0).any():
        raise CannotRaise("negative numbers changed their meaning in opset 11")


def erf(step: OpsetStep) -> None:
    """Refuse integers, which are no longer supported."""
    if step.dtype().kind in "iu":
        raise CannotRaise("opset 13 has it for floating-point numbers only")


def mean_variance_normalization(step: OpsetStep) -> Rewrite | None:
    """State the default axes: since opset 13 the inference of onnx fails without them."""
    return rewritten(step, axes=[0, 2, 3]) if "axes" not in step.node.attributes else None


def grid_sample(step: OpsetStep) -> Rewrite | None:
    """Rename the interpolation modes."""
    mode = _GRID_MODES.get(step.node.attributes.get_string("mode", ""))
    return rewritten(step, mode=mode) if mode is not None else None


def roi_align(step: OpsetStep) -> Rewrite | None:
    """State the coordinate mode that was the only one and is no longer the default."""
    if step.passes(22):
        without_kernel(step)
    if "coordinate_transformation_mode" in step.node.attributes:
        return None
    return rewritten(step, coordinate_transformation_mode="output_half_pixel")


def scan(step: OpsetStep) -> None:
    """Refuse: the first version of Scan iterated over a batch of sequences of different lengths."""
    raise CannotRaise("opset 9 no longer scans batches")


def scatter(step: OpsetStep) -> Rewrite:
    """Rename the operator."""
    return rewritten(step, op_type="ScatterElements")


def group_normalization(step: OpsetStep) -> Rewrite:
    """Repeat scale and bias for every channel instead of every group; compute in its own type, as before."""
    shape = step.graph.shape(step.reads(0))
    groups = step.node.attributes.get_int("num_groups")
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    if not isinstance(channels, int) or not groups:
        raise CannotRaise("it is unknown how many channels it has")
    share, stash = channels // groups, step.dtype()

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        inputs = [step.reads(0), *(_repeated(step, op, step.reads(index), share) for index in (1, 2))]
        return rebuilt(op, step.node, inputs, stash_type=ir.DataType.from_numpy(stash).value)

    return rewrite


def _repeated(step: OpsetStep, op: Builder, value: ir.Value | None, times: int) -> ir.Value:
    """Return a value with each element repeated this many times in a row."""
    array = step.graph.array(value)
    if array is not None:
        return op.constant(np.repeat(array, times), "each")
    column = op.Reshape(value, op.constant(np.array([-1, 1], np.int64), "column"))
    rows = op.Expand(column, op.constant(np.array([1, times], np.int64), "times"))
    return op.Reshape(rows, op.constant(np.array([-1], np.int64), "flat"))


# Operators that had numbers as attributes and now have them as inputs.

_SINGLE = 4  # bytes of a single-precision number


def axes(step: OpsetStep) -> Rewrite | None:
    """Convert the axes of Squeeze, Unsqueeze and the reductions to an input. None, or an empty list, means all axes."""
    attribute = step.node.attributes.get_ints("axes")
    if attribute is None:
        return None
    constants = {1: ("axes", _ints(attribute))} if attribute or step.node.op_type == "Unsqueeze" else {}
    return rewritten(step, constants, drop=["axes"])


def split(step: OpsetStep) -> Rewrite | None:
    """Convert the sizes to an input; without sizes, the number of parts is required since opset 18.

    With that number, ONNX Runtime refuses to split an empty axis. So the axis must be known not to be empty.
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
        raise CannotRaise("the axis that it splits may be empty, for which opset 18 requires the sizes")
    return rewritten(step, num_outputs=parts)


def slice_(step: OpsetStep) -> Rewrite:
    """Convert starts, ends and axes to inputs."""
    attributes = step.node.attributes
    starts, ends, along = (attributes.get_ints(name) for name in ("starts", "ends", "axes"))
    if starts is None or ends is None:
        raise CannotRaise("it has no starts or ends")
    constants = {
        1: ("starts", _ints(starts)),
        2: ("ends", _ints(ends)),
        3: ("axes", None if along is None else _ints(along)),
    }
    return rewritten(step, constants, drop=["starts", "ends", "axes"])


def top_k(step: OpsetStep) -> Rewrite:
    """Convert the number of elements to an input."""
    k = step.node.attributes.get_int("k")
    if k is None:
        raise CannotRaise("it has no k")
    return rewritten(step, {1: ("k", _ints([k]))}, drop=["k"])


def dft(step: OpsetStep) -> Rewrite:
    """Convert the axis to an input, because its default has changed."""
    axis = np.array(step.node.attributes.get_int("axis", 1), np.int64)
    return rewritten(step, {2: ("axis", axis)}, drop=["axis"])


def clip(step: OpsetStep) -> Rewrite:
    """Convert the bounds to inputs of the same type; an omitted bound has the same default in both versions."""
    low, high = (step.node.attributes.get_float(name) for name in ("min", "max"))
    dtype = np.dtype(np.float32) if low is None and high is None else step.dtype()
    constants = {
        1: ("min", None if low is None else np.array(low, dtype)),
        2: ("max", None if high is None else np.array(high, dtype)),
    }
    return rewritten(step, constants, drop=["min", "max"])


def pad(step: OpsetStep) -> Rewrite:
    """Convert the widths, and a fill value other than zero, to inputs."""
    widths = step.node.attributes.get_ints("pads")
    value = step.node.attributes.get_float("value", 0.0)
    if widths is None:
        raise CannotRaise("it has no pads")
    is_default = value == 0 and math.copysign(1.0, value) > 0  # -0.0 is a different fill value
    with np.errstate(over="ignore"):  # a number too large for half precision fills with infinity
        fill = None if is_default else np.array(value, step.dtype())
    return rewritten(step, {1: ("pads", _ints(widths)), 2: ("value", fill)}, drop=["pads", "value"])


def dropout(step: OpsetStep) -> Rewrite | None:
    """Convert the ratio to an input; it stays without effect, because training must be requested."""
    if step.returns(1):
        raise CannotRaise("its mask changed its meaning")
    if step.passes(12) and step.dtype().itemsize < _SINGLE:
        raise CannotRaise("ONNX Runtime does not run it in half precision in opset 12")
    ratio = step.node.attributes.get_float("ratio")
    if not step.passes(12) or ratio is None:
        return None
    return rewritten(step, {1: ("ratio", np.array(ratio, np.float32))}, drop=["ratio"])


def _ints(numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, np.int64)


# Upsample and Resize: since opset 11 a Resize has attributes for how it samples, which were implicit before.

_NO_ROI = np.zeros(0, np.float32)
_BEFORE_11 = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def upsample(step: OpsetStep) -> Rewrite | None:
    """Convert the scales to an input since opset 9, and the node to a Resize since 10."""
    scales = step.node.attributes.get_floats("scales")
    if step.new < 10:
        return rewritten(step, {1: ("scales", _scales(scales))}, drop=["scales"]) if scales is not None else None

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        factors = step.reads(1) if scales is None else op.constant(_scales(scales), "scales")
        return _resized(step, op, factors)

    return rewrite


def resize(step: OpsetStep) -> Rewrite | None:
    """State the sampling that was implicit before opset 11, and omit empty inputs where that is allowed."""
    if step.passes(11):
        scales = step.graph.array(step.reads(1))
        if scales is None or (scales < 1).any():
            raise CannotRaise("before opset 11 it is undefined how it shrinks")
        return lambda op: _resized(step, op, step.reads(1))
    if step.node.attributes.get_string("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        raise CannotRaise("opset 13 does not have its coordinates")
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


# Softmax, LogSoftmax and Hardmax: before opset 13 they treated all axes from `axis` on as one.

_KEEPS_ZEROS = 14  # the opset since which Reshape has `allowzero`, with which a 0 is a size


def flattened(step: OpsetStep) -> Rewrite:
    """Apply the operator over the last axis if that was the only one, otherwise over the flattened axes."""
    axis = step.node.attributes.get_int("axis", 1)
    rank = step.graph.rank(step.reads(0))
    if axis == -1 or (rank is not None and axis % max(rank, 1) == rank - 1):
        return rewritten(step, axis=-1)

    shape = step.graph.shape(step.reads(0))
    if step.new < _KEEPS_ZEROS and not (shape is not None and all(expr.at_least(dim, 1) for dim in shape)):
        raise CannotRaise("an axis may be empty, which Reshape does not support in opset 13")

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        source = step.node.inputs[0]
        flat = op.Flatten(source, axis=axis)
        (result,) = rebuilt(op, step.node, [flat], axis=-1)
        attributes = {"allowzero": 1} if step.new >= _KEEPS_ZEROS else {}
        return (op.Reshape(result, op.Shape(source), **attributes),)

    return rewrite


# Operators that ONNX Runtime 1.31 runs up to opset 21 only.
_WITHOUT_KERNEL = RANDOM | {"GlobalLpPool", "MaxRoiPool"}  # Bernoulli is expanded to RandomUniformLike

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
