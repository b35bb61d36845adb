"""What each pass did, on the page: one row a pass, and where it did most."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.records.run import PassRecord
from sardonyx.reporting.module_paths import Place, places
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.run_bundle import RunBundle

SHOWN_PLACES = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One pass that did something."""

    record: PassRecord
    places: list[Place]
    more: int


def section(dossier: RunBundle) -> Section:
    """The table of passes; those that found nothing in one line."""
    passes = dossier.run.passes
    html = rendered(
        "passes",
        active=[_row(each) for each in passes if each.rewrites],
        silent=[each for each in passes if not each.rewrites],
        total=sum(each.rewrites for each in passes),
        seconds=sum(each.seconds for each in passes),
    )
    return Section("passes", "By pass", html)


def _row(record: PassRecord) -> Row:
    found = places(record.modules)
    return Row(record, found[:SHOWN_PLACES], max(0, len(found) - SHOWN_PLACES))
