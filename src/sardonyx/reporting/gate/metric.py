"""A number that a gate can ask for: what it is, between what it may lie, and what a percentage of it is taken of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sardonyx.records.bench import Finding

NO_DIFFERENCE = Finding.SAME.value


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a record; a measured one has an interval around it."""

    value: float
    whole: float | None = None  # what a percentage of it is taken of
    low: float | None = None  # None: it is known exactly
    high: float | None = None

    @property
    def lowest(self) -> float:
        """The least that it may be."""
        return self.value if self.low is None else self.low

    @property
    def highest(self) -> float:
        """The most that it may be."""
        return self.value if self.high is None else self.high

    @property
    def known(self) -> bool:
        """Whether it is a number at all."""
        return not any(map(math.isnan, (self.value, self.lowest, self.highest)))

    def in_percent(self) -> Measure:
        """The same as a percentage of its whole."""
        assert self.whole is not None, "percentages are only parsed for names that have a whole"
        factor = 100 / self.whole if self.whole else 0.0
        return Measure(self.value * factor, None, self.lowest * factor, self.highest * factor)

    def __str__(self) -> str:
        """For people: the number, and its interval where it has one."""
        interval = f" [{shown(self.lowest)}, {shown(self.highest)}]" if self.lowest != self.highest else ""
        return shown(self.value) + interval


def shown(number: float) -> str:
    """A number as a line or a table has it: whole ones in full, others with six digits."""
    return f"{number:.0f}" if float(number).is_integer() and abs(number) < 1e15 else f"{number:.6g}"


def share(part: float, whole: float) -> Measure:
    """A share from 0 to 1, which may be asked for in percent; of nothing it is all."""
    return Measure(part / whole if whole else 1.0, 1.0)


def ratio(value: float, low: float, high: float, finding: str) -> Measure:
    """One time over another with its interval; where no difference was found, it may be none."""
    if finding == NO_DIFFERENCE:
        low, high = min(low, 1.0), max(high, 1.0)
    return Measure(value, 1.0, low, high)


def worst(values: Iterable[float]) -> float:
    """The largest; NaN if any is."""
    seen = list(values)
    return math.nan if any(map(math.isnan, seen)) else max(seen, default=0.0)
