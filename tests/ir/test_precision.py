"""Folded constants are stored if their type can represent them, and refused otherwise."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.ir.expressions import literal
from sardonyx.ir.precision import FORMATS, HEADROOM, Impossible, rounded, scaled

_D = ir.DataType
NARROW = [_D.FLOAT16, _D.BFLOAT16, _D.FLOAT]


@pytest.mark.parametrize("dtype", NARROW)
@given(numbers=st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=4))
def test_what_is_stored_is_within_a_rounding_of_every_number(dtype: ir.DataType, numbers: list[float]) -> None:
    exact = np.array(numbers)
    try:
        stored = rounded(literal(exact), dtype).numpy().astype(np.float64)
    except Impossible:
        with np.errstate(all="ignore"):
            off = np.abs(exact.astype(dtype.numpy()).astype(np.float64) - exact)
        assert (off > FORMATS[dtype].roundoff * np.abs(exact)).any()
    else:
        assert (np.abs(stored - exact) <= FORMATS[dtype].roundoff * np.abs(exact)).all()


@pytest.mark.parametrize("dtype", NARROW)
@given(low=st.integers(-160, 40), spread=st.integers(0, 30), power=st.floats(-40, 40), seed=st.integers(0, 9))
def test_a_scaled_weight_gives_the_sums_of_the_unscaled_one(
    dtype: ir.DataType, low: int, spread: int, power: float, seed: int
) -> None:
    """Columns of weights of many magnitudes, one factor for each: sums show no error from storing the products."""
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        weight = (rng.standard_normal((8, 3)) * 2.0 ** rng.integers(low, low + spread + 1, (8, 3))).astype(
            dtype.numpy()
        )
    factor = rng.standard_normal((1, 3)) * 2.0**power
    inputs = rng.standard_normal((16, 8))
    wide = weight.astype(np.float64)
    try:
        made = scaled(ir.Tensor(weight, dtype=dtype), literal(factor))
    except Impossible:
        return
    got, wanted = inputs @ made.numpy().astype(np.float64), inputs @ wide * factor
    assert made.dtype == dtype
    terms = np.abs(inputs) @ np.abs(wide) * np.abs(factor)
    peaks = np.abs(inputs).max() * np.abs(wide).max(0) * np.abs(factor)
    unit = FORMATS[dtype].roundoff
    assert (np.abs(got - wanted) <= unit * (terms + len(wide) * peaks / 64)).all()


@pytest.mark.parametrize(
    ("dtype", "weight", "factor"),
    [
        (_D.FLOAT16, [[300.0], [1.0]], 300.0),  # overflows
        (_D.FLOAT16, [[1e-3], [2e-3]], 1e-3),  # becomes subnormal
        (_D.FLOAT16, [[1e-4], [2e-4]], 1e-5),  # becomes 0
        (_D.FLOAT16, [[1.0, 1e-3]], 1e-3),  # one column is fine, the other is not
        (_D.FLOAT, [[1e30], [1.0]], 1e30),
        (_D.FLOAT, [[1e-30], [2e-30]], 1e-10),
        (_D.BFLOAT16, [[1e-30], [2e-30]], 1e-10),
        (_D.DOUBLE, [[1e-300]], 1e-20),
        (_D.DOUBLE, [[1e-300]], 1e-200),
        (_D.DOUBLE, [[1e300]], 1e200),
        (_D.FLOAT, [[np.nan]], 1.0),
        (_D.FLOAT, [[np.inf]], 1.0),
    ],
)
def test_a_product_that_does_not_fit_is_refused(dtype: ir.DataType, weight: list[list[float]], factor: float) -> None:
    array = np.array(weight).astype(dtype.numpy())
    with pytest.raises(Impossible, match=dtype.name.lower()):
        scaled(ir.Tensor(array, dtype=dtype), literal(np.full((1, array.shape[1]), factor)))


@pytest.mark.parametrize(
    ("weight", "factor"),
    [
        ([[3e-8], [0.25]], 0.7),  # a negligible weight beside one that is far larger
        ([[60000.0], [1.0]], 1e-3),  # a small factor of large weights
        ([[1e-4], [2e-4]], 1e4),  # a large factor of small weights
        ([[2.0**-20], [2.0**-22]], 0.5),  # subnormal, and exact
        ([[0.0], [1.0]], 0.0),
    ],
)
def test_a_product_that_fits_is_stored(weight: list[list[float]], factor: float) -> None:
    array = np.array(weight, np.float16)
    made = scaled(ir.Tensor(array), literal(np.full((1, array.shape[1]), factor)))
    np.testing.assert_array_equal(made.numpy(), (array.astype(np.float64) * factor).astype(np.float16))


def test_a_weight_without_elements_fits() -> None:
    assert scaled(ir.Tensor(np.empty((2, 0), np.float16)), literal(np.empty((1, 0)))).numpy().shape == (2, 0)


def test_a_sum_that_cancels_is_as_exact_as_its_terms() -> None:
    assert rounded(literal(np.array([1.0 + 1e-7])) - literal(1.0), _D.FLOAT16).size == 1
    with pytest.raises(Impossible):
        rounded(literal(np.array([1e-7])), _D.FLOAT16)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_weight_whose_sums_would_overflow_is_refused(dtype: type[np.floating]) -> None:
    """(x @ W) * s may cancel before the factor makes it large; x @ (s W) cannot."""
    weight = ir.Tensor(np.array([[-1.7], [0.8], [0.9]], dtype))
    near = np.full((1, 1), float(np.finfo(dtype).max) / 4)
    with pytest.raises(Impossible):
        scaled(weight, literal(near))
    scaled(weight, literal(near / HEADROOM))
