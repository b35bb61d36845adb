"""The architecture family of each model, guessed from structure alone, before and after the passes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.analysis.fingerprint import fingerprint
from sardonyx.ir import io
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Cell, CellAnswer, Experiment, StudyOptions, Subject
from sardonyx.studies.experiments.common import candidate, several

CERTAIN_MODELS = 10  # of known family, needed for a certain finding
_Z = 1.96  # quantile of the normal distribution for 95 %


class Families(Experiment):
    """Fingerprints before and after the passes, compared with the known families."""

    name = "families"

    def cells(self, subject: Subject, options: StudyOptions) -> Sequence[Cell]:
        """Return one cell for each model."""
        return (Cell(self.name, subject.name, "fingerprints", options.only("target")),)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Compute the fingerprint of the file, and of the graph after the passes."""
        after = candidate(subject.path, cell.options["target"]).model
        return {"before": _guess(io.load(subject.path)), "after": _guess(after)}

    def tables(
        self, answers: Sequence[CellAnswer], options: StudyOptions, others: Mapping[str, Table]
    ) -> Sequence[Table]:
        """Return one row for each model."""
        return (
            Table(
                "families",
                "Architecture families, guessed from structure",
                ("model", "known", "before", "confidence_before", "after", "confidence_after", "right", "stays",
                 "evidence"),
                tuple(_row(answer) for answer in answers),
                "Guessed from operators and their connections, without names. known: the family of a model of the "
                "built-in zoo, a dash for other models; right: guessed both before and after the passes.",
            ),
        )  # fmt: skip

    def findings(self, tables: Mapping[str, Table]) -> Sequence[Finding]:
        """Return how often the guess is right, and whether fusion changes it."""
        return tuple(_findings(tables["families"]))


def _guess(model: ir.Model) -> dict[str, Any]:
    guess = fingerprint(model)
    return {"family": str(guess.family), "confidence": guess.confidence, "evidence": list(guess.evidence)}


def _row(answer: CellAnswer) -> tuple[Entry, ...]:
    before, after, known = answer.answer["before"], answer.answer["after"], answer.subject.family
    right = None if known is None else before["family"] == after["family"] == known
    return (
        answer.subject.name, known, before["family"], before["confidence"], after["family"], after["confidence"],
        right, before["family"] == after["family"], "; ".join(before["evidence"]),
    )  # fmt: skip


def _findings(table: Table) -> Iterator[Finding]:
    if not table.rows:
        return
    judged = [row for row in table.rows if row[6] is not None]
    right = sum(row[6] is True for row in judged)
    if judged:
        low, high = wilson(right, len(judged))
        few = f"; {several(len(judged), 'model')} are too few to be certain" if len(judged) < CERTAIN_MODELS else ""
        text = f"The guessed family is right for {right} of {several(len(judged), 'model')}"
        yield Finding(f"{text} (95 %: {low:.0%} to {high:.0%}){few}.", table.name, certain=not few)
    else:
        text = "The true family of these models is not known, so the guesses cannot be checked."
        yield Finding(text, table.name, certain=False)
    wrong = [f"{row[0]} ({row[1]}, guessed {row[2]} before and {row[4]} after)" for row in judged if not row[6]]
    if wrong:
        yield Finding(f"Guessed wrongly: {', '.join(wrong)}.", table.name)
    changed = [f"{row[0]} ({row[2]} → {row[4]})" for row in table.rows if not row[7]]
    count = several(len(table.rows), "model")
    yield Finding(
        f"The passes change the guessed family of {', '.join(changed)}, out of {count}." if changed
        else f"The passes change the guessed family of none of {count}.",
        table.name,
    )  # fmt: skip


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion, which is accurate near 0 and 1 too."""
    share, square = successes / count, _Z * _Z / count
    centre = (share + square / 2) / (1 + square)
    reach = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return min(share, max(0.0, centre - reach)), max(
        share, min(1.0, centre + reach)
    )  # the proportion lies inside despite rounding
