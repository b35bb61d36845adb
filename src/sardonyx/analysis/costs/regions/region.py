"""A fusion region with the bytes it moves, and the check that a merge of steps keeps the order acyclic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from sardonyx.analysis.costs.program import Size
from sardonyx.analysis.costs.regions.dataflow import Flow, Piece
from sardonyx.ir.shapes.expr import add, subtract, total, value_of
from sardonyx.provenance.codec import lowest_common


class Region(Struct, frozen=True):
    """Operations that could be one kernel. Values that cross its boundary are moved; the rest need not be in memory.

    Without fusion, its operations move `bytes_in + weight_bytes + bytes_out + internal_bytes + reread_bytes`.
    """

    rule: str
    operations: tuple[int, ...]  # steps of the program, views among them
    module: str  # the lowest module that contains all of them
    depends_on: tuple[int, ...]  # regions, all of them earlier
    macs: Size
    flops: Size
    bytes_in: Size  # activations and inputs that are read, each once
    weight_bytes: Size  # weights that are read, each once
    bytes_out: Size  # values read outside, values that outlive the run, and results that nothing reads
    internal_bytes: Size  # written and read back inside, without fusion
    reread_bytes: Size  # inputs that are read again by a second operation, without fusion
    escapes: tuple[int, ...]  # values that are read both inside and outside; part of `bytes_out`
    ended: str  # why it ends

    @property
    def bytes(self) -> Size:
        """All bytes that cross the boundary."""
        return total((self.bytes_in, self.weight_bytes, self.bytes_out))

    @property
    def bytes_unfused(self) -> Size:
        """All bytes that its operations move if each is one kernel."""
        return total((self.bytes, self.internal_bytes, self.reread_bytes))

    def intensity(self, sizes: Mapping[str, int]) -> float:
        """Return the flops per byte that crosses the boundary, at these sizes of the dynamic dimensions."""
        moved = value_of(self.bytes, sizes)
        return value_of(self.flops, sizes) / moved if moved else 0.0


class Partition(Struct, frozen=True):
    """Every operation of a program in exactly one region, in an order in which the regions can run."""

    regions: tuple[Region, ...]

    @property
    def by_rule(self) -> dict[str, int]:
        """The number of regions of each rule, the most frequent first."""
        return dict(Counter(region.rule for region in self.regions).most_common())


def region_of(flow: Flow, rule: str, steps: Sequence[int], views: Sequence[int], depends_on: Iterable[int]) -> Region:
    """Build the region of these steps, with the views that belong to it."""
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
    out, inner, escapes = _classify_writes(flow, inside)
    inputs = flow.distinct(entering)
    weights = total(entering[piece] for piece in inputs if flow.is_weight(piece))
    activations = total(entering[piece] for piece in inputs if not flow.is_weight(piece))
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


def _classify_writes(flow: Flow, steps: set[int]) -> tuple[list[int], list[int], list[int]]:
    """Return the values that must be written, those that need not be, and those of the former that are read inside too.

    A result that nothing reads is written too: it is a second output of an operator, and no rule allows omitting it.
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
    reasons = ["its result outlives the run"] if any(write in flow.persistent for write in leaving) else []
    if readers:
        first = flow.program.operations[readers[0]]
        more = f" and {len(readers) - 1} more" if len(readers) > 1 else ""
        reasons.append(f"read by {first.name} ({first.kind}){more}")
    return ", ".join(reasons) or "nothing reads its result"


class Quotient:
    """The dependency graph of groups of steps; a merge that would make it cyclic is refused.

    At the start each step is one group. The groups are kept in a topological order: every group comes after those it
    depends on. A cycle through merged groups can only pass groups between the first and the last of them in that order,
    so only these are examined, and only these are reordered after a merge. A group is named after its first step.
    """

    def __init__(self, steps: Sequence[int], before: Sequence[Iterable[int]]) -> None:
        """Start with one group for each step, in execution order; `before` lists the dependencies of each step."""
        self._members: dict[int, list[int]] = {step: [step] for step in steps}
        self._group: dict[int, int] = {step: step for step in steps}
        self._before: dict[int, set[int]] = {step: set(before[step]) for step in steps}
        self._after: dict[int, set[int]] = {step: set() for step in steps}
        for step in steps:
            for earlier in self._before[step]:
                self._after[earlier].add(step)
        self._order: list[int | None] = list(steps)  # None: the former place of a merged group
        self._place = {step: place for place, step in enumerate(steps)}

    def merge(self, steps: Iterable[int]) -> bool:
        """Merge the groups of these steps; return False, without a change, if others would have to run in between."""
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
        for place, group in enumerate([*(other for other in between if other in needed), name, *rest], start=first):
            self._order[place] = group
            self._place[group] = place
        filled = first + len(between) + 1
        self._order[filled : last + 1] = [None] * (last + 1 - filled)
        return True

    def groups(self) -> list[list[int]]:
        """Return all groups in an order in which they can run, with the steps of each in execution order."""
        return [sorted(self._members[name]) for name in sorted(self._members, key=self._place.__getitem__)]

    def _reaching(self, groups: set[int], between: list[int]) -> set[int]:
        """Return the groups in between that the merged ones depend on."""
        dependencies = set[int]().union(*(self._before[group] for group in groups))
        needed = set[int]()
        for group in reversed(between):
            if group in dependencies:
                needed.add(group)
                dependencies |= self._before[group]
        return needed

    def _follows(self, groups: set[int], needed: set[int], between: list[int]) -> bool:
        """Return whether a group that the merged ones depend on depends on one of them."""
        dependents = set(groups)
        for group in between:
            if not dependents.isdisjoint(self._before[group]):
                if group in needed:
                    return True
                dependents.add(group)
        return False

    def _unite(self, groups: set[int]) -> int:
        name = min(groups)
        before = set[int]().union(*(self._before[group] for group in groups)) - groups
        after = set[int]().union(*(self._after[group] for group in groups)) - groups
        for group in groups - {name}:
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
