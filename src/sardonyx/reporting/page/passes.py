"""The passes on the page: one row for each pass, and the modules in which it did most."""

from __future__ import annotations

from msgspec import Struct

from sardonyx.records.run import PassRecord, Verdict
from sardonyx.reporting.name_groups import Place, places
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import claims_cell, claims_line

SHOWN_PLACES = 3


class Row(Struct, frozen=True):
    """A pass that rewrote something."""

    record: PassRecord
    claims: str  # what is known of its rewrites
    places: list[Place]
    more: int


def section(bundle: RunBundle) -> Section:
    """Return the table of passes; those that found nothing are one line."""
    passes, verdict = bundle.run.passes, bundle.run.verdict
    markup = rendered(
        "passes",
        active=[_row(record, verdict) for record in passes if record.rewrites],
        silent=[record for record in passes if not record.rewrites],
        claims=claims_line(verdict.rewrites) if verdict is not None and verdict.rewrites is not None else "",
        total=sum(record.rewrites for record in passes),
        seconds=sum(record.seconds for record in passes),
    )
    return Section("passes", "By pass", markup)


def _row(record: PassRecord, verdict: Verdict | None) -> Row:
    modules = places(record.modules)
    return Row(record, claims_cell(verdict, record.name), modules[:SHOWN_PLACES], max(0, len(modules) - SHOWN_PLACES))
