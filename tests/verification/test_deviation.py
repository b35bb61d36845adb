"""Comparison by element and slice: rounding passes, an error hidden beside a noisy slice does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.records.run import Accuracy
from sardonyx.verification.tolerance import Deviation, limit

SINGLE = limit(np.dtype(np.float32), Accuracy.REASSOCIATES)
EPS = float(np.finfo(np.float32).eps)
SHAPES = st.sampled_from([(40,), (6, 16), (3, 4, 16), (2, 5, 4, 4), (1, 64), (16, 1, 9)])


def moved(reference: np.ndarray, sigma: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One measurement of a rounding error of these standard deviations."""
    return np.abs(rng.standard_normal(reference.shape)) * sigma


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(0, 2**31), st.floats(-8, -1), st.floats(0.3, 3.9))
def test_errors_within_four_times_the_rounding_error_pass(
    shape: tuple[int, ...], seed: int, exponent: float, ratio: float
) -> None:
    """Errors of any size, with slices of scales a thousand apart."""
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(shape)
    measured = moved(reference, 10.0**exponent * 10.0 ** rng.uniform(0, 3, shape[-1]), rng)
    signs = rng.choice([-1, 1], shape)
    assert Deviation(reference, reference + ratio * signs * measured, SINGLE).excess(measured) is None


@pytest.mark.parametrize("shape", [(40,), (6, 16), (3, 4, 16), (2, 5, 4, 4), (1, 64), (16, 1, 9)])
def test_other_rounding_errors_of_the_same_size_pass(shape: tuple[int, ...]) -> None:
    """One measurement may be small by chance, mostly in small slices: about 3 of 1,000 tensors fail."""
    failed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        reference, sigma = rng.standard_normal(shape), np.full(shape, 0.1)
        error = 0.8 * sigma * rng.standard_normal(shape)
        failed += Deviation(reference, reference + error, SINGLE).excess(moved(reference, sigma, rng)) is not None
    assert failed <= 2


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.integers(0, 2**31))
def test_an_error_hidden_by_rounding_elsewhere_is_found(shape: tuple[int, ...], seed: int) -> None:
    """Half of the elements, in any arrangement, are off by 0.5 %; the others have rounding alone."""
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(shape)
    noisy = (np.arange(reference.size) % 2 == 0).reshape(shape)
    sigma = np.where(noisy, 1.0, EPS)
    result = np.where(noisy, rng.standard_normal(shape), 1.005 * reference)
    deviation = Deviation(reference, result, SINGLE)
    assert deviation.excess() is not None
    assert deviation.excess(moved(reference, sigma, rng)) is not None


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("factor", [1e5, 1e8])
def test_one_slice_does_not_set_the_scale_of_the_others(axis: int, factor: float) -> None:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((8, 12, 16))
    big = [slice(None)] * 3
    big[axis] = slice(0, 5)
    reference[tuple(big)] *= factor
    small = np.ones_like(reference)
    other = [slice(None)] * 3
    other[axis] = slice(7, 8)
    small[tuple(other)] = 1.005
    assert Deviation(reference, reference * small, SINGLE).excess() is not None
    assert (
        Deviation(reference, reference * (1 + 4 * EPS * rng.uniform(-1, 1, reference.shape)), SINGLE).excess() is None
    )


def test_a_flat_output_of_two_scales_is_compared_element_by_element() -> None:
    rng = np.random.default_rng(0)
    reference = np.concatenate([1e6 * rng.standard_normal(40), rng.standard_normal(40)])
    result = reference.copy()
    result[40:] *= 1.005
    assert Deviation(reference, result, SINGLE).excess() is not None
    sigma = 1e6 * EPS * np.r_[np.ones(40), np.zeros(40)]
    assert Deviation(reference, result, SINGLE).excess(moved(reference, sigma, rng)) is not None


def test_cancellation_at_a_few_elements_passes() -> None:
    """Elements near zero have the error of the terms that cancelled; a twentieth of a sum is always allowed."""
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((32, 64))
    result = reference + 6 * EPS * rng.standard_normal(reference.shape)
    assert Deviation(reference, result, SINGLE).excess() is None


def test_the_worst_element_is_reported() -> None:
    reference = np.ones((4, 8))
    result = reference.copy()
    result[2, 5] = 1.5
    worst = Deviation(reference, result, SINGLE).worst()
    assert worst is not None
    assert worst.index == (2, 5)
    assert worst.error == pytest.approx(0.5)
    assert worst.allowed == pytest.approx(2 * SINGLE.rtol)
    excess = Deviation(reference, result, SINGLE).excess()
    assert excess is not None
    assert "[2, 5]" in excess


