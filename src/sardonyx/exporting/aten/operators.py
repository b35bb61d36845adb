"""The table of ATen operators, and how their operands get a common type.

A value is a Real, an array of integers or truth values, or a number of Python, which has no type of its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from sardonyx.exact import call
from sardonyx.exact.arithmetic import converted
from sardonyx.exact.call import FLOATS, Undecided, Value
from sardonyx.exact.reals import Numbers

Definition = Callable[..., Any]
DEFINITIONS: dict[str, Definition] = {}
_FORMATS: dict[int, Any] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.DOUBLE: np.float64,
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
}


def defines(*names: str) -> Callable[[Definition], Definition]:
    """Enter a function as the definition of operators; it gets the name of the operator if it has such a parameter."""

    def enter(definition: Definition) -> Definition:
        takes_name = "name" in inspect.signature(definition).parameters
        for name in names:
            DEFINITIONS[name] = functools.partial(definition, name=name) if takes_name else definition
        return definition

    return enter


def is_scalar(value: Value) -> bool:
    """Return whether a value is a number of Python."""
    return isinstance(value, bool | int | float)


class SingleNumbers(Numbers):
    """Arithmetic in which numbers of Python are rounded to float32 first, whatever the type of the tensor."""


def number(n: Numbers, value: Any, dtype: int) -> Value:
    """Return a number of Python as a tensor of a type, to which it is rounded."""
    if dtype in FLOATS and isinstance(n, SingleNumbers):
        return n.literal(np.asarray(value, np.float32), TensorProto.FLOAT).typed(dtype)
    if dtype in FLOATS:
        return n.literal(np.asarray(value, _FORMATS[dtype]), dtype)
    return np.asarray(value, call.numpy_type(dtype))


def dtype_of(value: Value) -> int:
    """Return the element type of a tensor."""
    return call.dtype_of(value)


def typed(n: Numbers, value: Value, dtype: int) -> Value:
    """Return a tensor or number in another type."""
    return number(n, value, dtype) if is_scalar(value) else converted(n, value, dtype)


_DEFAULTS = {bool: TensorProto.BOOL, int: TensorProto.INT64, float: TensorProto.FLOAT}


def _category(dtype: int) -> int:
    return 2 if dtype in FLOATS else int(dtype != TensorProto.BOOL)


def promoted(n: Numbers, *operands: Value) -> tuple[Value, ...]:
    """Return operands in their common type: a number or a tensor without axes counts if its kind is higher."""
    types = [_DEFAULTS[type(each)] if is_scalar(each) else dtype_of(each) for each in operands]
    ranks = [-1 if is_scalar(each) else min(len(each.shape), 1) for each in operands]
    highest = max(map(_category, types))
    strongest = max(rank for rank, dtype in zip(ranks, types, strict=True) if _category(dtype) == highest)
    found = {d for r, d in zip(ranks, types, strict=True) if r == strongest and _category(d) == highest}
    if len(found) > 1:
        raise Undecided("operands of different types")
    return tuple(typed(n, each, *found) for each in operands)
