"""What tuning chooses between: single fusions, and the clean-up passes of a family together.

A pass that only drops, shares, folds or bypasses leaves the runtime less to do and nothing new, so such passes of one
family are one unit. A pass that puts other operators in place of what it found may have chosen wrongly for a machine,
so each of those is a unit of its own. Only passes that changed the model count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sardonyx.optimizer.candidates import WHOLE_PASS, Candidate, Forbidden
from sardonyx.passes import Pass
from sardonyx.records.run import RewriteKind

OTHER = "other"  # family of a pass that is none of ours
ADDED = "left out"  # family of the passes that are usually not run
_ROOM = "sardonyx.passes."

# Where time is most likely lost or won: what the runtime has special kernels or fusions of its own for comes first.
_USUAL = ("ort", "attention", "products", "norms", "layout", OTHER, ADDED, "masks", "folding", "tidy")
_CONVOLUTIONAL = ("ort", "products", "layout", "norms", "attention", OTHER, ADDED, "masks", "folding", "tidy")


@dataclass(frozen=True, slots=True)
class Unit:
    """Passes that are chosen together."""

    name: str
    family: str
    passes: tuple[str, ...]
    rewrites: int
    nodes: int  # that its rewrites took away or put in place
    added: bool = False  # usually left out, so that choosing it means to add it


def units(candidate: Candidate, passes: Sequence[Pass], left_out: Iterable[str] = ()) -> tuple[Unit, ...]:
    """The units of a result, in the order of the passes; then those that are usually left out."""
    kinds: dict[str, set[RewriteKind]] = defaultdict(set)
    touched: dict[str, int] = defaultdict(int)
    for event in candidate.log.events:
        kinds[event.pass_name].add(event.kind)
        touched[event.pass_name] += len(event.before) + len(event.after)
    fusions: list[Unit] = []
    cleaning: dict[str, list[str]] = defaultdict(list)
    for each in passes:
        if not kinds[each.name]:
            continue
        family, count = family_of(each), candidate.log.tallies[each.name].rewrites
        if RewriteKind.FUSE in kinds[each.name]:
            fusions.append(Unit(each.name, family, (each.name,), count, touched[each.name]))
        else:
            cleaning[family].append(each.name)
    for family, names in cleaning.items():
        rewrites = sum(candidate.log.tallies[name].rewrites for name in names)
        nodes = sum(touched[name] for name in names)
        fusions.append(Unit(f"{family} passes", family, tuple(names), rewrites, nodes))
    return (*fusions, *(Unit(name, ADDED, (name,), 0, 0, added=True) for name in left_out))


def groups(found: Sequence[Unit], *, convolutional: bool = False) -> list[tuple[str, ...]]:
    """The units by family: the family that promises most first, and in it the unit that touched most."""
    by_family: dict[str, list[Unit]] = defaultdict(list)
    for unit in sorted(found, key=lambda unit: (-unit.nodes, unit.name)):
        by_family[unit.family].append(unit)
    order = _CONVOLUTIONAL if convolutional else _USUAL
    ranked = sorted(by_family, key=lambda family: order.index(family) if family in order else order.index(OTHER))
    return [tuple(unit.name for unit in by_family[family]) for family in ranked]


def forbidden(found: Iterable[Unit], flipped: frozenset[str]) -> Forbidden:
    """The passes not to run where these units are flipped."""
    return frozenset(
        (name, WHOLE_PASS) for unit in found if unit.added != (unit.name in flipped) for name in unit.passes
    )


def family_of(each: Pass) -> str:
    """The room a pass is in."""
    module = type(each).__module__
    return module.removeprefix(_ROOM).partition(".")[0] if module.startswith(_ROOM) else OTHER
