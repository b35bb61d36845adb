"""Decide whether a difference in time is real: ratios within rounds, a trimmed mean, and a block bootstrap.

Contenders of one round run within a short time, so that other load on the machine affects all of them alike; only the
ratio within a round counts. With d = log(ours / theirs) of each round:

    centre      the mean of the middle 30 % of the d (trimmed mean). If a third of the rounds is disturbed, as on shared
                machines, it needs a third of the rounds that a mean of the middle two thirds needs; on idle machines it
                needs fewer than the median.
    error       half the distance of the 16 % and 84 % quantiles of the centre over bootstrap samples of blocks of b
                neighbouring rounds, times √(n / (n - b)) for n rounds: disturbances that last several rounds widen it.
    interval    exp(centre ± t · error), with Student's t for the number of independent blocks.
    finding     "slower" if the whole interval is above 1 + floor, "faster" if it is below 1 / (1 + floor), otherwise
                "no difference".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sardonyx.records.bench import Comparison, Finding

LEVEL = 0.95
TRIMMED_SHARE = 0.35  # of the rounds are left out at either end
SAMPLES = 400  # of the bootstrap
_CORRELATION_SAMPLES = 2000  # of correlations, whose intervals are quantiles of the samples
# Share of the rounds that counts as degrees of freedom: gives the promised coverage for few rounds.
_EFFECTIVE_SHARE = 0.6
_MIN_SAMPLES, _MAX_RESAMPLED_NUMBERS = 200, 200_000  # long series need fewer samples
_CLOCK_TICK_SECONDS = 1e-9  # of a run that is too short for the clock

# Quantiles at one standard error: outliers among the bootstrap samples do not affect them.
_WITHIN_ONE_ERROR = (NormalDist().cdf(-1), NormalDist().cdf(1))

Floats: TypeAlias = "NDArray[np.float64]"


class Estimate(Struct, frozen=True):
    """The logarithm of a ratio and its standard error, from which intervals at any level follow."""

    centre: float
    error: float
    freedom: float  # degrees of freedom: rounds, with blocks of neighbours counted once
    rounds: int

    def reach(self, level: float = LEVEL) -> float:
        """Return the half width of the interval."""
        return self.error * student((1 + level) / 2, self.freedom)

    def difference(self, level: float = LEVEL) -> float:
        """Return the largest relative difference within the interval."""
        return _exp(abs(self.centre) + self.reach(level)) - 1

    def inverse(self) -> Estimate:
        """Return the estimate of the inverse ratio."""
        return replace(self, centre=-self.centre)

    def comparison(self, *, floor: float = 0.0, level: float = LEVEL) -> Comparison:
        """Return the ratio, its interval and the finding beyond a noise floor."""
        low, high, edge = self.centre - self.reach(level), self.centre + self.reach(level), math.log1p(floor)
        finding = Finding.SLOWER if low > edge else Finding.FASTER if high < -edge else Finding.SAME
        return Comparison(_exp(self.centre), _exp(low), _exp(high), floor, finding, self.rounds)


class Spread(Struct, frozen=True):
    """The distribution of one contender's times, as in a box plot."""

    median: float
    low_quartile: float
    high_quartile: float
    low_whisker: float  # the outermost times within one and a half box lengths of the box
    high_whisker: float


class Correlation(Struct, frozen=True):
    """The correlation of two series, its intervals, and its dependence on single points."""

    r: float  # Pearson's
    low: float
    high: float
    rank_r: float  # Spearman's
    rank_low: float
    rank_high: float
    leave_one_out: tuple[float, ...]  # Pearson's without each point
    most_influential: int  # the point without which Pearson's changes most
    points: int


def compare(
    ours: Sequence[float], theirs: Sequence[float], *, floor: float = 0.0, level: float = LEVEL, seed: int = 0
) -> Comparison:
    """Compare ours with theirs, round by round.

    Args:
        ours: Seconds in each round.
        theirs: Seconds in the same rounds.
        floor: The relative difference that is noise; a finding needs the whole interval beyond it.
        level: The confidence level of the interval.
        seed: Seed of the bootstrap; equal numbers and seeds give equal results.
    """
    return estimate(ours, theirs, seed=seed).comparison(floor=floor, level=level)


