"""Which changes to make, found with few measurements: groups are tried whole, and only those taken apart that pay.

A unit is in its usual state or flipped (undone, or added where it is usually left out). A change away from the usual
needs a measurement that says "faster"; a change back needs only one that does not say "slower". So noise leaves things
as they are, and a group whose flipping pays is narrowed down to the members without which it would not. Where flipping
a group costs time, something in it pays, but something else in it may still be harmful: such groups are taken apart
last, as far as the time goes.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

State = frozenset[str]  # names of the units that are flipped
Group = tuple[str, ...]


class Effect(Enum):
    """What a change does to the time."""

    FASTER = auto()
    SLOWER = auto()
    NONE = auto()


Measure = Callable[[State, State], Effect | None]  # the first against the second; None: there is no time left


@dataclass(frozen=True, slots=True)
class Asked:
    """One question, in the order they were asked."""

    units: Group
    back: bool  # whether these units were to go back to their usual state
    effect: Effect
    accepted: bool


@dataclass(slots=True)
class Found:
    """What a search ends with."""

    flipped: State = frozenset()
    asked: list[Asked] = field(default_factory=list[Asked])
    open: set[str] = field(default_factory=set[str])  # units about which no question was asked


class _OutOfTime(Exception):
    """No further question can be asked."""


def search(groups: Sequence[Group], measure: Measure, *, all_first: bool = False) -> Found:
    """Find the units whose flipping pays.

    Args:
        groups: units that are tried together first, the most promising group first; no unit is in two.
        measure: compares two states.
        all_first: try all units at once before the groups; for when there is a reason to think that it pays.
    """
    found = Found(open={unit for group in groups for unit in group})
    search = _Search(found, measure)
    with contextlib.suppress(_OutOfTime):
        search.run(groups, all_first=all_first)
    return found


class _Search:
    def __init__(self, found: Found, measure: Measure) -> None:
        self._found = found
        self._measure = measure
        self._later: deque[Group] = deque()

    def run(self, groups: Sequence[Group], *, all_first: bool) -> None:
        every = tuple(unit for group in groups for unit in group)
        if all_first and len(groups) > 1 and self._ask(every, back=False) is Effect.FASTER:
            self._narrow(every)
            groups = ()
        for group in groups:
            self._try(group)
        while self._later:
            self._try(self._later.popleft())

    def _try(self, group: Group) -> None:
        """Flip a group if that pays, and then no more of it than needed."""
        effect = self._ask(group, back=False)
        if effect is Effect.FASTER:
            self._narrow(group)
        elif effect is Effect.SLOWER:
            self._take_apart_later(group)

    def _narrow(self, group: Group) -> None:
        """Put back what a flipped group, which must not go back as a whole, does as well without."""
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
        effect = self._ask(group, back=True)
        if effect is Effect.FASTER:  # something in it pays; what does not may have gone back with it
            self._take_apart_later(group)
        return effect is not Effect.SLOWER

    def _take_apart_later(self, group: Group) -> None:
        if len(group) > 1:
            self._later.extend(_halves(group))

    def _ask(self, group: Group, *, back: bool) -> Effect:
        now = self._found.flipped
        then = now ^ frozenset(group)
        effect = self._measure(then, now)
        if effect is None:
            raise _OutOfTime
        accepted = effect is Effect.FASTER or (back and effect is Effect.NONE)
        self._found.asked.append(Asked(group, back, effect, accepted))
        self._found.open.difference_update(group)
        if accepted:
            self._found.flipped = then
        return effect


def _halves(group: Group) -> tuple[Group, Group]:
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]
