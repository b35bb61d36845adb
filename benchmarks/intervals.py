"""How sure a ratio of timings is: paired by round, the median of the ratios, and a bootstrap interval around it.

Runs of one round happen within the same second, so what else the machine does hits all of them alike; the median keeps
single disturbed rounds out; drawing rounds again with replacement tells how far the median could have fallen elsewhere.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DRAWS = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Ratio:
    """One timing as a multiple of another."""

    value: float
    low: float
    high: float

    @property
    def slower(self) -> bool:
        """Whether it is slower beyond the interval."""
        return self.low > 1

    @property
    def faster(self) -> bool:
        """Whether it is faster beyond the interval."""
        return self.high < 1

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def paired(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0) -> Ratio:
    """Ours over theirs, round by round."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    edge = round((1 - LEVEL) / 2 * DRAWS)
    return Ratio(statistics.median(ratios), medians[edge], medians[-1 - edge])


def geometric_mean(numbers: Iterable[float]) -> float:
    """The mean that ratios have."""
    logs = [math.log(number) for number in numbers]
    return math.exp(sum(logs) / len(logs))
