"""Groups of steps that can be run one after the other: merging some into one is refused where it would close a circle.

All groups stand in one order in which every group comes after those it waits for. A way that leaves the merged ones and
comes back can only lead through groups that stand between them, so that only those are looked at; after a merge only
those are put in order anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Quotient:
    """The steps of a program, each a group of its own to begin with; a group is called by its first step."""

    def __init__(self, steps: Sequence[int], before: Sequence[Iterable[int]]) -> None:
        """`steps` in an order in which they can run; `before`: what each waits for."""
        self._members: dict[int, list[int]] = {step: [step] for step in steps}
        self._group: dict[int, int] = {step: step for step in steps}
        self._before: dict[int, set[int]] = {step: set(before[step]) for step in steps}
        self._after: dict[int, set[int]] = {step: set() for step in steps}
        for step in steps:
            for earlier in self._before[step]:
                self._after[earlier].add(step)
        self._order: list[int | None] = list(steps)  # None: a place that a merged group left
        self._place = {step: place for place, step in enumerate(steps)}

    def merge(self, steps: Iterable[int]) -> bool:
        """Make the groups of these steps one; False, and nothing is changed, where others would have to run within."""
        groups = {self._group[step] for step in steps}
        if len(groups) < 2:
            return True
        first, last = min(self._place[group] for group in groups), max(self._place[group] for group in groups)
        between = [group for group in self._order[first : last + 1] if group is not None and group not in groups]
        needed = self._reaching(groups, between)
        if self._follows(groups, needed, between):
            return False
        name = self._unite(groups)
        rest = [group for group in between if group not in needed]
        for place, group in enumerate([*(one for one in between if one in needed), name, *rest], start=first):
            self._order[place] = group
            self._place[group] = place
        filled = first + len(between) + 1
        self._order[filled : last + 1] = [None] * (last + 1 - filled)
        return True

    def groups(self) -> list[list[int]]:
        """All groups in an order in which they can run, the steps of each in the order they had."""
        return [sorted(self._members[name]) for name in sorted(self._members, key=self._place.__getitem__)]

    def _reaching(self, groups: set[int], between: list[int]) -> set[int]:
        """Those between that the merged ones wait for."""
        waited = set[int]().union(*(self._before[group] for group in groups))
        needed = set[int]()
        for group in reversed(between):
            if group in waited:
                needed.add(group)
                waited |= self._before[group]
        return needed

    def _follows(self, groups: set[int], needed: set[int], between: list[int]) -> bool:
        """Whether one that the merged ones wait for itself waits for one of them."""
        waiting = set(groups)
        for group in between:
            if not waiting.isdisjoint(self._before[group]):
                if group in needed:
                    return True
                waiting.add(group)
        return False

    def _unite(self, groups: set[int]) -> int:
        name = min(groups)
        gone = groups - {name}
        before = set[int]().union(*(self._before[group] for group in groups)) - groups
        after = set[int]().union(*(self._after[group] for group in groups)) - groups
        for group in gone:
            self._members[name] += self._members.pop(group)
            del self._before[group], self._after[group], self._place[group]
        for member in self._members[name]:
            self._group[member] = name
        for earlier in before:
            self._after[earlier] = (self._after[earlier] - groups) | {name}
        for later in after:
            self._before[later] = (self._before[later] - groups) | {name}
        self._before[name], self._after[name] = before, after
        return name
