"""Convert a whole model to a newer operator set.

A model is raised completely or not at all, so the adapter of an operator first checks its node and returns a rewrite,
and no rewrite runs before every node was checked. By then a node may read other values, so rewrites look up its inputs
again. Functions have their own operator sets and are not changed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import REDUCES, SOFTMAXES
from sardonyx.ir.rules import BARE_INITIALIZERS, Builder, Rule
from sardonyx.ir.scopes import label, operand
from sardonyx.ir.shapes import expr
from sardonyx.ir.support import LACKS_22
from sardonyx.records.run import Accuracy

NEWEST = 23  # the last version whose changes are known here
OLDEST = 7  # before that, broadcasting was requested by an attribute
HIGHEST = NEWEST  # the default limit for raising a model

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
        return operand(self.node, index)

    def dtype(self) -> np.dtype[Any]:
        """Return the numpy type of the first input, for constants that must have the same type."""
        dtype = self.graph.dtype(self.reads(0))
        if dtype is None:
            raise CannotRaise("the type of its constants is unknown")
        return dtype.numpy()


Adapter = Callable[[OpsetStep], Rewrite | None]  # None: the node may stay as it is
Moved = Mapping[str, tuple[int, np.ndarray | None]]  # attributes that become inputs: their indices and values


def rewritten(step: OpsetStep, moved: Moved | None = None, *, op_type: str | None = None, **changed: Any) -> Rewrite:
    """Return a rewrite to the same node with attributes changed, or moved to inputs as constants."""

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        inputs = list(step.node.inputs)
        for name, (index, array) in (moved or {}).items():
            inputs += [None] * (index + 1 - len(inputs))
            inputs[index] = None if array is None else op.constant(array, name)
        return _rebuilt(op, step.node, inputs, op_type, **dict.fromkeys(moved or ()), **changed)

    return rewrite


def _rebuilt(
    op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None], op_type: str | None = None, **changed: Any
) -> tuple[ir.Value, ...]:
    """Create a node like another one on other inputs; omitted outputs stay omitted, attributes that are None go."""
    attributes: dict[str, Any] = {**node.attributes, **changed}
    values = op.node(op_type or node.op_type, tuple(inputs), attributes, outputs=len(node.outputs))
    for old, value in zip(node.outputs, values, strict=True):
        if not old.name:
            value.name = ""
    return values


def _ints(numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, np.int64)


# Operators whose attributes, defaults or inputs changed their meaning, or whose new version the runtime lacks.


def _without_kernel(step: OpsetStep) -> None:
    """Refuse: the operator is the same, but there is no kernel for the newer version."""
    raise CannotRaise(LACKS_22.fact)


def _batch_normalization(step: OpsetStep) -> Rewrite | None:
    """Drop `spatial`; refuse a mean for every position, and the outputs that meant training."""
    if len(step.node.outputs) > 1:
        raise CannotRaise("it is in training mode")
    spatial = step.node.attributes.get_int("spatial")
    if step.passes(9) and spatial == 0:
        raise CannotRaise("opset 9 has no mean for every position")
    return rewritten(step, spatial=None) if spatial is not None else None


def _pool(step: OpsetStep) -> None:
    """Refuse if sizes are rounded up: a last window that lies in the padding alone no longer counts."""
    if step.node.attributes.get_int("ceil_mode", 0):
        raise CannotRaise("its last windows changed their meaning, because sizes are rounded up")


def _conv_transpose(step: OpsetStep) -> None:
    """Refuse automatic padding: the side that gets the larger part was swapped."""
    if step.node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
        raise CannotRaise("opset 11 pads the other side")


def _one_hot(step: OpsetStep) -> None:
    """Refuse indices that may be negative: they were out of range, and now count from the end."""
    indices = step.graph.array(step.reads(0))
    if indices is None or (indices < 0).any():
        raise CannotRaise("negative numbers changed their meaning in opset 11")


def _erf(step: OpsetStep) -> None:
    """Refuse integers, which are no longer supported."""
    if step.dtype().kind in "iu":
        raise CannotRaise("opset 13 has it for floating-point numbers only")


def _mean_variance_normalization(step: OpsetStep) -> Rewrite | None:
    """State the default axes: since opset 13 the inference of onnx fails without them."""
    return rewritten(step, axes=[0, 2, 3]) if "axes" not in step.node.attributes else None


def _grid_sample(step: OpsetStep) -> Rewrite | None:
    """Rename the interpolation modes."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(step.node.attributes.get_string("mode", ""))
    return rewritten(step, mode=mode) if mode is not None else None


