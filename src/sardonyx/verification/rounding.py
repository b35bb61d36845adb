"""Rounding errors, as the distance from the same computation in double precision."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import onnx
from onnx import numpy_helper

from sardonyx.runtime import Array, Choice, Engine, Feeds, Value
from sardonyx.verification.tolerance import as_parts, is_float

_TIE_ORDERS = 4  # of equal scores


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
    runs = (live.run_shuffled(feeds, sample) for sample in range(_TIE_ORDERS))
    return [outputs for outputs in itertools.takewhile(bool, runs) if outputs is not None]


_AS_CLOSE = 4.0  # times the error of the reference: roundings differ by chance, in a loop all in one direction


def is_as_close(exact: tuple[Array, Array], reference: Array, result: Array) -> bool:
    """Return whether a result is about as far from its value in double precision as the reference from its own."""
    own, other = (as_parts(array).astype(np.float64) for array in (reference, result))
    right, right_other = map(as_parts, exact)
    finite = np.isfinite(own)
    if not np.array_equal(finite, np.isfinite(other)) or not right.shape == right_other.shape == own.shape:
        return False
    finite &= np.isfinite(right) & np.isfinite(right_other)
    errors = [np.abs(own - right)[finite], np.abs(other - right_other)[finite]]
    rms = [float(np.sqrt(np.mean(np.square(each)))) if each.size else 0.0 for each in errors]
    largest = [float(np.max(each, initial=0.0)) for each in errors]  # a Sigmoid has the same error near 0 as near 1
    return any(far <= _AS_CLOSE * near for near, far in (rms, largest))


_NEARBY = 4  # inputs


def nearby(feeds: Feeds) -> Iterator[dict[str, Value]]:
    """Yield inputs in which each float is the next larger or smaller one, or itself; nothing if no input has floats."""
    floats = [name for name, value in feeds.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    rng = np.random.default_rng(0)
    for _ in range(_NEARBY if floats else 0):
        changed = dict(feeds)
        for name in floats:
            value = np.asarray(feeds[name])
            toward = rng.choice(np.array([-np.inf, np.inf, np.nan], value.dtype), value.shape)
            stays = np.isnan(toward) | ~np.isfinite(value)
            changed[name] = np.where(stays, value, np.nextafter(value, toward))
        yield changed


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
