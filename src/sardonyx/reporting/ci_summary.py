"""The summary of a command on the page of a CI job: what happened, which gates hold, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from sardonyx.reporting import formatting
from sardonyx.reporting.document import Column, Document, Paragraph, Row, Section, Table, text_column
from sardonyx.reporting.gate import Baseline, Outcome
from sardonyx.reporting.measures import Reading


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
    gates = formatting.plural(len(summary.outcomes), "gate")
    if summary.failed:
        mark, verdict = "❌", "failed"
    elif unmet:
        mark, verdict = "❌", f"{unmet} of {gates} not met"
    else:
        mark, verdict = "✅", f"{gates} met" if summary.outcomes else "done"
    return Document(
        title=f"{mark} {summary.title}: {verdict}",
        level=3,
        blocks=(Paragraph(formatting.one_line(summary.sentence)), _gates(summary.outcomes), _numbers(summary)),
    )


def _gates(outcomes: Sequence[Outcome]) -> Table:
    columns = (text_column("fails if"), Column("value"), Column("limit"), Column("baseline"), text_column(""))
    rows = [
        Row(
            (
                outcome.gate.text,
                str(outcome.measure) if outcome.measure.known else "not a number",
                outcome.limit,
                "" if outcome.baseline is None else str(outcome.baseline),
                "ok" if outcome.met else "❌ not met",
            )
        )
        for outcome in outcomes
    ]
    return Table(columns, rows)


def _numbers(summary: JobSummary) -> Section:
    """Return all known numbers of the record, each beside the baseline's."""
    shown = {name: number for name, number in summary.numbers.items() if number.known and "." not in name}
    columns = [text_column("number"), Column("value")]
    if summary.baseline is None:
        rows = [Row((name, number.written)) for name, number in shown.items()]
    else:
        before = summary.baseline.measures
        rows = [Row((name, number.written, *_beside(number, before.get(name)))) for name, number in shown.items()]
        columns += [Column("baseline"), Column("change"), text_column("")]
    return Section("Numbers", (Table(columns, rows),), folded=True)


def _beside(number: Reading, before: Reading | None) -> tuple[str, str, str]:
    """Return the baseline's number, the change from it, and whether that is better or worse."""
    if before is None or not before.known:
        return "", "", ""
    return before.written, number.change(before), number.verdict(before)
