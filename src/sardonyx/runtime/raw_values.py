"""Values of types that numpy has no name for (bfloat16, float8, int4 …), to and from the runtime as raw memory."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np

from sardonyx.runtime.library import onnxruntime
from sardonyx.runtime.values import Array, Value

# Types the runtime stores but has no numpy name for: onnx element type, bits, and the ml_dtypes name.
_BARE: dict[str, tuple[int, int, str]] = {
    "tensor(bfloat16)": (16, 16, "bfloat16"),
    "tensor(float8e4m3fn)": (17, 8, "float8_e4m3fn"),
    "tensor(float8e4m3fnuz)": (18, 8, "float8_e4m3fnuz"),
    "tensor(float8e5m2)": (19, 8, "float8_e5m2"),
    "tensor(float8e5m2fnuz)": (20, 8, "float8_e5m2fnuz"),
    "tensor(uint4)": (21, 4, "uint4"),
    "tensor(int4)": (22, 4, "int4"),
    "tensor(float4e2m1)": (23, 4, "float4_e2m1fn"),
    "tensor(float8e8m0)": (24, 8, "float8_e8m0fnu"),
    "tensor(uint2)": (25, 2, "uint2"),
    "tensor(int2)": (26, 2, "int2"),
}


def bare_type(type_name: str) -> tuple[int, int, str] | None:
    """What is known of such a type; None for a type that numpy names."""
    return _BARE.get(type_name)


def to_ort_value(value: Value, type_name: str) -> Any:
    """A value as the runtime takes it."""
    if not isinstance(value, np.ndarray):
        raise ValueError("sequences and optionals cannot travel beside types without a numpy name")
    ort = onnxruntime()
    bare = bare_type(type_name)
    if bare is None:
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
    element, bits, _ = bare
    words = np.ascontiguousarray(value).view(np.uint16 if bits == 16 else np.uint8)
    if bits < 8:  # the runtime packs; it reads the packed bytes from the front of a buffer of the logical shape
        packed = _pack(words.reshape(-1), bits)
        words = np.zeros(value.shape, np.uint8)
        words.reshape(-1)[: packed.size] = packed
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(words, element)


def from_ort_value(value: Any) -> Value:
    """A value as the runtime gave it."""
    bare = bare_type(value.data_type())
    if bare is None:
        array: Array = value.numpy()
        return array
    _, bits, name = bare
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    size = (count * bits + 7) // 8
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint8)
    dtype = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    words = _unpack(raw, bits, count) if bits < 8 else raw
    if name in ("int4", "int2"):  # ml_dtypes keeps one small int a byte, sign-extended
        return ((words.astype(np.int8) << (8 - bits)) >> (8 - bits)).astype(dtype).reshape(shape)
    return words.view(dtype).reshape(shape).copy()


def _pack(words: Array, bits: int) -> Array:
    per_byte = 8 // bits
    padded = np.zeros(-(-words.size // per_byte) * per_byte, np.uint8)
    padded[: words.size] = words & ((1 << bits) - 1)
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    return np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1).astype(np.uint8)


def _unpack(raw: Array, bits: int, count: int) -> Array:
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    return ((raw[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count].astype(np.uint8)
