"""Whether a difference in time is real: paired by round, a robust centre, and an interval that bursts do not fool.

Contenders of one round run within the same moment, so that what else the machine does hits all of them alike: only
the ratio within a round counts. Ratios are taken as logarithms, which makes "ours over theirs" and "theirs over ours"
the same statement. Their centre is the mean of the middle third: where a third of the rounds is disturbed, as on shared
machines, it needs a third of the rounds that a mean of the middle two thirds needs, and on quiet ones fewer than the
median. Its error is found by drawing stretches of neighbouring rounds again, so that what lasts for several rounds
widens the interval as it should.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sardonyx.records.bench import Comparison, Finding

LEVEL = 0.95
TRIM = 0.35  # of the rounds are left out at either end
DRAWS = 400
_POINT_DRAWS = 2000  # of correlations, whose ends are read off the draws themselves
_TELLING = 0.6  # of the rounds say how wide the interval is: the share that keeps its promise for few of them
_FEWEST_DRAWS, _NUMBERS = 200, 200_000  # long series are drawn less often: each draw then tells more

# The middle of the draws says how wide all of them are: one wild round, drawn many times over, cannot widen it.
_WITHIN_ONE_ERROR = (NormalDist().cdf(-1), NormalDist().cdf(1))

Floats: TypeAlias = "NDArray[np.float64]"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The logarithm of a ratio and how unsure it is, at whatever level one asks."""

    centre: float
    error: float
    freedom: float  # rounds that count, blocks of neighbours counted once
    rounds: int

    def reach(self, level: float = LEVEL) -> float:
        """How far the interval goes to either side."""
        return self.error * _student((1 + level) / 2, self.freedom)

    def difference(self, level: float = LEVEL) -> float:
        """How far apart the two may be, as a relative difference: the outer end of the interval."""
        return _exp(abs(self.centre) + self.reach(level)) - 1

    def turned(self) -> Estimate:
        """Theirs over ours."""
        return replace(self, centre=-self.centre)

    def comparison(self, *, floor: float = 0.0, level: float = LEVEL) -> Comparison:
        """What this says beyond a floor."""
        low, high, edge = self.centre - self.reach(level), self.centre + self.reach(level), math.log1p(floor)
        finding = Finding.SLOWER if low > edge else Finding.FASTER if high < -edge else Finding.SAME
        return Comparison(_exp(self.centre), _exp(low), _exp(high), floor, finding, self.rounds)


@dataclass(frozen=True, slots=True)
class Spread:
    """How one contender's times lie: what a box plot shows."""

    median: float
    low_quartile: float
    high_quartile: float
    low_whisker: float  # the outermost times within one and a half box lengths of the box
    high_whisker: float
    deviation: float  # from the median, typically: comparable to a standard deviation, deaf to outliers
    fastest: float
    outliers: int


@dataclass(frozen=True, slots=True)
class Correlation:
    """How two series go together, how sure that is, and how much of it hangs on single points."""

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
    """Ours over theirs, round by round.

    Args:
        ours: seconds in each round.
        theirs: seconds in the same rounds.
        floor: relative difference that is noise: a claim needs the whole interval beyond it.
        level: how often the interval is to cover the truth.
        seed: of the draws; equal numbers and seeds give equal answers.
    """
    return estimate(ours, theirs, seed=seed).comparison(floor=floor, level=level)


