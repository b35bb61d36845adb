"""Expressions of gates and budgets: a name, a comparison and a limit; parsed, never evaluated as code.

expression = [form "."] name sign limit  |  name    (a name alone: > 0, for numbers that should be zero)
limit      = number [unit | "%"]  |  "baseline" [("+" | "-") number [unit | "%"]]  |  number "*" "baseline"
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from sardonyx.errors import UsageError
from sardonyx.records.bench import Finding

NO_DIFFERENCE = Finding.SAME.value


class Number(Struct, frozen=True):
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

    def in_percent(self) -> Number:
        """Return the number as a percentage of its whole."""
        assert self.whole is not None, "percentages are only parsed for names that have a whole"
        factor = 100 / self.whole if self.whole else 0.0
        return Number(self.value * factor, None, self.lowest * factor, self.highest * factor)

    def __str__(self) -> str:
        """Return the number, with its interval if it has one."""
        interval = f" [{shown(self.lowest)}, {shown(self.highest)}]" if self.lowest != self.highest else ""
        return shown(self.value) + interval


def shown(number: float) -> str:
    """Return a number as text: integers in full, others with six digits."""
    return f"{number:.0f}" if float(number).is_integer() and abs(number) < 1e15 else f"{number:.6g}"


def ratio(value: float, low: float, high: float, finding: str) -> Number:
    """Return a ratio of times with its interval, which includes 1 if no difference was found."""
    if finding == NO_DIFFERENCE:
        low, high = min(low, 1.0), max(high, 1.0)
    return Number(value, 1.0, low, high)


def worst(values: Iterable[float]) -> float:
    """Return the largest value, NaN if any value is NaN."""
    numbers = list(values)
    return math.nan if any(map(math.isnan, numbers)) else max(numbers, default=0.0)


_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_AMOUNT = r"(?P<{0}>{1}{2})\s*(?P<{0}_unit>%|[A-Za-z]*)"
_FORM = re.compile(
    r"\s*(?:(?P<form>[a-z]+)\.)?(?P<name>[a-z_][a-z0-9_]*)\s*(?P<sign><=|>=|==|!=|<|>)\s*(?:"
    + rf"(?:(?P<times>{_NUMBER})\s*\*\s*)?(?P<baseline>baseline)"
    + rf"(?:\s*(?P<direction>[+-])\s*{_AMOUNT.format('more', '', _NUMBER)})?"
    + rf"|{_AMOUNT.format('number', '[+-]?', _NUMBER)})\s*",
    re.ASCII,
)
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_OF_COUNTS = {"k": 1e3, "M": 1e6, "G": 1e9}
_OF_BYTES = {"B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_OF_SECONDS = {"ms": 1e-3, "s": 1}
_UNITS: Mapping[str, float] = {"": 1} | _OF_COUNTS | _OF_BYTES | _OF_SECONDS
_WITH_UNIT = {"_mb": "MB", "_ms": "milliseconds"}  # suffixes of names that include their unit


class Wording(Struct, frozen=True):
    """How messages name an expression."""

    option: str  # that it is a value of
    example: str  # how to write one
    baseline: str = ""  # how to give a baseline


class Limit(Struct, frozen=True):
    """A number, a percentage of the whole, or a number relative to the baseline."""

    number: float  # the limit, or what is added to the baseline
    percent: bool = False
    times: float | None = None  # factor of the baseline; None: without a baseline

    def measure(self, baseline: Number | None) -> Number:
        """Return the limit, with an interval if the baseline has one."""
        if self.times is None:
            return Number(self.number)
        assert baseline is not None, "a gate with a baseline is evaluated only if there is one"
        return Number(self._near(baseline.value), None, *sorted(map(self._near, _ends(baseline))))

    def _near(self, baseline: float) -> float:
        assert self.times is not None
        added = abs(baseline) * self.number / 100 if self.percent else self.number
        return self.times * baseline + added

    def __str__(self) -> str:
        """Return the limit in plain units."""
        unit = "%" if self.percent else ""
        if self.times is None:
            return f"{self.number!r}{unit}"
        times = f"{self.times!r} * " if self.times != 1 else ""
        sign = "-" if self.number < 0 else "+"
        return f"{times}baseline" + (f" {sign} {abs(self.number)!r}{unit}" if self.number else "")


class Gate(Struct, frozen=True):
    """A parsed expression; the command fails if it is true."""

    name: str
    sign: str
    limit: Limit
    text: str  # as the user wrote it

    @property
    def needs_baseline(self) -> bool:
        """Whether its limit refers to an earlier record."""
        return self.limit.times is not None

    def tripped(self, measure: Number, baseline: Number | None = None) -> bool:
        """Return whether the expression is certainly true; NaN trips every gate.

        For measured numbers it must be true for every number of the interval, and of that of the baseline.
        """
        if not measure.known:
            return True
        plain_percentage = self.limit.percent and self.limit.times is None
        ours, limit = measure.in_percent() if plain_percentage else measure, self.limit.measure(baseline)
        if self.sign == "!=":
            return ours.highest < limit.lowest or ours.lowest > limit.highest
        compare = _SIGNS[self.sign]
        return all(compare(mine, theirs) for mine in _ends(ours) for theirs in _ends(limit))

    def __str__(self) -> str:
        """Return an expression in plain units that parses to the same gate."""
        return f"{self.name} {self.sign} {self.limit}"


def parse(
    text: str,
    names: Sequence[str],
    *,
    shares: Collection[str] = (),
    forms: Sequence[str] = (),
    alone: Collection[str] = (),
    baseline: bool = True,
    wording: Wording,
) -> Gate:
    """Return the parsed expression, or raise a usage error with a hint.

    Args:
        text: as the user wrote it.
        names: the known names.
        shares: names that may have a percentage as limit.
        forms: prefixes that a name may have, followed by a dot.
        alone: names that may be given without a limit, which is then 0.
        baseline: whether there is a baseline.
        wording: how messages name it.
    """
    option, example = wording.option, wording.example
    match = _FORM.fullmatch(f"{text} > 0" if text.strip() in alone else text)
    if match is None:
        raise UsageError(f"cannot read {option} {text!r}", hint=example)
    name, form = match["name"], match["form"]
    if form is not None and form not in forms:
        known = ", ".join(f"{each}.{name}" for each in forms)
        hint = f"one of {known}" if forms else f"leave it out: {name}"
        raise UsageError(f"{option} {text!r}: there is no form {form!r}", hint=hint)
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"{option}: unknown name {name!r}", hint=f"{meant}known names: {', '.join(names)}")
    if match["baseline"] and not baseline:
        raise UsageError(f"{option} {text!r} needs a baseline", hint=wording.baseline)
    given = f"{option} {text!r}"
    if match["baseline"]:
        unit = match["more_unit"] or ""
        more = float(match["more"] or 0) * _factor(unit, given, name) * (-1 if match["direction"] == "-" else 1)
        limit = Limit(more, unit == "%" and more != 0, float(match["times"] or 1))
    else:
        unit = match["number_unit"]
        if unit == "%" and name not in shares:
            raise UsageError(f"{given}: {name} has no percentage", hint="give a plain number")
        limit = Limit(float(match["number"]) * _factor(unit, given, name), unit == "%")
    if not all(map(math.isfinite, (limit.number, limit.times or 0))):
        raise UsageError(f"{given}: that number is too large", hint=example)
    return Gate(name if form is None else f"{form}.{name}", match["sign"], limit, " ".join(text.split()))


def _factor(unit: str, given: str, name: str) -> float:
    """Return the factor of a unit; a usage error if the name cannot have that unit."""
    if unit in ("", "%"):
        return 1
    if unit not in _UNITS:
        units = ", ".join(filter(None, _UNITS))
        raise UsageError(f"{given}: unknown unit {unit!r}", hint=f"one of %, {units}")
    implied = next((implied for ending, implied in _WITH_UNIT.items() if name.endswith(ending)), None)
    if implied is not None:
        raise UsageError(f"{given}: {name} is in {implied} already", hint="leave the unit out")
    if (unit in _OF_BYTES and "bytes" not in name) or (unit in _OF_SECONDS and name != "seconds"):
        raise UsageError(f"{given}: {name} has no {unit!r}", hint="leave the unit out")
    return _UNITS[unit]


def _ends(measure: Number) -> tuple[float, float]:
    return measure.lowest, measure.highest
