"""Find the changes that make a model faster with few measurements: try groups, and split only groups that matter.

A unit is in its default state or flipped (undone, or added if it is off by default). A change away from the default
needs a measurement that says "faster"; a change back needs only one that does not say "slower". Noise therefore changes
nothing, and a group whose flipping is faster is narrowed down to the members that make it so. If flipping a group is
slower, something in it helps, but something else may still be harmful: such groups are split last, if time is left.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto

from msgspec import Struct, field

from sardonyx.optimizer.candidates import WHOLE_PASS, Candidate, Forbidden
from sardonyx.passes import Pass
from sardonyx.records.run import RewriteKind

State = frozenset[str]  # names of the units that are flipped
Group = tuple[str, ...]


class Effect(Enum):
    """The effect of a change on the time of a run."""

    FASTER = auto()
    SLOWER = auto()
    NONE = auto()


Measure = Callable[[State, State], Effect | None]  # compares the first with the second; None if no time is left


class Measurement(Struct, frozen=True):
    """One change that was measured."""

    units: Group
    back: bool  # whether these units were to go back to their default state
    effect: Effect
    accepted: bool


class SearchResult(Struct):
    """The result of a search."""

    flipped: State = frozenset()
    measured: list[Measurement] = field(default_factory=list[Measurement])  # in order
    unmeasured: set[str] = field(default_factory=set[str])  # units that no measurement was about


class _OutOfTime(Exception):
    """No time is left for another measurement."""


def search(groups: Sequence[Group], measure: Measure, *, all_first: bool = False) -> SearchResult:
    """Find the units whose flipping makes the model faster.

    Args:
        groups: Units that are tried together first, the most promising group first; no unit is in two groups.
        measure: Compares two states.
        all_first: Try all units at once before the groups, if there is reason to expect that it is faster.
    """
    result = SearchResult(unmeasured={unit for group in groups for unit in group})
    search = _Search(result, measure)
    with contextlib.suppress(_OutOfTime):
        search.run(groups, all_first=all_first)
    return result


class _Search:
    def __init__(self, result: SearchResult, measure: Measure) -> None:
        self._result = result
        self._measure = measure
        self._later: deque[Group] = deque()

    def run(self, groups: Sequence[Group], *, all_first: bool) -> None:
        every = tuple(unit for group in groups for unit in group)
        if all_first and len(groups) > 1 and self._change(every, back=False) is Effect.FASTER:
            self._narrow(every)
            groups = ()
        for group in groups:
            self._try(group)
        while self._later:
            self._try(self._later.popleft())

    def _try(self, group: Group) -> None:
        """Flip a group if that is faster, and then only the members that are needed."""
        effect = self._change(group, back=False)
        if effect is Effect.FASTER:
            self._narrow(group)
        elif effect is Effect.SLOWER:
            self._split_later(group)

    def _narrow(self, group: Group) -> None:
        """Put back the members of a flipped group that do not contribute; the group as a whole must stay flipped."""
        if len(group) == 1:
            return
        first, second = _halves(group)
        if self._put_back(first):
            self._narrow(second)
            return
        self._narrow(first)
        if not self._put_back(second):
            self._narrow(second)

    def _put_back(self, group: Group) -> bool:
        effect = self._change(group, back=True)
        if effect is Effect.FASTER:  # something in it helps, but harmful members may have gone back with it
            self._split_later(group)
        return effect is not Effect.SLOWER

    def _split_later(self, group: Group) -> None:
        if len(group) > 1:
            self._later.extend(_halves(group))

    def _change(self, group: Group, *, back: bool) -> Effect:
        """Measure a change of the current state, and make it if it is accepted."""
        current = self._result.flipped
        changed = current ^ frozenset(group)
        effect = self._measure(changed, current)
        if effect is None:
            raise _OutOfTime
        accepted = effect is Effect.FASTER or (back and effect is Effect.NONE)
        self._result.measured.append(Measurement(group, back, effect, accepted))
        self._result.unmeasured.difference_update(group)
        if accepted:
            self._result.flipped = changed
        return effect


def _halves(group: Group) -> tuple[Group, Group]:
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]


# The units that tuning chooses between: single fusions, and the clean-up passes of a family together.
#
# A pass that only drops, shares, folds or bypasses gives the runtime less to do and nothing new, so such passes of
# one family form one unit. A pass that replaces operators by others may be slower on some machine, so it is a unit of
# its own. Only passes that changed the model count.

OTHER = "other"  # family of passes from other packages
ADDED = "left out"  # family of the passes that are off by default
_PACKAGE = "sardonyx.passes."

# The order of the search: families first for which the runtime has special kernels or its own fusions.
_USUAL = ("ort", "attention", "products", "norms", "layout", OTHER, ADDED, "broadcasting", "folding", "cleanup")
_CONVOLUTIONAL = ("ort", "products", "layout", "norms", "attention", OTHER, ADDED, "broadcasting", "folding", "cleanup")


class Unit(Struct, frozen=True):
    """Passes that are chosen together."""

    name: str
    family: str
    passes: tuple[str, ...]
    rewrites: int
    nodes: int  # that its rewrites removed or added
    added: bool = False  # off by default, so that flipping it means to add it


def find_units(candidate: Candidate, passes: Sequence[Pass], left_out: Iterable[str] = ()) -> tuple[Unit, ...]:
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


def group_units(units: Sequence[Unit], *, convolutional: bool = False) -> list[tuple[str, ...]]:
    """Return the units by family, the most promising family first, and in it the unit that changed the most nodes."""
    by_family: dict[str, list[Unit]] = defaultdict(list)
    for unit in sorted(units, key=lambda unit: (-unit.nodes, unit.name)):
        by_family[unit.family].append(unit)
    order = _CONVOLUTIONAL if convolutional else _USUAL
    ranked = sorted(by_family, key=lambda family: order.index(family) if family in order else order.index(OTHER))
    return [tuple(unit.name for unit in by_family[family]) for family in ranked]


def forbidden_passes(units: Iterable[Unit], flipped: frozenset[str]) -> Forbidden:
    """Return the passes not to run if these units are flipped."""
    return frozenset(
        (name, WHOLE_PASS) for unit in units if unit.added != (unit.name in flipped) for name in unit.passes
    )


def family_of(rule: Pass) -> str:
    """Return the family of a pass: the package below `sardonyx.passes` that it is in."""
    module = type(rule).__module__
    return module.removeprefix(_PACKAGE).partition(".")[0] if module.startswith(_PACKAGE) else OTHER
