"""Whether a difference in time is real: paired by round, a robust centre, and an interval that bursts do not fool.

Contenders of one round run within the same moment, so that what else the machine does hits all of them alike: only
the ratio within a round counts. Ratios are taken as logarithms, which makes "ours over theirs" and "theirs over ours"
the same statement. Their centre is the mean of the middle three fifths: single disturbed rounds do not move it, and it
needs about a third fewer rounds than a median to be as sure. Its error is found by drawing runs of neighbouring rounds
again, so that disturbances that last for several rounds widen the interval as they should.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
TRIM = 0.2  # of the rounds are left out at either end
DRAWS = 1000
_FEWEST_DRAWS, _NUMBERS = 200, 500_000  # long series are drawn less often: each draw then tells more

Floats: TypeAlias = "NDArray[np.float64]"


class Finding(StrEnum):
    """What a comparison lets one say."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours as a multiple of theirs: below one is faster."""

    ratio: float
    low: float
    high: float
    floor: float  # relative difference up to which the machine tells nothing apart
    finding: Finding
    rounds: int

    @property
    def width(self) -> float:
        """The upper end as a multiple of the lower one, less one."""
        return self.high / self.low - 1 if self.low > 0 else math.inf


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
    logs = np.log(np.asarray(ours, dtype=np.float64)) - np.log(np.asarray(theirs, dtype=np.float64))
    centre, reach = _interval(logs, level, seed)
    low, high, edge = centre - reach, centre + reach, math.log1p(floor)
    finding = Finding.SLOWER if low > edge else Finding.FASTER if high < -edge else Finding.SAME
    return Comparison(_exp(centre), _exp(low), _exp(high), floor, finding, len(logs))


def noise_floor(first: Sequence[float], second: Sequence[float], *, level: float = LEVEL, seed: int = 0) -> float:
    """How far apart two measurements of the same thing may be: the outer end of their interval, as a difference."""
    found = compare(first, second, level=level, seed=seed)
    return max(found.high, 1 / found.low) - 1 if found.low > 0 else math.inf


def spread(seconds: Sequence[float]) -> Spread:
    """Where the times of one contender lie."""
    times = np.sort(np.asarray(seconds, dtype=np.float64))
    low, middle, high = (float(each) for each in np.quantile(times, (0.25, 0.5, 0.75)))
    inside = times[(times >= low - 1.5 * (high - low)) & (times <= high + 1.5 * (high - low))]
    deviation = float(np.median(np.abs(times - middle))) / NormalDist().inv_cdf(0.75)
    return Spread(
        middle, low, high, float(inside[0]), float(inside[-1]), deviation, float(times[0]), len(times) - len(inside)
    )


def geometric_mean(numbers: Iterable[float]) -> float:
    """The mean that ratios have."""
    logs = [math.log(number) for number in numbers]
    return math.exp(sum(logs) / len(logs))


def correlation(x: Sequence[float], y: Sequence[float], *, level: float = LEVEL, seed: int = 0) -> Correlation:
    """How x and y go together, with bootstrap intervals over the points; NaN where a series is constant."""
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    count = len(first)
    draws = np.random.default_rng(seed).integers(0, count, (2 * DRAWS, count))
    r = float(_pearson(first, second))
    low, high = _ends(_pearson(first[draws], second[draws]), level)
    ranks = _ranks(first), _ranks(second)
    rank_low, rank_high = _ends(_pearson(_ranks(first[draws]), _ranks(second[draws])), level)
    without = tuple(float(_pearson(np.delete(first, at), np.delete(second, at))) for at in range(count))
    changes = np.abs(np.nan_to_num(np.asarray(without) - r))
    most = int(np.argmax(changes)) if count else -1
    return Correlation(r, low, high, float(_pearson(*ranks)), rank_low, rank_high, without, most, count)


def _interval(logs: Floats, level: float, seed: int) -> tuple[float, float]:
    """Centre of the log-ratios, and how far its interval reaches to either side."""
    count = len(logs)
    centre = float(_centre(logs[np.newaxis])[0])
    if count < 2:  # one round tells nothing of how far another would lie
        return centre, math.inf
    block = _block(logs - centre)
    draws = int(np.clip(_NUMBERS / count, _FEWEST_DRAWS, DRAWS))
    starts = np.random.default_rng(seed).integers(0, count, (draws, -(-count // block)))
    places = (starts[:, :, np.newaxis] + np.arange(block)).reshape(draws, -1)[:, :count] % count
    error = float(np.std(_centre(logs[places]), ddof=1))
    freedom = max(1.0, (1 - 2 * TRIM) * count / block - 1)
    return centre, error * math.sqrt(count / max(count - block, 1)) * _student((1 + level) / 2, freedom)


def _centre(rows: Floats) -> Floats:
    """Mean of the middle of each row."""
    count = rows.shape[1]
    left_out = int(TRIM * count)
    if left_out == 0:
        return rows.mean(axis=1)
    return np.partition(rows, (left_out, count - left_out - 1), axis=1)[:, left_out : count - left_out].mean(axis=1)


def _block(residuals: Floats) -> int:
    """How many neighbouring rounds to draw together: more, the longer a disturbance lasts."""
    count = len(residuals)
    ranks = _ranks(residuals) - (count - 1) / 2  # ranks: a single spike must not hide what its neighbours share
    whole = float(ranks @ ranks)
    alike = float(ranks[:-1] @ ranks[1:]) / whole if whole > 0 else 0.0
    alike = min(max(alike, 0.0), 0.97)
    ideal = (6 * (alike / (1 - alike * alike)) ** 2 * count) ** (1 / 3)
    return int(min(max(1, math.ceil(ideal)), max(1, count // 5)))


def _ranks(values: Floats) -> Floats:
    """Place of each number among those of its row; equal numbers share the mean of their places."""
    ordered = np.sort(values, axis=-1)
    if values.ndim == 1:
        return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1) / 2
    return np.stack([_ranks(row) for row in values])


def _pearson(x: Floats, y: Floats) -> Any:
    with np.errstate(invalid="ignore", divide="ignore"):
        across, up = x - x.mean(axis=-1, keepdims=True), y - y.mean(axis=-1, keepdims=True)
        together = (across * up).sum(axis=-1)
        return together / np.sqrt((across * across).sum(axis=-1) * (up * up).sum(axis=-1))


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
