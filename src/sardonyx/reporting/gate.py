"""`--fail-if`: compare the measures of a record with limits, or with a baseline, which is an earlier record.

The summary on the page of a CI job says what happened, which gates hold, and the numbers behind them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from sardonyx.errors import UsageError
from sardonyx.records import reading
from sardonyx.records.expressions import Gate, shown
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Document, Paragraph, Section, Table, text_column
from sardonyx.reporting.measures import Reading, RecordKind
from sardonyx.reporting.record_kinds import kinds

_HOW = "a baseline is a record that `--record FILE` or `--json` of a sardonyx command wrote"


class Baseline(Struct, frozen=True):
    """The numbers of an earlier record that one of a given kind can be compared with."""

    path: str
    title: str  # of its kind
    measures: Mapping[str, Reading]

    def lacks(self, names: Collection[str]) -> str | None:
        """Return the first of the names without a number, or None."""
        return next((name for name in names if name not in self.measures or not self.measures[name].known), None)


def read_baseline(path: Path, wanted: RecordKind) -> Baseline:
    """Return the record in a file as a baseline for one of the wanted kind.

    Raises:
        UsageError: the file cannot be read, is not a record, or has another version.
    """
    name = f"--baseline {path}"
    record = reading.read_file(path, name, _HOW)
    kind = next((kind for kind in kinds() if kind.record is type(record)), None)
    if kind is None:
        raise UsageError(f"{name} is {record.title}, which has no numbers to compare", hint=_HOW)
    try:
        measures = kind.measures(record)
    except IndexError as error:
        raise UsageError(f"{name} is not a complete record of {kind.title}: {error}", hint=_HOW) from error
    if kind is not wanted:
        shared = set(kind.common) & set(wanted.common)
        measures = {name: measure for name, measure in measures.items() if name in shared}
    return Baseline(str(path), kind.title, measures)


class Outcome(Struct, frozen=True):
    """The result of one gate."""

    gate: Gate
    measure: Reading
    baseline: Reading | None  # None: the gate needs none
    met: bool  # the expression is false, or not certainly true

    @property
    def limit(self) -> str:
        """The computed limit."""
        limit = self.gate.limit
        return str(limit.measure(self.baseline)) + ("%" if limit.percent and limit.times is None else "")

    def sentence(self) -> str:
        """Return why the gate is not met, in one line."""
        value = f"{self.gate.name} is {self.measure}" if self.measure.known else f"{self.gate.name} is not a number"
        limit = self.gate.limit
        if limit.times is None and limit.percent and self.measure.known:
            value += f", {shown(round(self.measure.in_percent().value, 3))}%"
        near = f", limit {self.limit}, baseline {self.baseline}" if self.baseline is not None else ""
        return f"gate not met: {self.gate.text} ({value}{near})"

    def described(self) -> dict[str, object]:
        """Return the result as fields of JSON; numbers that are not known are null."""
        return {
            "fail_if": self.gate.text,
            "met": self.met,
            "name": self.gate.name,
            "value": self.measure.value if self.measure.known else None,
            "limit": self.limit,
            "baseline": None if self.baseline is None else self.baseline.value,
        }


def parse_all(kind: RecordKind, texts: Sequence[str], baseline: Baseline | None) -> list[Gate]:
    """Return the parsed expressions about a kind of record.

    Raises:
        UsageError: an expression cannot be parsed, or the baseline has no number for it.
    """
    gates = [kind.parse(text, baseline=baseline is not None) for text in texts]
    compared = [gate.name for gate in gates if gate.needs_baseline]
    missing = baseline.lacks(compared) if baseline is not None else None
    if baseline is not None and missing is not None:
        names = ", ".join(name for name, measure in baseline.measures.items() if measure.known and "." not in name)
        raise UsageError(
            f"--baseline {baseline.path} is {baseline.title} and has no {missing} to compare with",
            hint=f"it has {names}" if names else f"give the record of {kind.title}",
        )
    return gates


def hold(gates: Sequence[Gate], kind: RecordKind, record: Any, baseline: Baseline | None = None) -> list[Outcome]:
    """Return the result of every gate; a number that the record does not have meets no gate."""
    measures = kind.measures(record)
    outcomes: list[Outcome] = []
    for gate in gates:
        measure = measures[gate.name]
        before = baseline.measures[gate.name] if baseline is not None and gate.needs_baseline else None
        outcomes.append(Outcome(gate, measure, before, not gate.tripped(measure, before)))
    return outcomes


class JobSummary(Struct, frozen=True):
    """The result of one command."""

    title: str  # what was done
    sentence: str
    failed: bool  # an error occurred before any gate was evaluated
    outcomes: Sequence[Outcome]
    numbers: Mapping[str, Reading]
    baseline: Baseline | None


def summary_document(summary: JobSummary) -> Document:
    """Return a section of the page of a CI job."""
    unmet = sum(not outcome.met for outcome in summary.outcomes)
    gates = fmt.plural(len(summary.outcomes), "gate")
    if summary.failed:
        mark, verdict = "❌", "failed"
    elif unmet:
        mark, verdict = "❌", f"{unmet} of {gates} not met"
    else:
        mark, verdict = "✅", f"{gates} met" if summary.outcomes else "done"
    outcomes = (
        (
            *(outcome.gate.text, str(outcome.measure) if outcome.measure.known else "not a number", outcome.limit),
            *("" if outcome.baseline is None else str(outcome.baseline), "ok" if outcome.met else "❌ not met"),
        )
        for outcome in summary.outcomes
    )
    rows: list[list[str]] = []
    for name, number in summary.numbers.items():
        if number.known and "." not in name:
            rows.append([name, number.written])
            before = None if summary.baseline is None else summary.baseline.measures.get(name)
            if before is not None and before.known:
                rows[-1] += [before.written, number.change(before), number.verdict(before)]
            elif summary.baseline is not None:
                rows[-1] += [""] * 3
    beside = () if summary.baseline is None else ("baseline", "change", text_column(""))
    numbers = Table.of((text_column("number"), "value", *beside), rows)
    columns = (text_column("fails if"), "value", "limit", "baseline", text_column(""))
    sentence = Paragraph(fmt.one_line(summary.sentence))
    blocks = (sentence, Table.of(columns, outcomes), Section("Numbers", (numbers,), folded=True))
    return Document(blocks, f"{mark} {summary.title}: {verdict}", level=3)
