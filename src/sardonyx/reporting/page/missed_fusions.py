"""The missed fusions on the page: where a pass nearly matched and left the graph as it was, with the reasons."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from sardonyx.records.run import PassRecord, RefusalGroup, Run
from sardonyx.reporting.module_rows import places
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.run_bundle import RunBundle

OPEN = 3  # passes whose reasons are shown unfolded
PLACES = 2  # of a reason


class Refusing(Struct, frozen=True):
    """A pass that skipped matches, and its reasons, most frequent first."""

    record: PassRecord
    groups: tuple[RefusalGroup, ...]

    @property
    def count(self) -> int:
        """Skipped matches of all reasons."""
        return sum(group.count for group in self.groups)


def section(bundle: RunBundle) -> Section:
    """Return all missed fusions as text; the script hides those outside the selected module."""
    skipping = refusing(bundle.run)
    total = sum(skipped.count for skipped in skipping)
    markup = rendered("missed", skipping=skipping, open=OPEN, places=places, most=PLACES, total=total)
    return Section("missed", "Missed fusions", markup, _data(skipping) if skipping else None)


def refusing(run: Run) -> list[Refusing]:
    """Return the passes that skipped matches, those with most of them first."""
    skipping = [
        Refusing(record, tuple(sorted(record.refusals, key=lambda group: (-group.count, group.reason))))
        for record in run.passes
        if record.refusals
    ]
    return sorted(skipping, key=lambda skipped: (-skipped.count, skipped.record.name))


def _data(skipping: list[Refusing]) -> dict[str, Any]:
    """Return the counts and modules by pass and reason, in the order of the markup."""
    paths = {
        path: None for skipped in skipping for group in skipped.groups for path in group.modules
    }  # in order, so that equal runs give equal pages
    at = {path: place for place, path in enumerate(paths)}
    counted = [
        [[group.count, [[at[path], count] for path, count in group.modules.items()]] for group in skipped.groups]
        for skipped in skipping
    ]
    return {"modules": list(paths), "passes": counted}
