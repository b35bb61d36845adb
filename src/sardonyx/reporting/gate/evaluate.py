"""Holding a record to its gates: what each asked, what it got, and whether it is met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.errors import UsageError
from sardonyx.reporting.gate.baselines import Baseline
from sardonyx.reporting.gate.expressions import Gate
from sardonyx.reporting.gate.kinds import RecordKind
from sardonyx.reporting.gate.metric import Measure, shown


@dataclass(frozen=True, slots=True)
class Outcome:
    """One gate, held."""

    gate: Gate
    measure: Measure
    baseline: Measure | None  # None: it asks for none
    met: bool  # the expression is not true, or not surely

    @property
    def limit(self) -> str:
        """What the number is held to, worked out."""
        limit = self.gate.limit
        return str(limit.measure(self.baseline)) + ("%" if limit.percent and limit.times is None else "")

    def sentence(self) -> str:
        """What is wrong, in one line."""
        known = f"{self.gate.name} is {self.measure}" if self.measure.known else f"{self.gate.name} is not a number"
        near = f", limit {self.limit}, baseline {self.baseline}" if self.baseline is not None else ""
        return f"gate not met: {self.gate.text} ({known}{self._percentage()}{near})"

    def _percentage(self) -> str:
        limit = self.gate.limit
        if limit.times is not None or not limit.percent or not self.measure.known:
            return ""
        return f", {shown(round(self.measure.in_percent().value, 3))}%"


def parse_all(kind: RecordKind, texts: Sequence[str], baseline: Baseline | None) -> list[Gate]:
    """All expressions about a kind of record, each with all it needs.

    Raises:
        UsageError: for one that cannot be read, or that the baseline has no number for.
    """
    gates = [kind.parse(text, baseline=baseline is not None) for text in texts]
    asked = [gate.name for gate in gates if gate.needs_baseline]
    missing = baseline.lacks(asked) if baseline is not None else None
    if baseline is not None and missing is not None:
        had = ", ".join(name for name, measure in baseline.measures.items() if measure.known and "." not in name)
        raise UsageError(
            f"--baseline {baseline.path} is {baseline.title} and has no {missing} to compare with",
            hint=f"it has {had}" if had else f"give the record of {kind.title}",
        )
    return gates


def hold(gates: Sequence[Gate], kind: RecordKind, record: Any, baseline: Baseline | None = None) -> list[Outcome]:
    """Every gate with its number; a number that the record does not have meets no gate."""
    measures = kind.measures(record)
    outcomes: list[Outcome] = []
    for gate in gates:
        measure = measures.get(gate.name, Measure(float("nan")))
        before = baseline.measures[gate.name] if baseline is not None and gate.needs_baseline else None
        outcomes.append(Outcome(gate, measure, before, not gate.tripped(measure, before)))
    return outcomes