def test_values_that_are_not_finite_are_ignored() -> None:
    reference = np.array([[1.0, np.inf, np.nan, -2.0]] * 4)
    assert Deviation(reference, reference.copy(), SINGLE).excess() is None
    nothing = np.full((3, 3), np.nan)
    assert Deviation(nothing, nothing, SINGLE).excess() is None
    assert Deviation(nothing, nothing, SINGLE).worst() is None


def test_an_approximation_is_compared_by_the_scale_of_the_whole() -> None:
    """A similar function differs everywhere, relatively most where it is small."""
    close = limit(np.dtype(np.float32), Accuracy.APPROXIMATES)
    reference = np.linspace(-3, 3, 400).reshape(20, 20)
    result = reference + 5e-4
    assert Deviation(reference, result, close, local=False).excess() is None
    assert Deviation(reference, result, SINGLE).excess() is not None


@pytest.mark.parametrize("rows", [3, 5, 20])
def test_one_small_column_among_large_ones_is_compared_by_its_own_rounding(rows: int) -> None:
    """Too few rows to give the column a scale: all of its elements differ by more than rounding."""
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((rows, 64)) * np.where(np.arange(64) == 7, 1.0, 1e6)
    result = reference.copy()
    result[:, 7] *= 1.005
    deviation = Deviation(reference, result, SINGLE)
    assert deviation.excess() is not None
    sigma = EPS * np.abs(reference)
    excess = deviation.excess(moved(reference, sigma, rng))
    assert excess is not None
    assert "7]" in excess


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (1, 1, 1)])
def test_any_shape_can_be_compared(shape: tuple[int, ...]) -> None:
    reference = np.ones(shape, np.float32)
    assert Deviation(reference, reference.copy(), SINGLE).excess() is None
    if reference.size:
        assert Deviation(reference, reference * np.float32(1.01), SINGLE).excess() is not None


def test_the_scale_of_a_mask_is_finite() -> None:
    """The mean of the two middle elements overflowed for masks of the lowest float32, and any error was allowed."""
    mask = np.full((2, 1), np.finfo(np.float32).min)
    with np.errstate(over="raise"):
        place = Deviation(mask, mask * np.float32(0.9), SINGLE).worst()
    assert place is not None
    assert place.ratio > 1


def one_row_off(error: float) -> Deviation:
    """A row of threes among 399 rows of ones, with this error in each of its elements."""
    reference = np.ones((400, 16))
    reference[7] = 3
    result = reference.copy()
    result[7] += error
    return Deviation(reference, result, SINGLE)


def test_the_rule_on_slices_alone_finds_a_wrong_row() -> None:
    """The error is below the limits of elements, of the whole and of shares, and around the limit of its row."""
    allowed = 4 * SINGLE.rms * (3 + 1)  # the elements and the scale
    assert 1.05 * allowed < 3 * SINGLE.rtol
    assert 1.05 * allowed / 20 < SINGLE.rms  # one row of 400
    excess = one_row_off(1.05 * allowed).excess()
    assert excess is not None
    assert "in the slice [7, :]" in excess
    assert one_row_off(0.95 * allowed).excess() is None
    for part, found in ((3, False), (5, True)):  # below and above four times the measured rounding
        measured = np.zeros((400, 16))
        measured[7] = allowed / part
        assert (one_row_off(1.05 * allowed).excess(measured) is not None) == found


@pytest.mark.parametrize(("small", "found"), [(0.25, True), (0.125, False)])
def test_the_rule_on_shares_alone_finds_elements_near_zero_that_are_wrong(small: float, found: bool) -> None:
    """Elements far below the scale are off by more than their size explains; one in five may be, spread evenly."""
    rows, columns = np.indices((16, 32))
    tiny = (5 * rows + columns) % int(1 / small) == 0
    reference = np.where(tiny, 1e-6, 1.0)
    excess = Deviation(reference, reference + 0.1 * SINGLE.rms * tiny, SINGLE).excess()
    assert (excess is not None) == found, excess


@pytest.mark.parametrize(("wrong", "found"), [(16, False), (17, True)])
def test_half_of_a_row_may_be_near_zero_and_wrong(wrong: int, found: bool) -> None:
    reference = np.ones((16, 32))
    reference[3, :wrong] = 1e-6
    error = np.where(reference < 1, 0.1 * SINGLE.rms, 0)
    excess = Deviation(reference, reference + error, SINGLE).excess()
    assert (excess is not None and "in the slice [3, :]" in excess) == found, excess
