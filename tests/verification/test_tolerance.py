"""The tolerance depends on scale and type, is zero for exact rewrites, and allows nothing but rounding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sardonyx.records.run import Accuracy
from sardonyx.verification.exclusions import is_as_close
from sardonyx.verification.tolerance import Limit, epsilon, float_difference, is_float, limit, within

FINITE = hnp.arrays(
    np.float32, hnp.array_shapes(max_dims=3, max_side=6), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
)


def judged(reference: np.ndarray, result: np.ndarray, accuracy: Accuracy = Accuracy.REASSOCIATES) -> bool:
    return within(float_difference(reference, result), limit(reference.dtype, accuracy))


@given(FINITE, st.sampled_from(Accuracy))
def test_a_tensor_equals_itself_in_every_class(values: np.ndarray, accuracy: Accuracy) -> None:
    assert judged(values, values.copy(), accuracy)


@given(FINITE)
def test_the_next_float_differs_only_for_the_exact_class(values: np.ndarray) -> None:
    moved = np.nextafter(values, np.float32(np.inf))
    assert float_difference(values, moved).max_ulp == 1
    assert not judged(values, moved, Accuracy.EXACT)
    alive = values[values != 0]
    if alive.size:
        assert judged(alive, np.nextafter(alive, np.float32(np.inf)))


@given(FINITE.filter(lambda v: bool(np.abs(v).max() > 1e-3)), st.floats(-30, 30))
def test_the_verdict_does_not_depend_on_the_unit(values: np.ndarray, exponent: float) -> None:
    unit = np.float64(2.0 ** round(exponent))
    wide = values.astype(np.float64)
    for error in (2.0**-50, 2.0**-40):
        moved = wide + error * np.abs(wide).max()
        scaled = float_difference(wide * unit, moved * unit)
        assert scaled.scaled == pytest.approx(float_difference(wide, moved).scaled)


def test_one_percent_is_never_rounding_in_single_precision() -> None:
    values = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    moved = values.copy()
    moved[17] *= 1.01
    assert not judged(values, moved)


def test_a_small_error_everywhere_is_detected_by_the_mean_though_no_element_exceeds_its_limit() -> None:
    values = np.random.default_rng(0).standard_normal(10_000)
    off = values + 40 * np.finfo(np.float64).eps * np.median(np.abs(values))
    difference = float_difference(values, off)
    assert difference.scaled <= limit(values.dtype, Accuracy.REASSOCIATES).rtol
    assert not judged(values, off)


def test_an_element_near_zero_is_compared_at_the_scale_of_the_tensor() -> None:
    values = np.array([1.0, -2.0, 1e-9, 3.0], np.float32)
    moved = values + np.array([0, 0, 1e-7, 0], np.float32)
    assert float_difference(values, moved).max_rel > 10
    assert judged(values, moved)


def test_masked_scores_do_not_increase_the_scale() -> None:
    values = np.array([[1.0, 2.0, 3.0, -3.4e38]], np.float32)
    moved = values + np.array([[0, 1e-3, 0, 0]], np.float32)
    assert not within(float_difference(values, moved), Limit(1e-5, 1.0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("accuracy", list(Accuracy))
def test_nan_must_be_where_the_reference_has_it(bad: float, accuracy: Accuracy) -> None:
    clean = np.array([1.0, 2.0, 3.0], np.float32)
    dirty = np.array([1.0, bad, 3.0], np.float32)
    assert not judged(clean, dirty, accuracy)
    assert not judged(dirty, clean, accuracy)
    assert judged(dirty, dirty.copy(), accuracy)


def test_infinities_have_a_sign() -> None:
    assert not judged(np.array([np.inf]), np.array([-np.inf]))


def test_zeros_of_either_sign_are_equal() -> None:
    assert judged(np.array([0.0], np.float32), np.array([-0.0], np.float32), Accuracy.EXACT)


@pytest.mark.parametrize(
    ("dtype", "eps"),
    [
        (np.float64, 2.0**-52),
        (np.float32, 2.0**-23),
        (np.float16, 2.0**-10),
        (ml_dtypes.bfloat16, 2.0**-7),
        (ml_dtypes.float8_e4m3fn, 2.0**-3),
        (ml_dtypes.float8_e5m2, 2.0**-2),
        (np.complex64, 2.0**-23),
    ],
)
def test_the_limit_follows_the_type(dtype: type, eps: float) -> None:
    kind = np.dtype(dtype)
    assert epsilon(kind) == eps
    assert limit(kind, Accuracy.EXACT) == Limit(0.0, 0.0)
    assert 1 <= limit(kind, Accuracy.REASSOCIATES).rtol / eps <= 64
    assert limit(kind, Accuracy.APPROXIMATES).rtol >= limit(kind, Accuracy.REASSOCIATES).rtol


def test_small_floats_are_floats_and_small_ints_are_not() -> None:
    assert all(is_float(np.dtype(t)) for t in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2))
    assert not any(is_float(np.dtype(t)) for t in (np.int8, ml_dtypes.int4, np.bool_, object))


@given(hnp.arrays(np.int16, 8), hnp.arrays(np.int16, 8))
def test_ulp_counts_representable_numbers(a: np.ndarray, b: np.ndarray) -> None:
    """Every half-precision number in order is one step from the next, across zero too."""
    largest = 31743  # the ordinal of the largest finite number
    first, second = np.clip(a, -largest, largest), np.clip(b, -largest, largest)

    def number(ordinals: np.ndarray) -> np.ndarray:
        bits = np.where(ordinals < 0, np.abs(ordinals.astype(np.int32)) | 0x8000, ordinals).astype(np.uint16)
        return bits.view(np.float16)

    expected = np.abs(first.astype(np.int64) - second.astype(np.int64)).max()
    assert float_difference(number(first), number(second)).max_ulp == expected


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_equal_bits_differ_by_nothing_and_have_the_scale_of_other_comparisons(dtype: type) -> None:
    values = np.array([[0.0, -0.0, 1.0], [-3.0, 0.5, np.nan]], dtype)
    same, moved = float_difference(values, values.copy()), float_difference(values, values + np.array(0.5, dtype))
    assert (same.max_abs, same.max_rel, same.max_ulp, same.scaled, same.rms, same.pattern) == (0, 0, 0, 0, 0, None)
    assert same.scale == moved.scale == 1.0
    assert float_difference(np.zeros((0, 2), dtype), np.zeros((0, 2), dtype)).scale == 0


def test_a_result_as_far_from_the_exact_value_as_the_reference_is_as_close() -> None:
    """By the root mean square or by the largest error: a Sigmoid has the same error near 0 as near 1."""
    exact = (np.full(8, 1e-9), np.full(8, 1e-9))
    reference = np.array([6e-8, 0, 0, 0, 0, 0, 0, 0], np.float32)
    close, far = np.full(8, 9e-8, np.float32), np.full(8, 5e-7, np.float32)
    assert is_as_close(exact, reference, reference)
    assert is_as_close(exact, reference, close)
    assert is_as_close(exact, np.full(8, 6e-8, np.float32), np.array([2e-7] + [0] * 7, np.float32))
    assert not is_as_close(exact, reference, far)
    assert not is_as_close(exact, reference, np.array([np.inf] * 8, np.float32))
