"""Measure rounding errors as the distance from the same computation in double precision.

Another program may add up a long sum in another order. The error that this may cause is about the error that rounding
caused in the reference itself: the distance of its outputs y₃₂ from its own outputs in double precision y₆₄. Only the
live module takes part in that measurement, so it cannot excuse a wrong graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import onnx
from onnx import numpy_helper

from sardonyx.runtime import Array, Choice, Engine, Feeds, Value
from sardonyx.verification.tolerance import is_float

_ORDERS = 4  # of equal scores


class LiveEngine(Engine, Protocol):
    """A module that can also run in double precision, and with changes where its outputs are not well defined."""

    def run_in_double(self, feeds: Feeds) -> list[Value] | None:
        """Return all outputs computed in double precision, or None if the module cannot run in it."""
        ...

    def run_unattended(self, feeds: Feeds) -> tuple[list[Value], frozenset[int]] | None:
        """Return all outputs with other numbers in attention rows without a key, and the lengths of these attentions.

        Return None if every row attends to some key.
        """
        ...

    def choices(self, feeds: Feeds) -> list[Choice]:
        """Return the scores and indices of everything that the module chooses by score."""
        ...

    def run_shuffled(self, feeds: Feeds, sample: int) -> list[Value] | None:
        """Return all outputs with scores equal up to rounding in random order, or None if nothing is chosen."""
        ...


def shuffled(live: LiveEngine, feeds: Feeds) -> list[list[Value]]:
    """Return a module's outputs for several orders of equal scores; nothing if it chooses nothing by score."""
    runs = (live.run_shuffled(feeds, sample) for sample in range(_ORDERS))
    return [outputs for outputs in itertools.takewhile(bool, runs) if outputs is not None]


def moved_by_rounding(clean: Sequence[Value], single: Sequence[Value], double: Sequence[Value] | None) -> list[Value]:
    """Return the graph's outputs moved by the module's rounding error: clean + (double - single)."""
    if double is None or len(double) != len(single):
        return list(clean)
    return [_moved(*values) for values in zip(clean, single, double, strict=True)]


def _moved(clean: Value, single: Value, double: Value) -> Value:
    arrays = [value for value in (clean, single, double) if isinstance(value, np.ndarray)]
    if len(arrays) < 3 or not is_float(arrays[0].dtype) or len({array.shape for array in arrays}) > 1:
        return clean
    start, rounded, precise = (array.astype(np.float64) for array in arrays)
    return (start + (precise - rounded)).astype(arrays[0].dtype)


_CLOSE = 4.0  # times the error of the reference, two bits: roundings differ by chance, in a loop all in one direction


def is_as_close(exact: Value, reference: Value, result: Value) -> bool:
    """Return whether a result is about as far from the exact value as the reference, which was rounded as well."""
    if isinstance(exact, list) and isinstance(reference, list) and isinstance(result, list):
        alike = len(exact) == len(reference) == len(result)
        return alike and all(itertools.starmap(is_as_close, zip(exact, reference, result, strict=True)))
    arrays = [value for value in (exact, reference, result) if isinstance(value, np.ndarray)]
    if len(arrays) < 3 or len({array.shape for array in arrays}) > 1 or arrays[1].dtype != arrays[2].dtype:
        return False
    if not is_float(arrays[1].dtype):
        return np.array_equal(arrays[1], arrays[2])
    right, own, other = (array.astype(np.float64) for array in arrays)
    finite = np.isfinite(own)
    if not np.array_equal(finite, np.isfinite(other)) or not np.array_equal(
        own[~finite], other[~finite], equal_nan=True
    ):
        return False
    errors = [np.abs(value - right)[finite & np.isfinite(right)] for value in (own, other)]
    return any(measure(errors[1]) <= _CLOSE * measure(errors[0]) for measure in (_rms, _largest))


def _rms(errors: Array) -> float:
    return float(np.sqrt(np.mean(np.square(errors)))) if errors.size else 0.0


def _largest(errors: Array) -> float:
    """Return the largest error: kernels such as Sigmoid have the same absolute error for small results as for large."""
    return float(np.max(errors, initial=0.0))


# Copies of small models that compute in double precision: the distance of a model from its copy is its rounding error.

_FLOATS = frozenset((onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16))


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that computes in double precision; a runtime may lack kernels for it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _widen(copy.graph)
    return copy


def widened(value: Value) -> Value:
    """Return a value in the type that the copy takes."""
    return value.astype(np.float64) if isinstance(value, np.ndarray) and is_float(value.dtype) else value


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
            name, dims = tensor.name, list(tensor.dims)
            data = numpy_helper.to_array(tensor).astype(np.float64).tobytes()
            tensor.Clear()  # before the wider data is copied to it
            tensor.name, tensor.data_type, tensor.raw_data = name, onnx.TensorProto.DOUBLE, data
            tensor.dims.extend(dims)
