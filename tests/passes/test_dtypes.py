"""A cast may be skipped only if it preserves every value."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest

from passes.test_merge_casts import KINDS, edges, number
from sardonyx.passes._numbers import preserves_values


@pytest.mark.parametrize(("source", "to"), list(itertools.product(KINDS, KINDS)))
def test_values_survive_there_and_back(source: str, to: str) -> None:
    """If the predicate holds, a conversion and its inverse keep the limits of the type."""
    values = edges(source)
    with np.errstate(all="ignore"):
        back = values.astype(ir.DataType(number(to)).numpy()).astype(values.dtype)
    kept = np.array_equal(values, back, equal_nan=values.dtype.kind == "f")
    assert kept or not preserves_values(ir.DataType(number(source)), number(to))


@pytest.mark.parametrize(
    ("source", "to"),
    [("float16", "float"), ("float", "double"), ("bool", "float16"), ("uint8", "float16"), ("int32", "double"),
     ("uint32", "int64"), ("int8", "int32"), ("float", "float")],
)  # fmt: skip
def test_widening_casts_are_skipped(source: str, to: str) -> None:
    """A wider type preserves all values."""
    assert preserves_values(ir.DataType(number(source)), number(to))


def test_types_that_are_not_known() -> None:
    """Casts of unknown types are not skipped."""
    assert not preserves_values(None, ir.DataType.FLOAT)
    assert not preserves_values(ir.DataType.FLOAT, None)
    assert not preserves_values(ir.DataType.STRING, ir.DataType.FLOAT)
