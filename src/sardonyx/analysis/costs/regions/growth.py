"""The interface of a region rule, and the two operations that all rules use to extend a region: `grow` and `pull`."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct, field

from sardonyx.analysis.costs.program import OpKind
from sardonyx.analysis.costs.regions.dataflow import Flow, Write
from sardonyx.analysis.costs.regions.region import Quotient

ELEMENTWISE = frozenset((OpKind.ARITHMETIC, OpKind.ACTIVATION, OpKind.SELECT, OpKind.DROPOUT))


class Claim(Struct, frozen=True):
    """The steps of one region, and the rule that formed it."""

    rule: str
    steps: tuple[int, ...]


class Board(Struct):
    """The state while the rules run one after the other: free steps, and the regions so far."""

    flow: Flow
    quotient: Quotient
    free: set[int]
    claims: list[Claim] = field(default_factory=list[Claim])

    def claim(self, rule: str, match: RegionMatch) -> None:
        """Form a region of a match, without its last steps if other steps would have to run in between."""
        for count in range(len(match.steps), match.least - 1, -1):
            steps = match.steps[:count]
            if self.quotient.merge(steps):
                self.free -= set(steps)
                self.claims.append(Claim(rule, steps))
                return


class RegionMatch(Struct, frozen=True):
    """The steps of a possible region; those after the first `least` are optional and dropped from the end."""

    steps: tuple[int, ...]
    least: int


class RegionRule(Protocol):
    """A rule that finds operations that could be one kernel."""

    @property
    def name(self) -> str:
        """The name of its regions."""
        ...

    @property
    def algebra(self) -> str:
        """The formula of such a region."""
        ...

    @property
    def stops(self) -> str:
        """Where such a region ends, in words."""
        ...

    def find(self, board: Board) -> Iterator[RegionMatch]:
        """Yield matches of free steps; each is claimed before the next is searched."""
        ...


def is_layout_copy(flow: Flow, step: int) -> bool:
    """Return whether a step only copies a tensor into another memory order, which a kernel can access directly."""
    if flow.kind(step) is not OpKind.COPY or len(flow.writes[step]) != 1:
        return False
    operation = flow.program.operations[step]
    elements = flow.program.values[operation.writes[0]].elements
    same_size = [value for value in operation.reads if flow.program.values[value].elements == elements]
    return len(same_size) == 1 == len(flow.reads[step])


def is_linear(flow: Flow, step: int) -> bool:
    """Return whether a step is a product of one activation with weights."""
    reads = flow.reads[step]
    is_product = flow.kind(step) is OpKind.MATMUL and any(flow.is_parameter(piece) for piece in reads)
    return is_product and sum(not flow.is_parameter(piece) for piece in reads) == 1


def same_elements(flow: Flow, step: int, like: int) -> bool:
    """Return whether all results of a step have as many elements as a value."""
    elements = flow.elements(like)
    return bool(flow.writes[step]) and all(flow.elements(value) == elements for value in flow.writes[step])


def outside(flow: Flow, step: int, inside: set[int]) -> int:
    """Count the tensors a step reads that none of these steps wrote, without parameters and scalars."""
    return sum(piece.is_mixed or piece.writer not in inside for piece in flow.activations(step))


class _Border:
    """A growing region, with the number of its values that are needed outside, updated step by step."""

    def __init__(self, flow: Flow) -> None:
        self.inside = set[int]()
        self._flow = flow
        self._leaving = dict[
            Write, int
        ]()  # value needed outside -> number of readers outside, plus 1 if it outlives the run

    def add(self, step: int) -> None:
        """Add a step; values that only it needed are internal from now on."""
        self.inside.add(step)
        for write in self._flow.written([step]):
            others = sum(reader not in self.inside for reader in self._flow.readers.get(write, ()))
            if needed := others + (write in self._flow.persistent):
                self._leaving[write] = needed
        for source in self._flow.sources[step]:
            if source in self._leaving and source[0] != step:
                self._leaving[source] -= 1
                if not self._leaving[source]:
                    del self._leaving[source]

    @property
    def leaving(self) -> int:
        """The number of values that are needed outside."""
        return len(self._leaving)


def grow(board: Board, start: Sequence[int], takes: Callable[[int, set[int]], bool]) -> list[int]:
    """Extend a region by the steps after it, as long as no more values leave it than at the start.

    A value that is needed outside thus ends the region, unless later steps include all of its readers.
    """
    flow = board.flow
    border = _Border(flow)
    for step in start:
        border.add(step)
    steps, most, length = list(start), max(1, border.leaving), len(start)
    waiting = [reader for step in start for reader in flow.followers(step)]
    heapq.heapify(waiting)
    while waiting:
        step = heapq.heappop(waiting)
        if step in border.inside or step not in board.free or not takes(step, border.inside):
            continue
        steps.append(step)
        border.add(step)
        for reader in flow.followers(step):
            heapq.heappush(waiting, reader)
        if border.leaving <= most:
            length = len(steps)
    return steps[:length]


def pull(board: Board, steps: Iterable[int], takes: Callable[[int, set[int]], bool]) -> list[int]:
    """Return the steps before a region whose results only the region reads."""
    flow = board.flow
    inside, new = set(steps), list[int]()
    waiting = list(inside)
    while waiting:
        for piece in flow.reads[waiting.pop()]:
            step = piece.writer
            if step is None or step in inside or step not in board.free or not takes(step, inside):
                continue
            is_kept = any(write in flow.persistent for write in flow.written([step]))
            if not is_kept and inside.issuperset(flow.followers(step)):
                inside.add(step)
                new.append(step)
                waiting.append(step)
    return new
