"""The passes on the page: one row for each pass, and the modules in which it did most."""

from __future__ import annotations

from msgspec import Struct

from sardonyx.records.run import PassRecord
from sardonyx.reporting.name_groups import Place, places
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.run_bundle import RunBundle

SHOWN_PLACES = 3


class Row(Struct, frozen=True):
    """A pass that rewrote something."""

    record: PassRecord
    places: list[Place]
    more: int


def section(bundle: RunBundle) -> Section:
    """Return the table of passes; those that found nothing are one line."""
    passes = bundle.run.passes
    markup = rendered(
        "passes",
        active=[_row(record) for record in passes if record.rewrites],
        silent=[record for record in passes if not record.rewrites],
        total=sum(record.rewrites for record in passes),
        seconds=sum(record.seconds for record in passes),
    )
    return Section("passes", "By pass", markup)


def _row(record: PassRecord) -> Row:
    modules = places(record.modules)
    return Row(record, modules[:SHOWN_PLACES], max(0, len(modules) - SHOWN_PLACES))
