"""`--fail-if` expressions: a name, a comparison and a limit; read by a fixed grammar, never evaluated as code.

expression = [form "."] name sign limit  |  name    (alone: > 0, for names of which there should be none)
limit      = number [unit | "%"]  |  "baseline" [("+" | "-") number [unit | "%"]]  |  number "*" "baseline"
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sardonyx.errors import UsageError
from sardonyx.reporting.gate.metric import Measure

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_AMOUNT = r"(?P<{0}>{1}{2})\s*(?P<{0}_unit>%|[A-Za-z]*)"
_FORM = re.compile(
    r"\s*(?:(?P<form>[a-z]+)\.)?(?P<name>[a-z_]+)\s*(?P<sign><=|>=|==|!=|<|>)\s*(?:"
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
_WITH_UNIT = {"_mb": "MB", "_ms": "milliseconds"}  # names that say their unit
_EXAMPLE = "write a name, a comparison and a limit: --fail-if 'nodes>120', --fail-if 'bytes > baseline + 1%'"


@dataclass(frozen=True, slots=True)
class Limit:
    """A number, a percentage of the whole, or something near the baseline's number."""

    number: float  # the limit; near a baseline what is added to it
    percent: bool = False
    times: float | None = None  # of the baseline; None: the limit has none

    def measure(self, baseline: Measure | None) -> Measure:
        """Between what the limit lies: as exactly as the baseline is known."""
        if self.times is None:
            return Measure(self.number)
        assert baseline is not None, "a gate with a baseline is only held where there is one"
        return Measure(self._near(baseline.value), None, *sorted(map(self._near, _ends(baseline))))

    def _near(self, baseline: float) -> float:
        assert self.times is not None
        added = abs(baseline) * self.number / 100 if self.percent else self.number
        return self.times * baseline + added

    def __str__(self) -> str:
        """As it is written, in plain units."""
        unit = "%" if self.percent else ""
        if self.times is None:
            return f"{self.number!r}{unit}"
        times = f"{self.times!r} * " if self.times != 1 else ""
        sign = "-" if self.number < 0 else "+"
        return f"{times}baseline" + (f" {sign} {abs(self.number)!r}{unit}" if self.number else "")


@dataclass(frozen=True, slots=True)
class Gate:
    """One parsed expression; the command fails when it is true."""

    name: str
    sign: str
    limit: Limit
    text: str = field(compare=False)  # as the user wrote it

    @property
    def needs_baseline(self) -> bool:
        """Whether its limit is near a number of an earlier record."""
        return self.limit.times is not None

    def tripped(self, measure: Measure, baseline: Measure | None = None) -> bool:
        """Whether the expression is surely true; a number that is not one trips every gate.

        Measured numbers lie in an interval: then it must be true of every number in it, and in that of the baseline.
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
        """As it could be written, in plain units; read again it is the same gate."""
        return f"{self.name} {self.sign} {self.limit}"


def parse(
    text: str,
    names: Sequence[str],
    *,
    shares: Collection[str] = (),
    forms: Sequence[str] = (),
    alone: Collection[str] = (),
    baseline: bool = True,
) -> Gate:
    """The expression, or a usage error that says what would be right.

    Args:
        text: as the user wrote it.
        names: what may be asked for.
        shares: names of which a percentage makes sense.
        forms: what may stand before a name and a dot.
        alone: names that may stand without a limit, which is then none at all.
        baseline: whether there is one to ask for.
    """
    found = _FORM.fullmatch(f"{text} > 0" if text.strip() in alone else text)
    if found is None:
        raise UsageError(f"cannot read --fail-if {text!r}", hint=_EXAMPLE)
    name, form = found["name"], found["form"]
    if form is not None and form not in forms:
        raise UsageError(f"--fail-if {text!r}: there is no {form!r} to ask", hint=_forms_hint(name, forms))
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"--fail-if knows no {name!r}", hint=f"{meant}it knows {', '.join(names)}")
    if found["baseline"] and not baseline:
        raise UsageError(f"--fail-if {text!r} asks for a baseline", hint="give the record it is in: --baseline FILE")
    limit = _near_baseline(found, text, name) if found["baseline"] else _plain(found, text, name, shares)
    if not all(map(math.isfinite, (limit.number, limit.times or 0))):
        raise UsageError(f"--fail-if {text!r}: that number is too large", hint=_EXAMPLE)
    return Gate(name if form is None else f"{form}.{name}", found["sign"], limit, " ".join(text.split()))


def _plain(found: re.Match[str], text: str, name: str, shares: Collection[str]) -> Limit:
    unit = found["number_unit"]
    if unit == "%" and name not in shares:
        raise UsageError(f"--fail-if {text!r}: {name} has no percentage", hint="give a plain number")
    return Limit(float(found["number"]) * _factor(unit, text, name), unit == "%")


def _near_baseline(found: re.Match[str], text: str, name: str) -> Limit:
    unit = found["more_unit"] or ""
    more = float(found["more"] or 0) * _factor(unit, text, name)
    return Limit(-more if found["direction"] == "-" else more, unit == "%" and more != 0, float(found["times"] or 1))


def _factor(unit: str, text: str, name: str) -> float:
    """What a unit multiplies by, where the name can be had in it."""
    if unit in ("", "%"):
        return 1
    if unit not in _UNITS:
        known = ", ".join(filter(None, _UNITS))
        raise UsageError(f"--fail-if {text!r}: unknown unit {unit!r}", hint=f"one of %, {known}")
    said = next((spoken for ending, spoken in _WITH_UNIT.items() if name.endswith(ending)), None)
    if said is not None:
        raise UsageError(f"--fail-if {text!r}: {name} is in {said} already", hint="leave the unit out")
    if (unit in _OF_BYTES and "bytes" not in name) or (unit in _OF_SECONDS and name != "seconds"):
        raise UsageError(f"--fail-if {text!r}: {name} has no {unit!r}", hint="leave the unit out")
    return _UNITS[unit]


def _ends(measure: Measure) -> tuple[float, float]:
    return measure.lowest, measure.highest


def _forms_hint(name: str, forms: Sequence[str]) -> str:
    return f"one of {', '.join(f'{form}.{name}' for form in forms)}" if forms else f"leave it out: {name}"
