"""What a rule for fused regions is, and the ways in which all of them let a region grow."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sardonyx.analysis.costs.program import OpKind
from sardonyx.analysis.costs.regions.dataflow import Flow, Write
from sardonyx.analysis.costs.regions.region import Quotient

ELEMENTWISE = frozenset((OpKind.ARITHMETIC, OpKind.ACTIVATION, OpKind.SELECT, OpKind.DROPOUT))


@dataclass(frozen=True, slots=True)
class Claim:
    """Steps that a rule took."""

    rule: str
    steps: tuple[int, ...]


@dataclass(slots=True)
class Board:
    """What is known and what is still to be had while the rules are tried one after the other."""

    flow: Flow
    quotient: Quotient
    free: set[int]
    claims: list[Claim] = field(default_factory=list[Claim])

    def claim(self, rule: str, found: Found) -> None:
        """Take what was found; where others would have to run in its midst, as much of it as can be had."""
        for count in range(len(found.steps), found.least - 1, -1):
            steps = found.steps[:count]
            if self.quotient.merge(steps):
                self.free -= set(steps)
                self.claims.append(Claim(rule, steps))
                return


@dataclass(frozen=True, slots=True)
class Found:
    """Steps for one region; those after the first `least` are given up from the end if they cannot be had."""

    steps: tuple[int, ...]
    least: int


class RegionRule(Protocol):
    """One way in which operations can be one kernel."""

    @property
    def name(self) -> str:
        """What its regions are called."""
        ...

    @property
    def algebra(self) -> str:
        """What such a region computes."""
        ...

    @property
    def stops(self) -> str:
        """Where it ends."""
        ...

    def find(self, board: Board) -> Iterator[Found]:
        """Regions of free steps, one after the other; what was found is taken before the next is looked for."""
        ...


def is_layout_copy(flow: Flow, step: int) -> bool:
    """Whether it only writes what it reads into memory in another order: a kernel can read or write that order."""
    if flow.kind(step) is not OpKind.COPY or len(flow.writes[step]) != 1:
        return False
    operation = flow.program.operations[step]
    elements = flow.program.values[operation.writes[0]].elements
    shown = [value for value in operation.reads if flow.program.values[value].elements == elements]
    return len(shown) == 1 == len(flow.reads[step])


def is_linear(flow: Flow, step: int) -> bool:
    """Whether it is a product of one activation with weights."""
    reads = flow.reads[step]
    is_product = flow.kind(step) is OpKind.MATMUL and any(flow.is_parameter(piece) for piece in reads)
    return is_product and sum(not flow.is_parameter(piece) for piece in reads) == 1


def same_elements(flow: Flow, step: int, like: int) -> bool:
    """Whether all it writes has as many numbers as that value."""
    wanted = flow.elements(like)
    return bool(flow.writes[step]) and all(flow.elements(value) == wanted for value in flow.writes[step])


def outside(flow: Flow, step: int, inside: set[int]) -> int:
    """How many tensors it reads that none of these steps wrote, weights and single numbers aside."""
    return sum(piece.is_mixed or piece.writer not in inside for piece in flow.activations(step))


class _Border:
    """A region while it grows, with what leaves it, kept up to date step by step."""

    def __init__(self, flow: Flow) -> None:
        self.inside = set[int]()
        self._flow = flow
        self._leaving = dict[Write, int]()  # what others need -> how many others; once more where it outlives the run

    def add(self, step: int) -> None:
        """Take a step in: what it alone needed leaves no longer."""
        self.inside.add(step)
        for write in self._flow.written([step]):
            others = sum(reader not in self.inside for reader in self._flow.readers.get(write, ()))
            if needed := others + (write in self._flow.kept):
                self._leaving[write] = needed
        for source in self._flow.sources[step]:
            if source in self._leaving and source[0] != step:
                self._leaving[source] -= 1
                if not self._leaving[source]:
                    del self._leaving[source]

    @property
    def leaving(self) -> int:
        """How many values others need."""
        return len(self._leaving)


def grow(board: Board, start: Sequence[int], takes: Callable[[int, set[int]], bool]) -> list[int]:
    """Take what follows, as long as no more leaves the region than left it at the start.

    So a value that is needed elsewhere ends it, unless what is taken later is all that needed it.
    """
    flow = board.flow
    border = _Border(flow)
    for step in start:
        border.add(step)
    taken, most, kept = list(start), max(1, border.leaving), len(start)
    waiting = [reader for step in start for reader in flow.followers(step)]
    heapq.heapify(waiting)
    while waiting:
        step = heapq.heappop(waiting)
        if step in border.inside or step not in board.free or not takes(step, border.inside):
            continue
        taken.append(step)
        border.add(step)
        for reader in flow.followers(step):
            heapq.heappush(waiting, reader)
        if border.leaving <= most:
            kept = len(taken)
    return taken[:kept]


def pull(board: Board, steps: Iterable[int], takes: Callable[[int, set[int]], bool]) -> list[int]:
    """Take also what comes before and is for these steps alone; the new steps only."""
    flow = board.flow
    inside, new = set(steps), list[int]()
    waiting = list(inside)
    while waiting:
        for piece in flow.reads[waiting.pop()]:
            step = piece.writer
            if step is None or step in inside or step not in board.free or not takes(step, inside):
                continue
            is_kept = any(write in flow.kept for write in flow.written([step]))
            if not is_kept and inside.issuperset(flow.followers(step)):
                inside.add(step)
                new.append(step)
                waiting.append(step)
    return new
