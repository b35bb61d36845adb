"""The summary of a command on the page of a CI job: what happened, which gates hold, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from sardonyx.reporting import formatting
from sardonyx.reporting.document import Document, Paragraph, Section, Table, text_column
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
    rows = (
        (
            outcome.gate.text,
            str(outcome.measure) if outcome.measure.known else "not a number",
            outcome.limit,
            "" if outcome.baseline is None else str(outcome.baseline),
            "ok" if outcome.met else "❌ not met",
        )
        for outcome in outcomes
    )
    return Table.of((text_column("fails if"), "value", "limit", "baseline", text_column("")), rows)


def _numbers(summary: JobSummary) -> Section:
    """Return all known numbers of the record, each beside the baseline's."""
    shown = {name: number for name, number in summary.numbers.items() if number.known and "." not in name}
    if summary.baseline is None:
        table = Table.of((text_column("number"), "value"), ((name, each.written) for name, each in shown.items()))
        return Section("Numbers", (table,), folded=True)
    rows: list[tuple[str, ...]] = []
    for name, number in shown.items():
        before = summary.baseline.measures.get(name)
        known = before is not None and before.known
        beside = (before.written, number.change(before), number.verdict(before)) if known else ("", "", "")
        rows.append((name, number.written, *beside))
    columns = (text_column("number"), "value", "baseline", "change", text_column(""))
    return Section("Numbers", (Table.of(columns, rows),), folded=True)
