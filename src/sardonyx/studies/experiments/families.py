"""The family of each model told from structure alone: of the model as it is and once the passes have fused it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Answered, Asked, Cell, Experiment, Subject
from sardonyx.studies.experiments.results import several

if TYPE_CHECKING:
    import onnx_ir as ir

FEW = 10  # models of known family below which a share says little
_Z = 1.96  # of 95 %


class Families(Experiment):
    """Fingerprints, before and after, against what is known."""

    name = "families"

    def cells(self, subject: Subject, asked: Asked) -> Sequence[Cell]:
        """One for each model."""
        return (Cell(self.name, subject.name, "fingerprints", asked.only("target")),)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """The fingerprint of the file, and of what the passes make of it."""
        from sardonyx.ir import io
        from sardonyx.optimizer.candidates import RewriteJob
        from sardonyx.optimizer.pipeline import select

        target = cell.options["target"]
        job = RewriteJob(subject.path, select(target), target, lambda _phase, _fraction: None)
        return {"before": _told(io.load(subject.path)), "after": _told(job.candidate().model)}

    def tables(self, answers: Sequence[Answered], asked: Asked, others: Mapping[str, Table]) -> Sequence[Table]:
        """One row for each model."""
        return (
            Table(
                "families",
                "Families told from structure",
                ("model", "known", "before", "confidence_before", "after", "confidence_after", "right", "stays",
                 "evidence"),
                tuple(_row(each) for each in answers),
                "Told from operators and how they are connected, without names. Known is what the study's own zoo "
                "says; a dash where nobody says it. Right: told so both before and after.",
            ),
        )  # fmt: skip

    def findings(self, tables: Mapping[str, Table], asked: Asked) -> Sequence[Finding]:
        """How often it is right where the truth is known, and whether fusing changes what is told."""
        return tuple(_said(tables["families"]))


def _told(model: ir.Model) -> dict[str, Any]:
    from sardonyx.analysis.fingerprint import fingerprint

    found = fingerprint(model)
    return {"family": str(found.family), "confidence": found.confidence, "evidence": list(found.evidence)}


def _row(each: Answered) -> tuple[Entry, ...]:
    before, after, known = each.answer["before"], each.answer["after"], each.subject.family
    right = None if known is None else before["family"] == after["family"] == known
    return (
        each.subject.name, known, before["family"], before["confidence"], after["family"], after["confidence"],
        right, before["family"] == after["family"], "; ".join(before["evidence"]),
    )  # fmt: skip


def _said(table: Table) -> Iterator[Finding]:
    if not table.rows:
        return
    judged = [row for row in table.rows if row[6] is not None]
    right = sum(row[6] is True for row in judged)
    if judged:
        low, high = wilson(right, len(judged))
        few = f"; {several(len(judged), 'model')} are too few to say more" if len(judged) < FEW else ""
        said = f"The family told from structure is the known one for {right} of {several(len(judged), 'model')}"
        yield Finding(f"{said} (95 %: {low:.0%} to {high:.0%}){few}.", table.name, certain=not few)
    else:
        said = (
            "The family of none of these models is known otherwise, so that nothing can be said about right or wrong."
        )
        yield Finding(said, table.name, certain=False)
    wrong = [f"{row[0]} ({row[1]}, told {row[2]} before and {row[4]} after)" for row in judged if not row[6]]
    if wrong:
        yield Finding(f"Told wrongly: {', '.join(wrong)}.", table.name)
    moved = [f"{row[0]} ({row[2]} → {row[4]})" for row in table.rows if not row[7]]
    whole = several(len(table.rows), "model")
    yield Finding(
        f"Fusing changes the family that is told of {', '.join(moved)}, out of {whole}." if moved
        else f"Fusing changes the family of none of {whole}.",
        table.name,
    )  # fmt: skip


def wilson(successes: int, count: int) -> tuple[float, float]:
    """The interval of a share that is honest near 0 and 1 too."""
    share, square = successes / count, _Z * _Z / count
    centre = (share + square / 2) / (1 + square)
    reach = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return min(share, max(0.0, centre - reach)), max(share, min(1.0, centre + reach))  # rounding apart, they hold it
