"""The budget of a quantization: expressions that the result has to meet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from sardonyx.errors import UsageError
from sardonyx.quantization.task import Task
from sardonyx.records.expressions import Gate, Number, Wording, parse
from sardonyx.records.quantization import Scores

Objective = Literal["time", "bytes"]
LOSSES = ("relative_l2", "cosine", "top1", "metric")
NAMES = (*LOSSES, "bytes", "time")
_UNSEEN = math.sqrt(2)  # the difference between two sets of samples has the variance of both
_EXAMPLE = "write a name, a comparison and a limit: 'relative_l2<=0.01,top1>=99%', 'bytes<=0.3'"


class Budget(Struct, frozen=True):
    """Expressions over the loss, and over bytes and time relative to the source; all of them have to be true."""

    limits: tuple[Gate, ...]
    is_default: bool = False

    @classmethod
    def of(cls, texts: Sequence[str], *, has_metric: bool) -> Budget:
        """Parse expressions; each text may hold several, separated by commas. If there are none, the task gives some.

        Raises:
            UsageError: An expression cannot be parsed, or needs a metric and there is none.
        """
        parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
        limits = tuple(_limit(part) for part in parts)
        if not has_metric and (unknown := next((each for each in limits if each.name == "metric"), None)):
            raise UsageError(
                f"the budget {unknown.text!r} needs a metric", hint="name a function of a file with `metric`"
            )
        return cls(limits, not parts)

    @property
    def texts(self) -> tuple[str, ...]:
        """The expressions."""
        return tuple(each.text for each in self.limits)

    def bounds(self, name: str) -> bool:
        """Return whether some expression is about this number."""
        return any(each.name == name for each in self.limits)

    def of_task(self, task: Task) -> Budget:
        """Return the budget of the user, or otherwise that of the task."""
        return Budget(tuple(map(_limit, task.limits)), True) if self.is_default else self

    def check_rows(self, scores: Scores) -> None:
        """Check that there is a top-1 agreement if it has a limit.

        Raises:
            UsageError: There is none.
        """
        if scores.top1 is None and self.bounds("top1"):
            raise UsageError(
                "the outputs have no rows to compare, so there is no top1", hint="leave it out of `budget`"
            )

    def broken(self, measures: Mapping[str, Number], *, surely: bool = False) -> list[str]:
        """Return the expressions about these numbers that are not met, with the value.

        Args:
            measures: The numbers by name; expressions about others are left out.
            surely: An expression has to hold for the whole interval in which the number is for other samples of the
                same kind. That of top-1 agreement, which counts rows, is wide if there are few: its value counts.
        """
        lines: list[str] = []
        for each in self.limits:
            measure = measures.get(each.name)
            if measure is None:
                continue
            value = _worst_end(measure, each.sign) if surely and each.name != "top1" else measure.value
            if not measure.known or not each.tripped(Number(value, 1.0)):
                lines.append(f"{each.text} ({_described(each, measure, value)})")
        return lines

    def widened(self, measures: Mapping[str, Number]) -> list[str]:
        """Return limits that these numbers meet, each the given one or the next number of two digits."""
        return [
            f"{each.name}{each.sign}{_rounded_outwards(measures[each.name], each)}"
            if each.name in measures and Budget((each,)).broken(measures, surely=True)
            else each.text
            for each in self.limits
        ]

    def excess(self, measures: Mapping[str, Number]) -> float:
        """Return how far the numbers are from the budget: the largest ratio of a value to its limit."""
        ratios = [_excess(measures[each.name], each) for each in self.limits if each.name in measures]
        return max(ratios, default=0.0)


def loss_measures(scores: Scores) -> dict[str, Number]:
    """Return the losses by name, with their intervals."""
    intervals = {name: getattr(scores, name) for name in LOSSES}
    return {
        name: Number(interval.value, 1.0, interval.low, interval.high)
        for name, interval in intervals.items()
        if interval is not None
    }


def _limit(text: str) -> Gate:
    if "baseline" in text:
        raise UsageError(f"the budget {text!r}: there is no baseline", hint=_EXAMPLE)
    gate = parse(text, NAMES, shares=NAMES, wording=Wording("the budget", _EXAMPLE))
    if gate.sign in ("==", "!="):
        raise UsageError(f"the budget {text!r} is not an upper or a lower limit", hint=_EXAMPLE)
    if gate.name in ("bytes", "time") and text.rstrip()[-1].isalpha():
        raise UsageError(f"the budget {text!r}: {gate.name} is a ratio to the source", hint=_EXAMPLE)
    return gate


def _described(limit: Gate, measure: Number, worst: float) -> str:
    """Return the number that breaks a limit, with enough digits to see that it does."""
    if not measure.known or not limit.tripped(Number(measure.value, 1.0)):
        return f"{limit.name} is {_digits(limit, measure.value)}"
    return f"{limit.name} is {_digits(limit, measure.value)}, and its interval reaches {_digits(limit, worst)}"


def _digits(limit: Gate, value: float) -> str:
    """Return a number rounded to few digits, on the same side of the limit; NaN is on every side."""
    meets = limit.tripped(Number(value, 1.0))
    rounded = (f"{value:.{digits}g}" for digits in range(3, 18))  # the last has all digits
    return next(text for text in rounded if limit.tripped(Number(float(text), 1.0)) == meets)


def _rounded_outwards(measure: Number, limit: Gate) -> str:
    """Return the worst end of a number, rounded to two digits away from it."""
    is_upper = limit.sign.startswith("<")
    worst = measure.value if limit.name == "top1" else _worst_end(measure, limit.sign)
    distance = worst if is_upper else 1 - worst  # cosine and top1 are close to 1
    unit = 10.0 ** (math.floor(math.log10(distance)) - 1) if distance > 0 else 0.01
    away = math.ceil(distance / unit * (1 + 1e-9)) * unit
    return f"{away if is_upper else 1 - away:.12g}"


def _worst_end(measure: Number, sign: str) -> float:
    end = measure.highest if sign.startswith("<") else measure.lowest
    return measure.value + _UNSEEN * (end - measure.value)


def _excess(measure: Number, limit: Gate) -> float:
    bound = limit.limit.number / (100 if limit.limit.percent else 1)
    value = measure.value if limit.sign.startswith("<") else 1 - measure.value
    bound = bound if limit.sign.startswith("<") else 1 - bound
    return value / bound if bound > 0 else (0.0 if value <= bound else float("inf"))