def estimate(ours: Sequence[float], *theirs: Sequence[float], seed: int = 0) -> Estimate:
    """Estimate the ratio, without a level and a floor; this is the costly part of `compare`.

    `theirs` may be several sessions that ran in the same rounds; ours is then compared with each of them. Their mean
    must not be used instead: it is disturbed in more of the rounds, and would seem slow.
    """
    if not theirs or not all(len(seconds) == len(ours) > 0 for seconds in theirs):
        counts = ", ".join(str(len(seconds)) for seconds in theirs)
        raise ValueError(f"rounds come in pairs: {len(ours)} of ours, {counts}")
    logs = (_log(ours) - _log(theirs)).T
    count, centre = len(logs), float(_centre(logs.reshape(1, -1))[0])
    if count == 1:
        return Estimate(centre, math.inf, 1.0, 1)
    block = _block(logs.mean(axis=1))
    samples = int(np.clip(_MAX_RESAMPLED_NUMBERS / logs.size, _MIN_SAMPLES, SAMPLES))
    starts = np.random.default_rng(seed).integers(0, count, (samples, -(-count // block)))
    rounds = (starts[:, :, np.newaxis] + np.arange(block)).reshape(samples, -1)[:, :count] % count
    low, high = np.quantile(_centre(logs[rounds].reshape(samples, -1)), _WITHIN_ONE_ERROR)
    error = float(high - low) / 2 * math.sqrt(count / (count - block))
    return Estimate(centre, error, max(1.0, _EFFECTIVE_SHARE * count / block - 1), count)


def _log(seconds: Sequence[float] | Sequence[Sequence[float]]) -> Floats:
    """Return the logarithm of times; a coarse clock may count none for a short run."""
    return np.log(np.maximum(np.asarray(seconds, dtype=np.float64), _CLOCK_TICK_SECONDS))


def spread(seconds: Sequence[float]) -> Spread:
    """Return the distribution of one contender's times."""
    times = np.sort(np.asarray(seconds, dtype=np.float64))
    low, middle, high = (float(quantile) for quantile in np.quantile(times, (0.25, 0.5, 0.75)))
    inside = times[(times >= low - 1.5 * (high - low)) & (times <= high + 1.5 * (high - low))]
    ends = min(low, float(inside[0])), max(high, float(inside[-1]))  # a quartile may lie between a time and an outlier
    return Spread(middle, low, high, *ends)


def correlation(x: Sequence[float], y: Sequence[float], *, seed: int = 0) -> Correlation:
    """Return the correlation of x and y with bootstrap intervals over the points; NaN if too few points differ."""
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    count = len(first)
    if not len(second) == count > 0:
        raise ValueError(f"points have two numbers each: {count} of x, {len(second)} of y")
    samples = np.random.default_rng(seed).integers(0, count, (_CORRELATION_SAMPLES, count))
    r = float(_pearson(first, second))
    low, high = _interval(_pearson(first[samples], second[samples]))
    first_ranks, second_ranks = _ranks(first), _ranks(second)
    rank_low, rank_high = _interval(_pearson(first_ranks[samples], second_ranks[samples]))
    without = tuple(float(_pearson(np.delete(first, at), np.delete(second, at))) for at in range(count))
    changes = np.abs(np.nan_to_num(np.asarray(without) - r))
    rank_r = float(_pearson(first_ranks, second_ranks))
    return Correlation(r, low, high, rank_r, rank_low, rank_high, without, int(np.argmax(changes)), count)


def _centre(rows: Floats) -> Floats:
    """Return the trimmed mean of each row."""
    count = rows.shape[1]
    left_out = int(TRIMMED_SHARE * count)
    if left_out == 0:
        return rows.mean(axis=1)
    return np.partition(rows, (left_out, count - left_out - 1), axis=1)[:, left_out : count - left_out].mean(axis=1)


def _block(logs: Floats) -> int:
    """Return the block length of the bootstrap: longer, the longer disturbances last.

    It is (6 · (ρ / (1 - ρ²))² · n)^(1/3) for n rounds, which minimizes the error if each round depends on the one
    before with autocorrelation ρ. ρ is taken from ranks, because a single spike would hide what its neighbours share.
    """
    count = len(logs)
    ranks = _ranks(logs) - (count - 1) / 2
    square = float(ranks @ ranks)
    rho = float(ranks[:-1] @ ranks[1:]) / square if square > 0 else 0.0
    rho = min(max(rho, 0.0), 0.97)
    length = (6 * (rho / (1 - rho * rho)) ** 2 * count) ** (1 / 3)
    return int(min(max(1, math.ceil(length)), max(1, count // 5)))


def _ranks(values: Floats) -> Floats:
    """Return the rank of each number; equal numbers share the mean of their ranks."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1) / 2


def _pearson(x: Floats, y: Floats) -> Any:
    if not x.shape[-1]:
        return math.nan
    dx, dy = x - x.mean(axis=-1, keepdims=True), y - y.mean(axis=-1, keepdims=True)
    norm = np.sqrt((dx * dx).sum(axis=-1)) * np.sqrt((dy * dy).sum(axis=-1))
    constant = (np.ptp(x, axis=-1) == 0) | (np.ptp(y, axis=-1) == 0) | (norm == 0)
    return np.where(constant, math.nan, (dx * dy).sum(axis=-1) / np.where(constant, 1.0, norm))


def _interval(samples: Floats) -> tuple[float, float]:
    defined = samples[~np.isnan(samples)]
    if not len(defined):
        return math.nan, math.nan
    low, high = np.quantile(defined, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)


def student(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution, by its expansion around the normal one."""
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _exp(log: float) -> float:
    return math.exp(log) if log < 700 else math.inf  # the largest float is about exp(709)
