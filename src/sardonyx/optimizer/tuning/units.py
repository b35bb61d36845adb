"""The units that tuning chooses between: single fusions, and the clean-up passes of a family together.

A pass that only drops, shares, folds or bypasses gives the runtime less to do and nothing new, so such passes of one
family form one unit. A pass that replaces operators by others may be slower on some machine, so it is a unit of its
own. Only passes that changed the model count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sardonyx.optimizer.candidates import WHOLE_PASS, Candidate, Forbidden
from sardonyx.passes import Pass
from sardonyx.records.run import RewriteKind

OTHER = "other"  # family of passes from other packages
ADDED = "left out"  # family of the passes that are off by default
_PACKAGE = "sardonyx.passes."

# The order of the search: families first for which the runtime has special kernels or its own fusions.
_USUAL = ("ort", "attention", "products", "norms", "layout", OTHER, ADDED, "broadcasting", "folding", "cleanup")
_CONVOLUTIONAL = ("ort", "products", "layout", "norms", "attention", OTHER, ADDED, "broadcasting", "folding", "cleanup")


@dataclass(frozen=True, slots=True)
class Unit:
    """Passes that are chosen together."""

    name: str
    family: str
    passes: tuple[str, ...]
    rewrites: int
    nodes: int  # that its rewrites removed or added
    added: bool = False  # off by default, so that flipping it means to add it


def units(candidate: Candidate, passes: Sequence[Pass], left_out: Iterable[str] = ()) -> tuple[Unit, ...]:
    """Return the units of a result in the order of the passes, then those that are off by default."""
    kinds: dict[str, set[RewriteKind]] = defaultdict(set)
    touched: dict[str, int] = defaultdict(int)
    for event in candidate.log.events:
        kinds[event.pass_name].add(event.kind)
        touched[event.pass_name] += len(event.before) + len(event.after)
    fusions: list[Unit] = []
    cleaning: dict[str, list[str]] = defaultdict(list)
    for rule in passes:
        if not kinds[rule.name]:
            continue
        family, count = family_of(rule), candidate.log.tallies[rule.name].rewrites
        if RewriteKind.FUSE in kinds[rule.name]:
            fusions.append(Unit(rule.name, family, (rule.name,), count, touched[rule.name]))
        else:
            cleaning[family].append(rule.name)
    for family, names in cleaning.items():
        rewrites = sum(candidate.log.tallies[name].rewrites for name in names)
        nodes = sum(touched[name] for name in names)
        fusions.append(Unit(f"{family} passes", family, tuple(names), rewrites, nodes))
    return (*fusions, *(Unit(name, ADDED, (name,), 0, 0, added=True) for name in left_out))


def groups(units: Sequence[Unit], *, convolutional: bool = False) -> list[tuple[str, ...]]:
    """Return the units by family, the most promising family first, and in it the unit that changed the most nodes."""
    by_family: dict[str, list[Unit]] = defaultdict(list)
    for unit in sorted(units, key=lambda unit: (-unit.nodes, unit.name)):
        by_family[unit.family].append(unit)
    order = _CONVOLUTIONAL if convolutional else _USUAL
    ranked = sorted(by_family, key=lambda family: order.index(family) if family in order else order.index(OTHER))
    return [tuple(unit.name for unit in by_family[family]) for family in ranked]


def forbidden(units: Iterable[Unit], flipped: frozenset[str]) -> Forbidden:
    """Return the passes not to run if these units are flipped."""
    return frozenset(
        (name, WHOLE_PASS) for unit in units if unit.added != (unit.name in flipped) for name in unit.passes
    )


def family_of(rule: Pass) -> str:
    """Return the family of a pass: the package below `sardonyx.passes` that it is in."""
    module = type(rule).__module__
    return module.removeprefix(_PACKAGE).partition(".")[0] if module.startswith(_PACKAGE) else OTHER
