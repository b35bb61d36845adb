"""What each pass did, on the page: one row a pass, and where it did most."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.record import PassRecord
from sardonyx.rendering.dossier import Dossier
from sardonyx.rendering.page.section import Section, rendered

SHOWN_PLACES = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Modules that differ by numbers in their path alone, as one."""

    path: str  # what a link leads to: the module itself, or what all of them lie in
    label: str
    rewrites: int


@dataclass(frozen=True, slots=True)
class Row:
    """One pass that did something."""

    record: PassRecord
    places: tuple[Place, ...]
    more: int


def section(dossier: Dossier) -> Section:
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


def places(modules: dict[str, int]) -> tuple[Place, ...]:
    """Where the rewrites lie, most first; layer.0, layer.1, … are one place, layer.*."""
    groups: dict[str, list[str]] = {}
    for path in modules:
        groups.setdefault(_pattern(path), []).append(path)
    found: list[Place] = []
    for pattern, members in groups.items():
        alone = len(members) == 1
        label = members[0] if alone else pattern
        path = members[0] if alone else pattern.partition("*")[0].rstrip(".")
        found.append(Place(path, label, sum(modules[each] for each in members)))
    return tuple(sorted(found, key=lambda each: (-each.rewrites, each.label)))


def _pattern(path: str) -> str:
    return ".".join("*" if step.isdecimal() else step for step in path.split("."))
