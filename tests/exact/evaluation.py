"""Inputs and outputs of exact evaluation as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper

from sardonyx.ir.exact.moves import tensor
from sardonyx.ir.exact.reals import Numbers, Order, Real


def numbers() -> Numbers:
    return Numbers(Order.TRUE, 0)


def value(array: Any) -> Any:
    """An input of a case."""
    if isinstance(array, list):
        return [value(item) for item in array]
    if array is None:
        return None
    array = np.asarray(array)
    if array.dtype.kind in "OUS":
        return array.astype(object)
    return tensor(numbers(), array, onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def same(expected: Any, result: Any) -> bool:
    if isinstance(expected, list):
        return len(expected) == len(result) and all(map(same, expected, result))
    if expected is None or result is None:
        return True
    array = np.asarray(expected)
    if array.shape != result.shape:
        return False
    if not isinstance(result, Real):
        return np.array_equal(array, result)
    coarse = {2: 1e-3}.get(array.dtype.itemsize, 1e-6) if array.dtype.name != "bfloat16" else 3e-2
    return np.allclose(array.astype(np.float64), result.doubles, rtol=coarse * 3, atol=coarse, equal_nan=True)
