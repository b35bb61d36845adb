"""What a fused region is, and what it moves: worked out from who reads what whom wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sardonyx.analysis.costs.program import Size
from sardonyx.analysis.costs.regions.dataflow import Flow, Piece
from sardonyx.ir.shapes.expr import add, subtract, total, value_of
from sardonyx.provenance.paths import lowest_common

ALONE = "alone"  # no rule took it


@dataclass(frozen=True, slots=True)
class Region:
    """Operations that could be one kernel. What crosses its border is moved; the rest need never be in memory.

    Without fusion its operations move `bytes_in + weight_bytes + bytes_out + internal_bytes + reread_bytes`.
    """

    rule: str
    operations: tuple[int, ...]  # steps of the program, views among them
    module: str  # the lowest module that holds all of them
    depends_on: tuple[int, ...]  # regions, all of them earlier
    macs: Size
    flops: Size
    bytes_in: Size  # activations and inputs that come in, each once
    weight_bytes: Size  # weights that come in, each once
    bytes_out: Size  # what others read, what outlives the run, and what an operator writes though nobody reads it
    internal_bytes: Size  # written and read back within, if it is not fused
    reread_bytes: Size  # what comes in, read again by a second operation, if it is not fused
    escapes: tuple[int, ...]  # values that are used within and are needed outside too; part of `bytes_out`
    ended: str  # why it ends where it does

    @property
    def bytes(self) -> Size:
        """All that crosses its border."""
        return total((self.bytes_in, self.weight_bytes, self.bytes_out))

    @property
    def bytes_unfused(self) -> Size:
        """All that its operations move if each is a kernel of its own."""
        return total((self.bytes, self.internal_bytes, self.reread_bytes))

    def intensity(self, sizes: Mapping[str, int]) -> float:
        """Arithmetic per byte that crosses the border, at these sizes of open dims."""
        moved = value_of(self.bytes, sizes)
        return value_of(self.flops, sizes) / moved if moved else 0.0


@dataclass(frozen=True, slots=True)
class Partition:
    """Every operation of a program in exactly one region, in an order in which the regions can run."""

    regions: tuple[Region, ...]

    @property
    def by_rule(self) -> dict[str, int]:
        """How many regions each rule made, most first."""
        return dict(Counter(region.rule for region in self.regions).most_common())


def region_of(flow: Flow, rule: str, steps: Sequence[int], views: Sequence[int], depends_on: Iterable[int]) -> Region:
    """What these steps move and compute as one; `views` ride along."""
    inside = set(steps)
    entering, internal, reads = dict[Piece, Size](), list[Size](), list[Size]()
    for step in steps:
        for piece in flow.reads[step]:
            size = flow.read_bytes(step, piece)
            if piece.is_mixed or piece.writer not in inside:
                entering[piece] = size
                reads.append(size)
            else:
                internal.append(size)
    out, inner, escapes = _written(flow, inside)
    taken = flow.distinct(entering)
    weights = total(entering[piece] for piece in taken if flow.is_weight(piece))
    activations = total(entering[piece] for piece in taken if not flow.is_weight(piece))
    operations = [flow.program.operations[step] for step in (steps or views)]
    return Region(
        rule=rule,
        operations=tuple(sorted((*steps, *views))),
        module=lowest_common(operation.module for operation in operations),
        depends_on=tuple(sorted(depends_on)),
        macs=total(operation.macs for operation in operations),
        flops=total(operation.flops for operation in operations),
        bytes_in=activations,
        weight_bytes=weights,
        bytes_out=total(flow.write_bytes(value) for value in out),
        internal_bytes=total((*internal, *(flow.write_bytes(value) for value in inner))),
        reread_bytes=subtract(total(reads), add(weights, activations)),
        escapes=tuple(dict.fromkeys(escapes)),
        ended=_ended(flow, inside),
    )


def _written(flow: Flow, steps: set[int]) -> tuple[list[int], list[int], list[int]]:
    """The values that must be written, those that need not be, and those that are used within and written all the same.

    What nobody reads is written too: it is the operator's own second result, and no rule says that it can be left out.
    """
    leaving = set(flow.leaving(steps))
    out, inner, escapes = list[int](), list[int](), list[int]()
    for write in flow.written(sorted(steps)):
        readers = flow.readers.get(write, ())
        (out if write in leaving or not readers else inner).append(write[1])
        if write in leaving and not steps.isdisjoint(readers):
            escapes.append(write[1])
    return out, inner, escapes


def _ended(flow: Flow, steps: set[int]) -> str:
    leaving = flow.leaving(steps)
    readers = sorted({reader for write in leaving for reader in flow.readers.get(write, ()) if reader not in steps})
    said = ["its result outlives the run"] if any(write in flow.kept for write in leaving) else []
    if readers:
        first = flow.program.operations[readers[0]]
        more = f" and {len(readers) - 1} more" if len(readers) > 1 else ""
        said.append(f"read by {first.name} ({first.kind}){more}")
    return ", ".join(said) or "nothing reads its result"


# Groups of steps that can be run one after the other: merging some into one is refused where it would close a circle.
#
# All groups stand in one order in which every group comes after those it waits for. A way that leaves the merged ones
# and
# comes back can only lead through groups that stand between them, so that only those are looked at; after a merge only
# those are put in order anew.


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
