"""Operators that move elements, read sizes, or make constant tensors."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from sardonyx.ir.exact.arithmetic import combined
from sardonyx.ir.exact.call import (
    FLOATS,
    Array,
    Invalid,
    OperatorCall,
    Undecided,
    Value,
    axis_of,
    both,
    defines,
    dtype_of,
    moved,
    numpy_type,
)
from sardonyx.ir.exact.reals import Numbers, Real, chosen, joined


def tensor(numbers: Numbers, array: Array, dtype: int) -> Value:
    """Return an array as a value of an element type."""
    if dtype in FLOATS:
        return numbers.literal(array, dtype)
    if array.dtype.kind not in "biuO":
        raise Undecided(f"numbers of type {array.dtype}")
    return array


def constant(numbers: Numbers, proto: TensorProto) -> Value:
    """Return the value of a stored tensor."""
    array = numpy_helper.to_array(proto)
    if proto.data_type != TensorProto.STRING:
        return tensor(numbers, array, proto.data_type)
    texts = [item.decode() if isinstance(item, bytes) else item for item in array.reshape(-1)]
    return np.array(texts, object).reshape(array.shape)


@defines("Identity", "Dropout")
def _identity(call: OperatorCall) -> Value:
    """Return the operand; a mask of Dropout is all true."""
    if call.node.op_type == "Dropout":
        training = call[2]
        if training is not None and bool(np.any(training)):
            raise Undecided("Dropout in training mode")
        return call[0], np.ones(call[0].shape, bool)
    return call[0]


@defines("Constant")
def _make_constant(call: OperatorCall) -> Value:
    (name, value), *_ = call.attributes.items()
    if name == "value":
        return constant(call.numbers, value)
    if name in ("value_float", "value_floats"):
        return call.numbers.literal(np.array(value, np.float32), TensorProto.FLOAT)
    if name in ("value_int", "value_ints"):
        return np.array(value, np.int64)
    if name == "value_string":
        return np.array(value.decode(), object)
    if name == "value_strings":
        return np.array([item.decode() for item in value], object)
    raise Undecided(name)


@defines("Reshape")
def _reshape(call: OperatorCall) -> Value:
    data, wanted = call[0], call.integers(1, "shape")
    if wanted is None:
        raise Invalid("no shape")
    sizes = [
        data.shape[index] if item == 0 and not call.get("allowzero", 0) else item for index, item in enumerate(wanted)
    ]
    return moved(data, lambda x: _reshaped(x, sizes))


def _reshaped(x: Array, sizes: Sequence[int]) -> Array:
    known = math.prod(item for item in sizes if item != -1)
    if -1 in sizes and known == 0:
        raise Invalid("a size of an empty tensor is computed")
    if any(item < -1 for item in sizes):  # numpy computes them too
        raise Invalid("a negative size")
    try:
        return x.reshape(tuple(sizes))
    except ValueError as error:
        raise Invalid(str(error)) from None


@defines("Flatten")
def _flatten(call: OperatorCall) -> Value:
    data, axis = call[0], call.get("axis", 1)
    axis = axis + len(data.shape) if axis < 0 else axis
    sizes = (math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))
    return moved(data, lambda x: x.reshape(sizes))


@defines("Squeeze")
def _squeeze(call: OperatorCall) -> Value:
    data, axes = call[0], call.integers(1, "axes")
    rank = len(data.shape)
    dropped = [i for i, n in enumerate(data.shape) if n == 1] if axes is None else [axis_of(a, rank) for a in axes]
    if any(data.shape[axis] != 1 for axis in dropped):
        raise Invalid("an axis is longer than 1")
    sizes = [n for i, n in enumerate(data.shape) if i not in dropped]
    return moved(data, lambda x: x.reshape(sizes))


@defines("Unsqueeze")
def _unsqueeze(call: OperatorCall) -> Value:
    data, axes = call[0], call.integers(1, "axes") or []
    rank = len(data.shape) + len(axes)
    new = {axis_of(axis, rank) for axis in axes}
    if len(new) != len(axes):
        raise Invalid("an axis is named twice")
    old = iter(data.shape)
    sizes = [1 if axis in new else next(old) for axis in range(rank)]
    return moved(data, lambda x: x.reshape(sizes))


def concatenated(parts: Sequence[Value], axis: int) -> Value:
    """Return tensors one after another."""
    try:
        return joined(parts, axis) if isinstance(parts[0], Real) else np.concatenate(parts, axis)
    except ValueError as error:
        raise Invalid(str(error)) from None


@defines("Split")
def _split(call: OperatorCall) -> tuple[Value, ...]:
    data, axis, sizes = call[0], call.get("axis", 0), call.integers(1, "split")
    length = data.shape[axis]
    if sizes is None:
        count = call.get("num_outputs", len(call.node.output))
        each = -(-length // count)
        sizes = [max(0, min(each, length - each * index)) for index in range(count)]
    if sum(sizes) != length:
        raise Invalid("parts that do not add up")
    return tuple(_parts(data, axis_of(axis, len(data.shape)), sizes))


def _parts(data: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
    """Return parts of these sizes along an axis."""
    before, ends = (slice(None),) * axis, np.cumsum([0, *sizes])
    return [moved(data, lambda x, a=a, b=b: x[(*before, slice(a, b))]) for a, b in itertools.pairwise(ends)]


@defines("Slice")
def _cut(call: OperatorCall) -> Value:
    data = call[0]
    starts, ends = call.integers(1, "starts") or [], call.integers(2, "ends") or []
    axes = call.integers(3, "axes") or list(range(len(starts)))
    steps = call.integers(4) or [1] * len(starts)
    index = [slice(None)] * len(data.shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        where = axis_of(axis, len(data.shape))
        index[where] = _slice(start, end, step, data.shape[where])
    return moved(data, lambda x: x[tuple(index)])


def _slice(start: int, end: int, step: int, length: int) -> slice:
    """Return a slice of Python; ONNX limits what lies outside before it counts from the end."""
    if step == 0:
        raise Invalid("a step of 0")
    start = start + length if start < 0 else start
    end = end + length if end < 0 else end
    if step > 0:
        return slice(min(max(start, 0), length), min(max(end, 0), length), step)
    start, end = min(max(start, 0), length - 1), min(max(end, -1), length - 1)
    return slice(start, None if end < 0 else end, step) if length else slice(0, 0)


@defines("Expand")
def _expand(call: OperatorCall) -> Value:
    data, sizes = call[0], call.integers(1) or []
    try:
        target = np.broadcast_shapes(data.shape, tuple(sizes))
    except ValueError as error:
        raise Invalid(str(error)) from None
    return moved(data, lambda x: np.broadcast_to(x, target))


def _indices(value: Array, length: int) -> Array:
    indices = np.where(value < 0, value + length, value).astype(np.int64)
    if indices.size and (indices.min() < 0 or indices.max() >= length):
        raise Invalid("an index lies outside")
    return indices


@defines("Gather")
def _gather(call: OperatorCall) -> Value:
    data = call[0]
    axis = axis_of(call.get("axis", 0), len(data.shape))
    indices = _indices(np.asarray(call[1]), data.shape[axis])
    return moved(data, lambda x: np.take(x, indices, axis))


@defines("GatherElements")
def _gather_elements(call: OperatorCall) -> Value:
    data = call[0]
    axis = axis_of(call.get("axis", 0), len(data.shape))
    indices = _indices(np.asarray(call[1]), data.shape[axis])
    cropped = tuple(slice(None) if i == axis else slice(0, n) for i, n in enumerate(indices.shape))
    return moved(data, lambda x: np.take_along_axis(x[cropped], indices, axis))


@defines("GatherND")
def _gather_nd(call: OperatorCall) -> Value:
    data, rows, batch = call[0], np.asarray(call[1]), call.get("batch_dims", 0)
    return moved(data, lambda x: _at_rows(x, rows, batch))


def _at_rows(x: Array, rows: Array, batch: int) -> Array:
    lead = x.shape[:batch]
    flat = x.reshape(-1, *x.shape[batch:]) if batch else x[None]
    wanted = rows.reshape(flat.shape[0], *rows.shape[batch:]) if batch else rows[None]
    depth = rows.shape[-1]
    index = tuple(_indices(wanted[..., i], flat.shape[1 + i]) for i in range(depth))
    groups = np.arange(flat.shape[0], dtype=np.int64).reshape(-1, *[1] * (wanted.ndim - 2))
    result = flat[(groups, *index)]
    return result.reshape(*lead, *result.shape[1:]) if batch else result[0]


@defines("ScatterElements", "Scatter")
def _scatter_elements(call: OperatorCall) -> Value:
    """Return a copy with single elements replaced, or combined with what is there."""
    data, indices, updates = call[0], np.asarray(call[1]), call[2]
    axis = axis_of(call.get("axis", 0), len(data.shape))
    places: list[Array] = [*np.asarray(np.indices(indices.shape))]
    places[axis] = _indices(indices, data.shape[axis])
    return _scattered(call, data, tuple(place.reshape(-1) for place in places), moved(updates, lambda x: x.reshape(-1)))


@defines("ScatterND")
def _scatter_nd(call: OperatorCall) -> Value:
    data, rows, updates = call[0], np.asarray(call[1]), call[2]
    depth = rows.shape[-1]
    flat = rows.reshape(-1, depth)
    index = tuple(_indices(flat[:, i], data.shape[i]) for i in range(depth))
    return _scattered(call, data, index, moved(updates, lambda x: x.reshape(-1, *data.shape[depth:])))


def _scattered(call: OperatorCall, data: Value, places: tuple[Array, ...], updates: Value) -> Value:
    how = call.text("reduction", "none")
    operation = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}.get(how)
    if how != "none" and operation is None:
        raise Undecided(f"{call.node.op_type} with {how}")
    both(data, updates)
    if operation is None:
        return _with(data, places, updates)
    for number in range(len(places[0])):  # one after another: an index may occur more than once
        place = tuple(axis[number] for axis in places)
        old, update = moved(data, operator.itemgetter(place)), moved(updates, operator.itemgetter(number))
        data = _with(data, place, combined(call, operation, old, update))
    return data


def _with(data: Value, place: tuple[Any, ...], new: Value) -> Value:
    """Return a tensor with other elements at some places."""
    if isinstance(data, Real):
        return Real(_with(data.residues, place, new.residues), _with(data.doubles, place, new.doubles), data.dtype)
    copy = np.array(data)
    copy[place] = new
    return copy


@defines("Pad")
def _pad(call: OperatorCall) -> Value:
    data, amounts = call[0], call.integers(1, "pads")
    if amounts is None:
        raise Invalid("no pads")
    rank = len(data.shape)
    axes = [axis_of(axis, rank) for axis in call.integers(3) or range(rank)]
    before, after = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = amounts[position], amounts[position + len(axes)]
    cropped = tuple(slice(max(-b, 0), n + min(a, 0)) for b, a, n in zip(before, after, data.shape, strict=True))
    widths = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    mode = call.text("mode", "constant")
    inner = moved(data, lambda x: x[cropped])
    if mode != "constant":
        fill_mode: Any = mode  # numpy has the same names
        return moved(inner, lambda x: np.pad(x, widths, fill_mode))
    fill = call[2] if call[2] is not None else call.get("value", 0.0)
    if isinstance(inner, Real):
        number = fill.moved(lambda x: x.reshape(())) if isinstance(fill, Real) else Real.of(np.array(fill), inner.dtype)
        packed = np.pad(inner.residues, widths, constant_values=number.residues.item())
        return Real(packed, np.pad(inner.doubles, widths, constant_values=number.doubles.item()), inner.dtype)
    filled = np.asarray(fill).reshape(-1)[0] if np.size(fill) else 0
    return np.pad(inner, widths, constant_values=inner.dtype.type(filled) if inner.dtype.kind != "O" else "")


@defines("Where")
def _where(call: OperatorCall) -> Value:
    a, b = both(call[1], call[2])
    plain = np.asarray(call[0], np.bool_)
    return chosen(plain, a, b) if isinstance(a, Real) else np.where(plain, np.asarray(a), np.asarray(b))


@defines("Trilu")
def _trilu(call: OperatorCall) -> Value:
    offset = (call.integers(1) or [0])[0]
    rows, columns = call[0].shape[-2:]
    distance: Array = np.subtract.outer(-np.arange(rows, dtype=np.int64), -np.arange(columns, dtype=np.int64))
    kept = distance >= offset if call.get("upper", 1) else distance <= offset
    return moved(call[0], lambda x: np.where(kept, x, np.zeros((), x.dtype)))


@defines("DepthToSpace")
def _depth_to_space(call: OperatorCall) -> Value:
    b, c, h, w = call[0].shape
    n = call.get("blocksize", 1)
    depth = c // n**2
    columns_first = call.text("mode", "DCR") == "DCR"
    sizes, order = ((n, n, depth), (0, 3, 4, 1, 5, 2)) if columns_first else ((depth, n, n), (0, 1, 4, 2, 5, 3))
    return moved(call[0], lambda x: x.reshape(b, *sizes, h, w).transpose(order).reshape(b, depth, h * n, w * n))


@defines("SpaceToDepth")
def _space_to_depth(call: OperatorCall) -> Value:
    if call.text("mode", "DCR") != "DCR":
        raise Undecided("SpaceToDepth in another order")
    b, c, h, w = call[0].shape
    n = call.get("blocksize", 1)
    apart, order, sizes = (b, c, h // n, n, w // n, n), (0, 3, 5, 1, 2, 4), (b, c * n**2, h // n, w // n)
    return moved(call[0], lambda x: x.reshape(apart).transpose(order).reshape(sizes))


@defines("ReverseSequence")
def _reverse_sequence(call: OperatorCall) -> Value:
    batch, time = call.get("batch_axis", 1), call.get("time_axis", 0)
    lengths = np.asarray(call[1])
    steps: Array = np.arange(call[0].shape[time], dtype=np.int64)
    places: Array = np.where(steps[None, :] < lengths[:, None], lengths[:, None] - 1 - steps[None, :], steps[None, :])
    sizes = [1] * len(call[0].shape)
    sizes[batch], sizes[time] = places.shape
    places = (places if batch < time else places.T).reshape(sizes)
    return moved(call[0], lambda x: np.take_along_axis(x, np.broadcast_to(places, x.shape), time))


@defines("ConstantOfShape")
def _constant_of_shape(call: OperatorCall) -> Value:
    proto = call.get("value")
    fill = Real.of(np.zeros(1, np.float32), TensorProto.FLOAT) if proto is None else constant(call.numbers, proto)
    sizes = tuple(call.integers(0) or [])
    return moved(fill, lambda x: np.broadcast_to(x.reshape(()), sizes))


@defines("EyeLike")
def _eye_like(call: OperatorCall) -> Value:
    dtype = call.get("dtype", dtype_of(call[0]))
    kind = np.dtype(np.int64) if dtype in FLOATS else numpy_type(dtype)
    return tensor(call.numbers, np.eye(*call[0].shape, k=call.get("k", 0), dtype=kind), dtype)


@defines("Range")
def _count(call: OperatorCall) -> Value:
    start, limit, step = (moved(call[index], lambda x: x.reshape(())) for index in range(3))
    if isinstance(start, Real):
        length = max(0, math.ceil((limit.doubles.item() - start.doubles.item()) / step.doubles.item()))
        steps = Real.of(np.arange(length, dtype=np.int64), start.dtype)
        return start + steps * step
    length = max(0, -(-(int(limit) - int(start)) // int(step)))
    return (int(start) + int(step) * np.arange(length, dtype=np.int64)).astype(start.dtype)


@defines("NonZero")
def _non_zero(call: OperatorCall) -> Value:
    data = call[0]
    found = np.nonzero(data.residues if isinstance(data, Real) else data)
    return np.array(found, np.int64).reshape(len(data.shape), -1)


@defines("OneHot")
def _one_hot(call: OperatorCall) -> Value:
    depth = (call.integers(1) or [0])[0]
    places = np.asarray(call.integers(0)).reshape(call[0].shape)
    axis = axis_of(call.get("axis", -1), places.ndim + 1)
    counts = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(places.ndim + 1)])
    hot = np.expand_dims(np.where(places < 0, places + depth, places), axis) == counts
    return moved(call[2], lambda x: np.where(hot, np.asarray(x[1]), np.asarray(x[0])))


@defines("SequenceAt")
def _sequence_at(call: OperatorCall) -> Value:
    return call[0][(call.integers(1) or [0])[0]]


@defines("SequenceInsert")
def _sequence_insert(call: OperatorCall) -> Value:
    items = list(call[0])
    index = len(items) if call[2] is None else (call.integers(2) or [0])[0]
    items.insert(index + len(items) if index < 0 else index, call[1])
    return items


@defines("SequenceErase")
def _sequence_erase(call: OperatorCall) -> Value:
    items = list(call[0])
    del items[-1 if call[1] is None else (call.integers(1) or [0])[0]]
    return items


@defines("ConcatFromSequence")
def _concat_from_sequence(call: OperatorCall) -> Value:
    items, axis = call[0], call.get("axis", 0)
    if call.get("new_axis", 0):
        items = [moved(item, lambda x: np.expand_dims(x, axis)) for item in items]
    return concatenated(items, axis)


@defines("SplitToSequence")
def _split_to_sequence(call: OperatorCall) -> Value:
    data = call[0]
    axis = axis_of(call.get("axis", 0), len(data.shape))
    length, sizes = data.shape[axis], call.integers(1)
    drop = sizes is None and not call.get("keepdims", 1)
    if sizes is None:
        sizes = [1] * length
    elif call[1].ndim == 0:
        sizes = [min(sizes[0], length - start) for start in range(0, length, sizes[0])]
    parts = _parts(data, axis, sizes)
    return [moved(part, lambda x: x.squeeze(axis)) for part in parts] if drop else parts


defines("Shape")(lambda call: np.array(call[0].shape[slice(call.get("start", 0), call.get("end"))], np.int64))
defines("Size")(lambda call: np.array(math.prod(call[0].shape), np.int64))
defines("Transpose")(lambda call: moved(call[0], lambda x: np.transpose(x, call.get("perm"))))
defines("Concat")(lambda call: concatenated(call.operands, call.get("axis", 1)))
defines("Tile")(lambda call: moved(call[0], lambda x: np.tile(x, call.integers(1) or [])))
defines("Compress")(lambda call: moved(call[0], lambda x: np.compress(np.asarray(call[1]), x, call.get("axis"))))
defines("SequenceConstruct")(lambda call: list(call.operands))
defines("SequenceEmpty")(lambda _: [])
defines("SequenceLength")(lambda call: np.array(len(call[0]), np.int64))
