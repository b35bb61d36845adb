"""The passes in the section of rewrites: one row for each pass, and the modules in which it did most.

With a script, the list of rewrites has one part for each pass instead of this table.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from sardonyx.records.run import PassRecord, Run, Verdict
from sardonyx.reporting.module_rows import Place, places
from sardonyx.reporting.verdict import claims_cell, claims_line

SHOWN_PLACES = 3


class Row(Struct, frozen=True):
    """A pass that rewrote something."""

    record: PassRecord
    claims: str  # what is known of its rewrites
    places: list[Place]
    more: int


def pass_table(run: Run) -> dict[str, Any]:
    """Return the values of the template: a row for each pass that rewrote something, and those that found nothing."""
    passes, verdict = run.passes, run.verdict
    return {
        "active": [_row(record, verdict) for record in passes if record.rewrites],
        "silent": [record for record in passes if not record.rewrites],
        "claims": claims_line(verdict.rewrites) if verdict is not None and verdict.rewrites is not None else "",
        "seconds": sum(record.seconds for record in passes),
    }


def _row(record: PassRecord, verdict: Verdict | None) -> Row:
    modules = places(record.modules)
    return Row(record, claims_cell(verdict, record.name), modules[:SHOWN_PLACES], max(0, len(modules) - SHOWN_PLACES))
