"""A number of a record that gates compare: its value, its interval, and the whole for percentages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sardonyx.records.bench import Finding

NO_DIFFERENCE = Finding.SAME.value


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a record, with an interval if it was measured."""

    value: float
    whole: float | None = None  # the whole for percentages
    low: float | None = None  # None: the number is exact
    high: float | None = None

    @property
    def lowest(self) -> float:
        """The lower end of the interval."""
        return self.value if self.low is None else self.low

    @property
    def highest(self) -> float:
        """The upper end of the interval."""
        return self.value if self.high is None else self.high

    @property
    def known(self) -> bool:
        """Whether it is not NaN."""
        return not any(map(math.isnan, (self.value, self.lowest, self.highest)))

    def in_percent(self) -> Measure:
        """Return the number as a percentage of its whole."""
        assert self.whole is not None, "percentages are only parsed for names that have a whole"
        factor = 100 / self.whole if self.whole else 0.0
        return Measure(self.value * factor, None, self.lowest * factor, self.highest * factor)

    def __str__(self) -> str:
        """Return the number, with its interval if it has one."""
        interval = f" [{shown(self.lowest)}, {shown(self.highest)}]" if self.lowest != self.highest else ""
        return shown(self.value) + interval


def shown(number: float) -> str:
    """Return a number as text: integers in full, others with six digits."""
    return f"{number:.0f}" if float(number).is_integer() and abs(number) < 1e15 else f"{number:.6g}"


def share(part: float, whole: float) -> Measure:
    """Return a share from 0 to 1 that may be compared in percent; 1 if the whole is 0."""
    return Measure(part / whole if whole else 1.0, 1.0)


def ratio(value: float, low: float, high: float, finding: str) -> Measure:
    """Return a ratio of times with its interval, which includes 1 if no difference was found."""
    if finding == NO_DIFFERENCE:
        low, high = min(low, 1.0), max(high, 1.0)
    return Measure(value, 1.0, low, high)


def worst(values: Iterable[float]) -> float:
    """Return the largest value, NaN if any value is NaN."""
    numbers = list(values)
    return math.nan if any(map(math.isnan, numbers)) else max(numbers, default=0.0)