def estimate(ours: Sequence[float], *theirs: Sequence[float], seed: int = 0) -> Estimate:
    """The same before one has chosen a level and a floor: the costly part, to be asked several times.

    Theirs may be given several times, as sessions that ran in the same rounds; ours is then compared with each of them.
    Their mean must not be taken instead: who is measured twice is disturbed in more of the rounds, and would seem slow.
    """
    if not theirs or not all(len(each) == len(ours) > 0 for each in theirs):
        raise ValueError(f"rounds come in pairs: {len(ours)} of ours, {', '.join(str(len(each)) for each in theirs)}")
    logs = (np.log(np.asarray(ours, dtype=np.float64)) - np.log(np.asarray(theirs, dtype=np.float64))).T
    count, centre = len(logs), float(_centre(logs.reshape(1, -1))[0])
    if count == 1:
        return Estimate(centre, math.inf, 1.0, 1)
    block = _block(logs.mean(axis=1))
    draws = int(np.clip(_NUMBERS / logs.size, _FEWEST_DRAWS, DRAWS))
    starts = np.random.default_rng(seed).integers(0, count, (draws, -(-count // block)))
    places = (starts[:, :, np.newaxis] + np.arange(block)).reshape(draws, -1)[:, :count] % count
    low, high = np.quantile(_centre(logs[places].reshape(draws, -1)), _WITHIN_ONE_ERROR)
    error = float(high - low) / 2 * math.sqrt(count / (count - block))
    return Estimate(centre, error, max(1.0, _TELLING * count / block - 1), count)


def spread(seconds: Sequence[float]) -> Spread:
    """Where the times of one contender lie."""
    times = np.sort(np.asarray(seconds, dtype=np.float64))
    low, middle, high = (float(each) for each in np.quantile(times, (0.25, 0.5, 0.75)))
    inside = times[(times >= low - 1.5 * (high - low)) & (times <= high + 1.5 * (high - low))]
    ends = min(low, float(inside[0])), max(high, float(inside[-1]))  # a quartile may lie between a time and an outlier
    deviation = float(np.median(np.abs(times - middle))) / NormalDist().inv_cdf(0.75)
    return Spread(middle, low, high, *ends, deviation, float(times[0]), len(times) - len(inside))


def geometric_mean(numbers: Iterable[float]) -> float:
    """The mean that ratios have."""
    logs = [math.log(number) for number in numbers]
    return math.exp(sum(logs) / len(logs))


def correlation(x: Sequence[float], y: Sequence[float], *, level: float = LEVEL, seed: int = 0) -> Correlation:
    """How x and y go together, with bootstrap intervals over the points; NaN where too few of them differ to tell."""
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    count = len(first)
    if not len(second) == count > 0:
        raise ValueError(f"points have two numbers each: {count} of x, {len(second)} of y")
    draws = np.random.default_rng(seed).integers(0, count, (_POINT_DRAWS, count))
    r = float(_pearson(first, second))
    low, high = _ends(_pearson(first[draws], second[draws]), level)
    ranks, ranked = _ranks(first), _ranks(second)
    rank_low, rank_high = _ends(_pearson(ranks[draws], ranked[draws]), level)
    without = tuple(float(_pearson(np.delete(first, at), np.delete(second, at))) for at in range(count))
    changes = np.abs(np.nan_to_num(np.asarray(without) - r))
    rank_r = float(_pearson(ranks, ranked))
    return Correlation(r, low, high, rank_r, rank_low, rank_high, without, int(np.argmax(changes)), count)


def _centre(rows: Floats) -> Floats:
    """Mean of the middle of each row."""
    count = rows.shape[1]
    left_out = int(TRIM * count)
    if left_out == 0:
        return rows.mean(axis=1)
    return np.partition(rows, (left_out, count - left_out - 1), axis=1)[:, left_out : count - left_out].mean(axis=1)


def _block(logs: Floats) -> int:
    """How many neighbouring rounds to draw together: more, the longer a disturbance lasts."""
    count = len(logs)
    ranks = _ranks(logs) - (count - 1) / 2  # ranks: a single spike must not hide what its neighbours share
    whole = float(ranks @ ranks)
    alike = float(ranks[:-1] @ ranks[1:]) / whole if whole > 0 else 0.0
    alike = min(max(alike, 0.0), 0.97)
    ideal = (6 * (alike / (1 - alike * alike)) ** 2 * count) ** (
        1 / 3
    )  # least error where each round hangs on the last
    return int(min(max(1, math.ceil(ideal)), max(1, count // 5)))


def _ranks(values: Floats) -> Floats:
    """Place of each number among all; equal numbers share the mean of their places."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1) / 2


def _pearson(x: Floats, y: Floats) -> Any:
    if not x.shape[-1]:
        return math.nan
    across, up = x - x.mean(axis=-1, keepdims=True), y - y.mean(axis=-1, keepdims=True)
    across_all, up_all = np.sqrt((across * across).sum(axis=-1)), np.sqrt((up * up).sum(axis=-1))
    constant = (np.ptp(x, axis=-1) == 0) | (np.ptp(y, axis=-1) == 0) | (across_all * up_all == 0)
    return np.where(constant, math.nan, (across * up).sum(axis=-1) / np.where(constant, 1.0, across_all * up_all))


def _ends(draws: Floats, level: float) -> tuple[float, float]:
    told = draws[~np.isnan(draws)]
    if not len(told):
        return math.nan, math.nan
    low, high = np.quantile(told, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def _student(part: float, freedom: float) -> float:
    """Student's quantile by its expansion around the normal one: few rounds need a wider interval."""
    z = NormalDist().inv_cdf(part)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _exp(log: float) -> float:
    return math.exp(log) if log < 700 else math.inf  # beyond what a float holds
