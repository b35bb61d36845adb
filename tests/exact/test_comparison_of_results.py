"""How exact results are compared: shapes, types and lengths first, then numbers; what was undefined may be anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.ir.exact.reals import Real
from sardonyx.verification.exact_check import (
    _compare,  # pyright: ignore[reportPrivateUsage]
    _Unequal,  # pyright: ignore[reportPrivateUsage]
    _units,  # pyright: ignore[reportPrivateUsage]
)

F, H = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def real(*numbers: float, dtype: int = F) -> Real:
    return Real.of(np.array(numbers), dtype)


TENSORS = (real(1, 2), np.array([1, 2]))
CASES: list[tuple[Any, Any, int | None]] = [
    (real(1, 2), real(1, 2), 2),
    (real(1, 2), real(1, 3), None),
    (real(1, np.nan), real(1, 3), 1),
    (real(1, 3), real(1, np.nan), None),
    (real(1, 2), real(1, 2, dtype=H), None),
    (real(1, 2), real(1, 2, 3), None),
    (np.array([1, 2]), np.array([1, 2]), 2),
    (np.array([1, 2]), np.array([1, 3]), None),
    (np.array([1, 2]), np.array([[1, 2]]), None),
    (np.array([1, 2]), np.array([True, True]), None),
    (real(1, 2), np.array([1, 2]), None),
    (real(), real(), 0),
    (None, None, 0),
    *((each, None, None) for each in TENSORS),
    *((None, each, None) for each in TENSORS),
    *(([each], each, None) for each in TENSORS),
    *((each, [each], None) for each in TENSORS),
    ([real(1), real(2)], [real(1), real(2)], 2),
    ([real(1), real(2)], [real(1), real(3)], None),
    ([real(1), real(2)], [real(1)], None),
    ([real(1)], [real(1), real(2)], None),
    ([], [], 0),
]


@pytest.mark.parametrize(("old", "new", "count"), CASES)
def test_results_are_equal_or_not(old: Any, new: Any, count: int | None) -> None:
    if count is None:
        with pytest.raises(_Unequal):
            _compare(old, new)
    else:
        assert _compare(old, new) == count


STEP = 2.0**-23
UNITS: list[tuple[Any, Any, float | None]] = [
    (real(1, 0.5), real(1, 0.5), 0.0),
    (real(1, 0.5), real(1 + STEP, 0.5), 1.0),
    (real(1, 0.5), real(1, 0.5 - 3 * STEP), 3.0),
    (real(0, 0), real(0, 0), 0.0),
    (real(0, 0), real(0, STEP), np.inf),
    (real(1, np.inf), real(1, np.inf), 0.0),
    (real(1, np.inf), real(1, 2), None),
    (real(1, 2), real(1, 2, dtype=H), None),
    (real(1, 2), real(1, 2, 3), None),
    (real(1, 2), np.array([1, 2]), None),
    (np.array([1, 2]), real(1, 2), None),
    (None, None, None),
]


@pytest.mark.parametrize(("old", "new", "units"), UNITS)
def test_distances_are_in_units_of_the_largest_number(old: Any, new: Any, units: float | None) -> None:
    assert _units(old, new) == units