def _roi_align(step: OpsetStep) -> Rewrite | None:
    """State the coordinate mode that was the only one and is no longer the default."""
    if step.passes(22):
        _without_kernel(step)
    if "coordinate_transformation_mode" in step.node.attributes:
        return None
    return rewritten(step, coordinate_transformation_mode="output_half_pixel")


def _scan(step: OpsetStep) -> None:
    """Refuse: the first version of Scan iterated over a batch of sequences of different lengths."""
    raise CannotRaise("opset 9 no longer scans batches")


def _group_normalization(step: OpsetStep) -> Rewrite:
    """Repeat scale and bias for every channel instead of every group; compute in its own type, as before."""
    shape = step.graph.shape(step.reads(0))
    groups = step.node.attributes.get_int("num_groups")
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    if not isinstance(channels, int) or not groups:
        raise CannotRaise("it is unknown how many channels it has")
    share, stash = channels // groups, step.dtype()

    def repeated(op: Builder, value: ir.Value | None) -> ir.Value:
        array = step.graph.array(value)
        if array is not None:
            return op.constant(np.repeat(array, share), "each")
        column = op.Reshape(value, op.constant(_ints([-1, 1]), "column"))
        rows = op.Expand(column, op.constant(_ints([1, share]), "times"))
        return op.Reshape(rows, op.constant(_ints([-1]), "flat"))

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        inputs = [step.reads(0), *(repeated(op, step.reads(index)) for index in (1, 2))]
        return _rebuilt(op, step.node, inputs, stash_type=ir.DataType.from_numpy(stash).value)

    return rewrite


# Operators that had numbers as attributes and now have them as inputs.


def _axes(step: OpsetStep) -> Rewrite | None:
    """Convert the axes of Squeeze, Unsqueeze and the reductions to an input. None, or an empty list, means all axes."""
    axes = step.node.attributes.get_ints("axes")
    if axes is None:
        return None
    return rewritten(step, {"axes": (1, _ints(axes) if axes or step.node.op_type == "Unsqueeze" else None)})


def _split(step: OpsetStep) -> Rewrite | None:
    """Convert the sizes to an input; without sizes, the number of parts is required since opset 18.

    With that number, the axis must be known not to be empty (`EMPTY_SPLIT`).
    """
    sizes = step.node.attributes.get_ints("split")
    if step.passes(13) and sizes is not None:
        return rewritten(step, {"split": (1, _ints(sizes))})
    if not step.passes(18) or step.reads(1) is not None:
        return None
    parts, axis = len(step.node.outputs), step.node.attributes.get_int("axis", 0)
    shape = step.graph.shape(step.reads(0))
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    if size == 0:
        return rewritten(step, {"split": (1, _ints([0] * parts))})
    if size is None or not expr.at_least(size, 1):
        raise CannotRaise("the axis that it splits may be empty, for which opset 18 requires the sizes")
    return rewritten(step, num_outputs=parts)


def _slice(step: OpsetStep) -> Rewrite:
    """Convert starts, ends and axes to inputs."""
    starts, ends, axes = (step.node.attributes.get_ints(name) for name in ("starts", "ends", "axes"))
    if starts is None or ends is None:
        raise CannotRaise("it has no starts or ends")
    along = None if axes is None else _ints(axes)
    return rewritten(step, {"starts": (1, _ints(starts)), "ends": (2, _ints(ends)), "axes": (3, along)})


def _top_k(step: OpsetStep) -> Rewrite:
    """Convert the number of elements to an input."""
    k = step.node.attributes.get_int("k")
    if k is None:
        raise CannotRaise("it has no k")
    return rewritten(step, {"k": (1, _ints([k]))})


def _dft(step: OpsetStep) -> Rewrite:
    """Convert the axis to an input, because its default has changed."""
    return rewritten(step, {"axis": (2, np.array(step.node.attributes.get_int("axis", 1), np.int64))})


def _clip(step: OpsetStep) -> Rewrite:
    """Convert the bounds to inputs of the same type; an omitted bound has the same default in both versions."""
    low, high = (step.node.attributes.get_float(name) for name in ("min", "max"))
    dtype = np.dtype(np.float32) if low is None and high is None else step.dtype()
    least, most = (None if bound is None else np.array(bound, dtype) for bound in (low, high))
    return rewritten(step, {"min": (1, least), "max": (2, most)})


def _pad(step: OpsetStep) -> Rewrite:
    """Convert the widths, and a fill value other than zero, to inputs."""
    widths = step.node.attributes.get_ints("pads")
    value = step.node.attributes.get_float("value", 0.0)
    if widths is None:
        raise CannotRaise("it has no pads")
    is_default = value == 0 and math.copysign(1.0, value) > 0  # -0.0 is a different fill value
    with np.errstate(over="ignore"):  # a number too large for half precision fills with infinity
        fill = None if is_default else np.array(value, step.dtype())
    return rewritten(step, {"pads": (1, _ints(widths)), "value": (2, fill)})


