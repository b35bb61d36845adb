"""Verdicts about time: symmetric, robust to outliers, and with intervals of the stated coverage."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.verbs.bench import statistics
from sardonyx.verbs.bench.statistics import Finding, compare, correlation, estimate, spread

seeds = st.integers(0, 2**32 - 1)
rounds = st.integers(2, 60)
OPPOSITE = {Finding.FASTER: Finding.SLOWER, Finding.SLOWER: Finding.FASTER, Finding.SAME: Finding.SAME}


def random_times(seed: int, count: int, *, ratio: float = 1.0, jitter: float = 0.02) -> tuple[list[float], list[float]]:
    """Times of two models with the given true ratio."""
    draw = np.random.default_rng(seed)
    ours, theirs = np.exp(draw.normal(0, jitter, (2, count))) * 0.01
    return list(ratio * ours), list(theirs)


# What a comparison does not depend on


@given(seeds, rounds, st.floats(0.5, 2), st.floats(1e-6, 1e6))
def test_the_unit_of_time_does_not_matter(seed: int, count: int, ratio: float, unit: float) -> None:
    ours, theirs = random_times(seed, count, ratio=ratio)
    result = compare(ours, theirs)
    other = compare([unit * each for each in ours], [unit * each for each in theirs])
    assert (other.ratio, other.low, other.high) == pytest.approx((result.ratio, result.low, result.high))
    assert other.finding is result.finding


@given(seeds, rounds, st.floats(0.9, 1.1), st.floats(0, 0.1))
def test_swapped_arguments_give_the_opposite_verdict(seed: int, count: int, ratio: float, floor: float) -> None:
    ours, theirs = random_times(seed, count, ratio=ratio)
    result, turned = compare(ours, theirs, floor=floor), compare(theirs, ours, floor=floor)
    assert (turned.ratio, turned.low, turned.high) == pytest.approx((1 / result.ratio, 1 / result.high, 1 / result.low))
    assert turned.finding is OPPOSITE[result.finding]


@given(seeds, rounds, st.randoms(use_true_random=False))
def test_the_ratio_does_not_depend_on_the_order_of_rounds(seed: int, count: int, random: Random) -> None:
    pairs = list(zip(*random_times(seed, count), strict=True))
    before = compare(*zip(*pairs, strict=True)).ratio
    random.shuffle(pairs)
    assert compare(*zip(*pairs, strict=True)).ratio == pytest.approx(before)


@given(seeds, st.lists(st.floats(0.1, 100), min_size=2, max_size=40), st.floats(1.05, 2))
def test_disturbances_of_whole_rounds_do_not_change_the_ratio(seed: int, load: list[float], ratio: float) -> None:
    result = compare([ratio * each for each in load], load, seed=seed)
    assert (result.low, result.ratio, result.high) == pytest.approx((ratio,) * 3)
    assert result.finding is Finding.SLOWER


@given(seeds, rounds, st.floats(0.01, 1e6), st.data())
def test_one_outlier_round_does_not_change_a_verdict(seed: int, count: int, wrong: float, data: st.DataObject) -> None:
    ours, theirs = random_times(seed, 12 + count, ratio=0.9, jitter=0.01)
    ours[data.draw(st.integers(0, len(ours) - 1))] *= wrong
    result = compare(ours, theirs)
    assert result.finding is Finding.FASTER
    assert result.ratio == pytest.approx(0.9, abs=0.02)


def test_equal_seeds_give_equal_intervals_and_other_seeds_similar_ones() -> None:
    pair = random_times(1, 40)
    assert compare(*pair, seed=3) == compare(*pair, seed=3)
    assert compare(*pair, seed=3).width == pytest.approx(compare(*pair, seed=4).width, rel=0.2)


# Verdicts


def test_equal_timings_have_a_zero_interval_and_no_difference() -> None:
    result = compare([0.1, 0.3, 0.2], [0.1, 0.3, 0.2])
    assert (result.ratio, result.low, result.high, result.finding) == (1, 1, 1, Finding.SAME)


def test_one_round_gives_no_verdict() -> None:
    result = compare([0.1], [0.4])
    assert (result.ratio, result.low, result.high) == (pytest.approx(0.25), 0, math.inf)
    assert result.finding is Finding.SAME
    assert result.width == math.inf


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0])])
def test_unpaired_rounds_are_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match="pairs"):
        compare(ours, theirs)


@given(seeds, st.floats(0.8, 1.25), st.floats(0, 0.3))
def test_a_claimed_interval_is_entirely_beyond_the_floor(seed: int, ratio: float, floor: float) -> None:
    result = compare(*random_times(seed, 30, ratio=ratio), floor=floor)
    assert result.low <= result.ratio <= result.high
    assert (result.finding is Finding.SLOWER) == (result.low > 1 + floor)
    assert (result.finding is Finding.FASTER) == (result.high < 1 / (1 + floor))


@given(seeds, rounds)
def test_a_higher_confidence_gives_a_wider_interval(seed: int, count: int) -> None:
    interval = estimate(*random_times(seed, count))
    assert interval.reach(0.5) < interval.reach(0.95) < interval.reach(0.999)
    assert interval.difference(0.95) >= max(interval.comparison().high, 1 / interval.comparison().low) - 1 - 1e-12


# Coverage


def steady(draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return draw.normal(0, 0.03, shape)


def spiky(draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """A quarter of the runs takes longer by at least a half."""
    return draw.normal(0, 0.02, shape) + (draw.random(shape) < 0.25) * draw.exponential(0.5, shape)


def lasting(draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Disturbances that last for several rounds."""
    noise = draw.normal(0, 0.03, shape)
    for at in range(1, shape[1]):
        noise[:, at] += 0.6 * noise[:, at - 1]
    return noise


