"""How far a live module's answers are from what it would say with twice the digits.

Another program may add up a long sum in another order. What that may change is what rounding changed in the reference
itself: its distance from its own answer in double precision. A wrong graph cannot hide there, since only the module
takes part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import onnx
from onnx import numpy_helper

from sardonyx.runtime import Array, Choice, Engine, Feeds, Value
from sardonyx.verification.tolerance import epsilon, is_float

_ORDERS = 4  # of equal scores


class LiveEngine(Engine, Protocol):
    """A module that can also compute in double precision, and otherwise where its answer is not defined."""

    def run_in_double(self, feeds: Feeds) -> list[Value] | None:
        """All outputs, computed in double precision; None where the module cannot."""
        ...

    def run_unattended(self, feeds: Feeds) -> tuple[list[Value], frozenset[int]] | None:
        """All outputs with other numbers in attention rows that see no key, and the lengths of these attentions.

        None if every row sees a key.
        """
        ...

    def choices(self, feeds: Feeds) -> list[Choice]:
        """The scores and indices of everything that the module chooses by score."""
        ...

    def run_shuffled(self, feeds: Feeds, sample: int) -> list[Value] | None:
        """All outputs with scores that are equal but for rounding in a random order; None if nothing is chosen."""
        ...


def shuffled(live: LiveEngine, feeds: Feeds) -> list[list[Value]]:
    """A module's outputs with scores that are equal but for rounding in other orders; nothing if it chooses nothing."""
    runs = (live.run_shuffled(feeds, sample) for sample in range(_ORDERS))
    return [outputs for outputs in itertools.takewhile(bool, runs) if outputs is not None]


def rounded_anew(clean: Sequence[Value], single: Sequence[Value], double: Sequence[Value] | None) -> list[Value]:
    """The graph's answers, moved by what rounding did to the module's."""
    if double is None or len(double) != len(single):
        return list(clean)
    return [_moved(*values) for values in zip(clean, single, double, strict=True)]


def _moved(clean: Value, single: Value, double: Value) -> Value:
    arrays = [value for value in (clean, single, double) if isinstance(value, np.ndarray)]
    if len(arrays) < 3 or not is_float(arrays[0].dtype) or len({array.shape for array in arrays}) > 1:
        return clean
    start, rounded, precise = (array.astype(np.float64) for array in arrays)
    return (start + (precise - rounded)).astype(arrays[0].dtype)


# A copy of a small model that computes in double precision: how far the model is from it is its own rounding error.

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


def narrowed(value: Value, like: Value) -> Value:
    """A result of the copy in the type that the model itself answers in."""
    if isinstance(value, np.ndarray) and isinstance(like, np.ndarray) and is_float(like.dtype):
        return value.astype(like.dtype)
    return value


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
    del graph.value_info[:]
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
