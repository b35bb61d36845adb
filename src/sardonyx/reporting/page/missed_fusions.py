"""What did not fuse, and why: the places where a pass nearly matched and left the graph as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sardonyx.records.run import PassRecord, RefusalGroup, Run
from sardonyx.reporting.module_paths import places
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.run_bundle import RunBundle

OPEN = 3  # passes whose reasons are shown without being asked for
PLACES = 2  # of a reason


@dataclass(frozen=True, slots=True)
class Refusing:
    """A pass that refused, and its reasons, most frequent first."""

    record: PassRecord
    groups: tuple[RefusalGroup, ...]

    @property
    def count(self) -> int:
        """Refusals of all reasons."""
        return sum(group.count for group in self.groups)


def section(dossier: RunBundle) -> Section:
    """All refusals as text; the script only hides those that lie elsewhere than the selected module."""
    found = refusing(dossier.run)
    total = sum(each.count for each in found)
    html = rendered("refusals", found=found, open=OPEN, places=places, most=PLACES, total=total)
    return Section("refusals", "What did not fuse, and why", html, _data(found) if found else None)


def refusing(run: Run) -> list[Refusing]:
    """The passes that refused something, those with most refusals first."""
    found = [
        Refusing(record, tuple(sorted(record.refusals, key=lambda group: (-group.count, group.reason))))
        for record in run.passes
        if record.refusals
    ]
    return sorted(found, key=lambda each: (-each.count, each.record.name))


def _data(found: list[Refusing]) -> dict[str, Any]:
    """By pass and reason, in the order of the markup: how many there are, and in which modules."""
    paths = {
        path: None for each in found for group in each.groups for path in group.modules
    }  # in order, so that equal runs give equal pages
    at = {path: place for place, path in enumerate(paths)}
    counted = [
        [[group.count, [[at[path], count] for path, count in group.modules.items()]] for group in each.groups]
        for each in found
    ]
    return {"modules": list(paths), "passes": counted}
