"""A copy of a small model that computes in double precision: how far the model is from it is its own rounding error."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import numpy_helper

from sardonyx.proof.tolerance import epsilon, is_float
from sardonyx.runtime import Array, Value

_SINGLE_EPS = 2.0**-23
_MOST_EPS = 2.0**15  # scores rounded beside -1e4, or a sum of a million terms, are off by as much
_MOST_NARROW_EPS = 64.0
_FLOATS = frozenset((onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16))


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """The copy; a runtime need not have kernels for it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _widen(copy.graph)
    return copy


def widened(value: Value) -> Value:
    """What the copy takes in place of a value."""
    return value.astype(np.float64) if isinstance(value, np.ndarray) and is_float(value.dtype) else value


def without_rounding(before: Value, exact_before: Value, after: Value, exact_after: Value) -> Value:
    """A result moved by its own rounding error, or by that of the nodes after the rewrite where that is larger.

    Of a narrow type its own alone counts: a rewrite must not lose the few digits there are.
    """
    own = _error(before, exact_before)
    if own is None or not isinstance(before, np.ndarray):
        return before
    other = _error(after, exact_after) if epsilon(before.dtype) <= _SINGLE_EPS else None
    if other is not None and other.shape == own.shape:
        own = np.where(np.abs(other) > np.abs(own), other, own)
    return (before.astype(np.float64) + own).astype(before.dtype)


def _error(single: Value, double: Value) -> Array | None:
    """How far a result is from that in double precision; 0 where it is farther than rounding takes it.

    Numbers at the end of a type's range mean something else in a wider type: what was the lowest number is not there.
    """
    if not isinstance(single, np.ndarray) or not isinstance(double, np.ndarray) or single.shape != double.shape:
        return None
    if not is_float(single.dtype) or not single.size:
        return None
    rounded, eps = single.astype(np.float64), epsilon(single.dtype)
    bound = (_MOST_EPS if eps <= _SINGLE_EPS else _MOST_NARROW_EPS) * eps
    finite = np.isfinite(rounded)
    scale = float(np.median(np.abs(rounded[finite]))) if finite.any() else 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        error = double.astype(np.float64) - rounded
        near = finite & (np.abs(error) <= bound * (np.abs(rounded) + scale))
    return np.where(near, error, 0.0)


def _widen(graph: onnx.GraphProto) -> None:
    for info in (*graph.input, *graph.output):
        if info.type.tensor_type.elem_type in _FLOATS:
            info.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    _widen_tensors(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i in _FLOATS:
                attribute.i = onnx.TensorProto.DOUBLE
            if attribute.HasField("t"):
                _widen_tensors([attribute.t])
            if attribute.HasField("g"):
                _widen(attribute.g)


def _widen_tensors(tensors: Iterable[onnx.TensorProto]) -> None:
    for tensor in tensors:
        if tensor.data_type in _FLOATS:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