@pytest.mark.parametrize("noise", [steady, spiky, lasting])
@pytest.mark.parametrize("count", [12, 80])
def test_interval_coverage_is_near_its_confidence(noise: Callable[..., np.ndarray], count: int) -> None:
    draw, times = np.random.default_rng(5), 200
    ours, theirs = np.exp(noise(draw, (times, count))) * 1.1, np.exp(noise(draw, (times, count)))
    comparisons = [compare(mine, other) for mine, other in zip(ours.tolist(), theirs.tolist(), strict=True)]
    covered = sum(each.low <= 1.1 <= each.high for each in comparisons) / times
    enough = (
        0.82 if noise is lasting and count < 20 else 0.91
    )  # a dozen rounds cannot show disturbances that last for several
    assert covered >= enough


def test_lasting_disturbances_widen_the_interval() -> None:
    draw = np.random.default_rng(8)
    series = lasting(draw, (20, 200))
    wider = 0
    for logs in series:
        mixed = draw.permutation(logs)
        wider += (
            estimate(np.exp(logs).tolist(), [1.0] * 200).error
            > 1.3 * estimate(np.exp(mixed).tolist(), [1.0] * 200).error
        )
    assert wider >= 18


@pytest.mark.parametrize(
    ("part", "freedom", "known"),
    [(0.975, 5, 2.571), (0.975, 10, 2.228), (0.975, 1e9, 1.960), (0.9995, 10, 4.587), (0.9995, 30, 3.646)],
)
def test_quantiles_of_the_t_distribution(part: float, freedom: float, known: float) -> None:
    assert statistics.student(part, freedom) == pytest.approx(known, rel=0.01)


# Means and spreads


def test_quartiles_and_outliers_of_a_box() -> None:
    summary = spread([5.0, 1.0, 2.0, 3.0, 4.0, 100.0])
    assert (summary.low_quartile, summary.median, summary.high_quartile) == (2.25, 3.5, 4.75)
    assert (summary.low_whisker, summary.high_whisker) == (1.0, 5.0)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_whiskers_enclose_the_box_and_the_box_encloses_the_median(seconds: list[float]) -> None:
    summary = spread(seconds)
    assert min(seconds) <= summary.low_whisker <= summary.low_quartile <= summary.median
    assert summary.median <= summary.high_quartile <= summary.high_whisker <= max(seconds)


# Correlation


def test_a_line_correlates_perfectly_and_a_monotonic_curve_by_rank() -> None:
    x = [1.0, 2.0, 3.0, 4.0, 7.0]
    line, curve = correlation(x, [3 - 2 * each for each in x]), correlation(x, [math.exp(3 * each) for each in x])
    assert (line.r, line.low, line.high, line.rank_r) == pytest.approx((-1, -1, -1, -1))
    assert curve.r < 0.95
    assert (curve.rank_r, curve.rank_low, curve.rank_high) == pytest.approx((1, 1, 1))


def test_one_point_that_hides_a_correlation_is_named() -> None:
    """A real case: 20 models correlate at 0.08, and without one of them the others correlate at 0.68."""
    draw = np.random.default_rng(2)
    x = draw.normal(0, 1, 19)
    rest = draw.normal(0, 1, 19)
    across = x - x.mean()
    rest -= rest.mean() + across * (across @ rest) / (across @ across)
    y = 0.68 * across / np.linalg.norm(across) + math.sqrt(1 - 0.68**2) * rest / np.linalg.norm(rest)
    result = correlation([*x[:7], 3.0, *x[7:]], [*y[:7], -0.745, *y[7:]])
    assert result.points == 20
    assert result.r == pytest.approx(0.08, abs=0.01)
    assert result.most_influential == 7
    assert result.leave_one_out[7] == pytest.approx(0.68)
    assert all(each < 0.25 for at, each in enumerate(result.leave_one_out) if at != 7)
    assert result.low < 0.08 < 0.68 < result.high  # the interval covers both
    assert result.rank_r > 0.3


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=3, max_size=12))
def test_correlations_match_numpy_and_are_within_their_bounds(points: list[tuple[int, int]]) -> None:
    x, y = [float(a) for a, _ in points], [float(b) for _, b in points]
    result = correlation(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(result.r)
        assert math.isnan(result.rank_r)
        return
    assert result.r == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
    assert -1.000001 <= result.low <= result.high <= 1.000001
    assert len(result.leave_one_out) == len(points)


def test_equal_numbers_share_their_ranks() -> None:
    result = correlation([1, 1, 2, 3, 3, 3], [1, 1, 5, 9, 9, 9])
    assert result.rank_r == pytest.approx(1)


@pytest.mark.parametrize(("x", "y"), [([1.0], [2.0]), ([0.1] * 3, [1.0, 2.0, 3.0]), ([1.0, 2.0], [0.1, 0.1])])
def test_too_few_or_constant_points_give_no_correlation(x: list[float], y: list[float]) -> None:
    result = correlation(x, y)
    assert all(map(math.isnan, (result.r, result.low, result.high, result.rank_r, *result.leave_one_out)))


def test_points_without_a_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="two numbers"):
        correlation([1.0, 2.0], [1.0])


def test_a_clock_that_counts_no_time_for_a_run_gives_a_finite_ratio() -> None:
    result = compare([0.0, 0.01, 0.01, 0.0, 0.01, 0.01], [0.01, 0.01, 0.0, 0.01, 0.01, 0.01])
    assert math.isfinite(result.ratio)
    assert result.ratio == pytest.approx(1.0)
