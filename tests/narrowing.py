"""Values narrowed to the type that a test expects."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return the value, which is not None."""
    assert value is not None
    return value


def array(value: object) -> npt.NDArray[Any]:
    """Return the value, which is an array."""
    assert isinstance(value, np.ndarray)
    return value


def number(value: object) -> float:
    """Return the value, which is a number."""
    assert isinstance(value, (int, float))
    return value


def integer(value: object) -> int:
    """Return the value, which is an integer: a size without dynamic dimensions."""
    assert isinstance(value, int)
    return value