def _dropout(step: OpsetStep) -> Rewrite | None:
    """Convert the ratio to an input; it stays without effect, because training must be requested."""
    if any(mask.is_graph_output() or mask.uses() for mask in step.node.outputs[1:2]):
        raise CannotRaise("its mask changed its meaning")
    ratio = step.node.attributes.get_float("ratio")
    if not step.passes(12) or ratio is None:
        return None
    return rewritten(step, {"ratio": (1, np.array(ratio, np.float32))})


# Upsample and Resize: since opset 11 a Resize has attributes for how it samples, which were implicit before.

_NO_ROI = np.zeros(0, np.float32)
_BEFORE_11 = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def _upsample(step: OpsetStep) -> Rewrite | None:
    """Convert the scales to an input since opset 9, and the node to a Resize since 10."""
    numbers = step.node.attributes.get_floats("scales")
    scales = None if numbers is None else np.array(numbers, np.float32)
    if step.new < 10:
        return rewritten(step, {"scales": (1, scales)}) if scales is not None else None
    return lambda op: _resized(step, op, step.reads(1) if scales is None else op.constant(scales, "scales"))


def _resize(step: OpsetStep) -> Rewrite | None:
    """State the sampling that was implicit before opset 11, and omit empty inputs where that is allowed."""
    if step.passes(11):
        scales = step.graph.array(step.reads(1))
        if scales is None or (scales < 1).any():
            raise CannotRaise("before opset 11 it is undefined how it shrinks")
        return lambda op: _resized(step, op, step.reads(1))
    if step.node.attributes.get_string("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        raise CannotRaise("opset 13 does not have its coordinates")
    empty: dict[str, tuple[int, None]] = {}
    for index, name in ((1, "roi"), (2, "scales")):
        tensor = step.graph.tensor(step.reads(index))
        if tensor is not None and tensor.size == 0:
            empty[name] = (index, None)
    if step.reads(3) is not None and step.reads(2) is not None and "scales" not in empty:
        raise CannotRaise("it has both scales and sizes")
    return rewritten(step, empty) if empty else None


def _resized(step: OpsetStep, op: Builder, scales: ir.Value | None) -> Sequence[ir.Value]:
    source = step.reads(0)
    if step.new < 11:
        return _rebuilt(op, step.node, [source, scales], "Resize", scales=None)
    roi = op.constant(_NO_ROI, "roi") if step.new < 13 else None
    return _rebuilt(op, step.node, [source, roi, scales], "Resize", scales=None, **_BEFORE_11)


# Softmax, LogSoftmax and Hardmax: before opset 13 they treated all axes from `axis` on as one.

_KEEPS_ZEROS = 14  # the opset since which Reshape has `allowzero`, with which a 0 is a size


def _flattened(step: OpsetStep) -> Rewrite:
    """Apply the operator over the last axis if that was the only one, otherwise over the flattened axes."""
    axis = step.node.attributes.get_int("axis", 1)
    shape = step.graph.shape(step.reads(0))
    if axis == -1 or (shape is not None and axis % max(len(shape), 1) == len(shape) - 1):
        return rewritten(step, axis=-1)
    if step.new < _KEEPS_ZEROS and not (shape is not None and all(expr.at_least(dim, 1) for dim in shape)):
        raise CannotRaise("an axis may be empty, which Reshape does not support in opset 13")

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        source = step.node.inputs[0]
        (result,) = _rebuilt(op, step.node, [op.Flatten(source, axis=axis)], axis=-1)
        attributes = {"allowzero": 1} if step.new >= _KEEPS_ZEROS else {}
        return (op.Reshape(result, op.Shape(source), **attributes),)

    return rewrite


# The changes of operators that affect existing nodes: a node of an older version may have to be rewritten, or cannot be
# converted or run at all. All other versions only added types, an attribute whose default is the old meaning or an
# optional input, or improved the documentation. A test checks this table against every schema and the list of the
# runtime's kernels.
CHANGES: Mapping[str, tuple[Adapter, tuple[int, ...]]] = {
    **dict.fromkeys(LACKS_22.operators - {"RoiAlign"}, (_without_kernel, (22,))),
    **dict.fromkeys(REDUCES, (_axes, (18,))),
    **dict.fromkeys(SOFTMAXES, (_flattened, (13,))),
    "AveragePool": (_pool, (19, 22)),
    "BatchNormalization": (_batch_normalization, (9, 14)),
    "Clip": (_clip, (11,)),
    "ConvTranspose": (_conv_transpose, (11,)),
    "DFT": (_dft, (20,)),
    "Dropout": (_dropout, (10, 12)),
    "Erf": (_erf, (13,)),
    "GridSample": (_grid_sample, (20,)),
    "GroupNormalization": (_group_normalization, (21,)),
    "MaxPool": (_pool, (22,)),
    "MeanVarianceNormalization": (_mean_variance_normalization, (13,)),
    "OneHot": (_one_hot, (11,)),
    "Pad": (_pad, (11,)),
    "ReduceSum": (_axes, (13,)),
    "Resize": (_resize, (11, 13)),
    "RoiAlign": (_roi_align, (16, 22)),
    "Scan": (_scan, (9,)),
    "Scatter": (lambda step: rewritten(step, op_type="ScatterElements"), (11,)),
    "Slice": (_slice, (10,)),
    "Split": (_split, (13, 18)),
    "Squeeze": (_axes, (13,)),
    "TopK": (_top_k, (10,)),
    "Unsqueeze": (_axes, (13,)),
    "Upsample": (_upsample, (9, 10)),
}


def affected(op_type: str, old: int, new: int) -> bool:
    """Return whether nodes of opset `old` may have to be rewritten for opset `new`."""
    return op_type in CHANGES and any(old < version <= new for version in CHANGES[op_type][1])


@functools.cache
def since(op_type: str, opset: int) -> int:
    """Return the version of the operator in an operator set, or 0 if it has none."""
    try:
        return onnx.defs.get_schema(op_type, opset, "").since_version
    except onnx.defs.SchemaError:
        return 0


class OpsetPlan(Struct, frozen=True, eq=False):
    """The changes that convert a model to a newer operator set."""

    old: int
    new: int
    ir_version: int
    rewrites: tuple[tuple[ir.Node, Rewrite], ...]

    @property
    def name(self) -> str:
        """Return the stable key of the conversion."""
        return f"opset {self.new}"


class RaiseOpset(Rule):
    """The rule under which a conversion is recorded."""

    name: str = "raise-opset"
    accuracy: ClassVar[Accuracy] = Accuracy.REASSOCIATES
    algebra: ClassVar[str] = "a node of an older opset  =>  the same in a newer one, for a fusion that needs it"
    about: ClassVar[str] = (
        "The whole model is raised in one rewrite, because a model has one opset. The function stays the same, "
        "but a runtime may have another kernel for a newer operator, which may round differently."
    )


RAISE = RaiseOpset()


def plan(facts: Facts, nodes: Mapping[str, Iterable[ir.Node]], new: int) -> OpsetPlan:
    """Return how to raise a model; `nodes` are its nodes of standard operators, by operator.

    Raises:
        CannotRaise: if something in the model would not stay the same.
    """
    model, old = facts.model, facts.scopes[facts.model.graph].opset
    if not OLDEST <= old < new <= NEWEST:
        raise CannotRaise(f"opset {old} is not raised")
    ir_version = max(model.ir_version, onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", new)]))
    weights = model.graph.initializers.values() if model.ir_version < BARE_INITIALIZERS <= ir_version else ()
    if any(value.is_graph_input() for value in weights):
        raise CannotRaise(
            f"weights that are also inputs would no longer be constants above IR version {model.ir_version}"
        )
    rewrites: list[tuple[ir.Node, Rewrite]] = []
    for op_type, users in nodes.items():
        outside = [node for node in users if not facts.scope(node).in_function] if model.functions else list(users)
        if not outside:
            continue
        if not since(op_type, old):
            raise CannotRaise(f"{op_type} ({label(outside[0])}) is not an operator of opset {old}")
        for node in outside if affected(op_type, old, new) else ():
            try:
                rewrite = CHANGES[op_type][0](OpsetStep(node, facts, old, new))
            except CannotRaise as error:
                raise CannotRaise(f"{op_type} ({label(node)}) cannot be raised: {error}") from error
            if rewrite is not None:
                rewrites.append((node, rewrite))
    for function in model.functions.values():  # their operators keep their names, and may not differ in the new set
        own = function.opset_imports.get("", 0) or function.opset_imports.get("ai.onnx", 0)
        for node in function.all_nodes():
            if not node.domain and since(node.op_type, own) != since(node.op_type, new):
                raise CannotRaise(f"the function {function.name} uses {node.op_type} of opset {own}")
    return OpsetPlan(old, new, ir_version, tuple(rewrites))
