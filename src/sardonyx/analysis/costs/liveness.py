"""How much memory a program needs at each step, and who holds it where it needs the most.

A buffer is there from the operation that makes it until after the last one that touches any value in it; what the model
answers lives on. While an operation runs, what it reads, what it writes and its workspace are there together. Weights
and inputs are the caller's and are told apart. `docs/memory.md` says what this leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from sardonyx.analysis.costs.program import Operation, Program, Store
from sardonyx.errors import UsageError
from sardonyx.ir.shapes.expr import Size, add, floor_quotient, multiply, subtract, total, value_of


@dataclass(frozen=True, slots=True)
class Span:
    """The steps during which one buffer of activations is there, both ends included."""

    buffer: int
    bytes: Size
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Alive:
    """A buffer that is there at the peak."""

    buffer: int
    name: str  # the value it was made for
    bytes: int
    module: str  # that made it
    made_by: str | None  # the operation; None: it was there before the first


@dataclass(frozen=True, slots=True)
class Peak:
    """The step that needs the most, at one choice of sizes."""

    bytes: int  # activations, and the workspace of the operation that runs
    weights: int
    inputs: int
    workspace: int
    step: int | None  # None: the program has no operations
    operation: Operation | None
    alive: tuple[Alive, ...]  # largest first
    sizes: Mapping[str, int]

    @property
    def total(self) -> int:
        """With weights and inputs."""
        return self.bytes + self.weights + self.inputs

    @property
    def modules(self) -> dict[str, int]:
        """What each module holds there, largest first; a workspace belongs to the operation that runs."""
        held = dict[str, int]()
        for one in self.alive:
            held[one.module] = held.get(one.module, 0) + one.bytes
        if self.operation is not None and self.workspace:
            held[self.operation.module] = held.get(self.operation.module, 0) + self.workspace
        return dict(sorted(held.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class Liveness:
    """Live bytes while each operation runs, symbolic where the program is."""

    program: Program
    timeline: tuple[Size, ...]  # activations and workspace, one a step
    weights: Size
    inputs: Size
    spans: tuple[Span, ...]
    granularity: int

    def values(self, sizes: Mapping[str, int] | None = None) -> list[int]:
        """The timeline in bytes; the example's sizes where none are given."""
        chosen = chosen_sizes(self.program, sizes)
        known = dict[Size, int]()
        for size in self.timeline:
            if size not in known:
                known[size] = value_of(size, chosen)
        return [known[size] for size in self.timeline]

    def at(self, sizes: Mapping[str, int] | None = None) -> Peak:
        """The peak at these sizes, the earliest of equals; the example's sizes where none are given."""
        chosen = chosen_sizes(self.program, sizes)
        numbers = self.values(chosen)
        weights, inputs = value_of(self.weights, chosen), value_of(self.inputs, chosen)
        if not numbers:
            return Peak(0, weights, inputs, 0, None, None, (), chosen)
        step = max(range(len(numbers)), key=numbers.__getitem__)
        operation = self.program.operations[step]
        workspace = value_of(_rounded(operation.workspace, self.granularity), chosen)
        alive = sorted(self._alive(step, chosen), key=lambda one: (-one.bytes, one.buffer))
        return Peak(numbers[step], weights, inputs, workspace, step, operation, tuple(alive), chosen)

    def _alive(self, step: int, sizes: Mapping[str, int]) -> Iterator[Alive]:
        names = dict[int, str]()
        for value in self.program.values:
            names.setdefault(value.buffer, value.name)
        for span in self.spans:
            if span.first <= step <= span.last:
                buffer = self.program.buffers[span.buffer]
                maker = None if buffer.born is None else self.program.operations[buffer.born].name
                yield Alive(span.buffer, names.get(span.buffer, ""), value_of(span.bytes, sizes), buffer.module, maker)


def liveness(program: Program, *, as_run: bool = False, granularity: int = 1) -> Liveness:
    """Live bytes step by step, in time linear in the operations.

    Args:
        as_run: Buffers go where they were seen to go, as Python let them; else after their last use.
        granularity: Every buffer takes a multiple of this (512: the CUDA allocator's blocks).
    """
    spans = tuple(_spans(program, as_run, granularity))
    comes, goes = dict[int, list[Size]](), dict[int, list[Size]]()
    for span in spans:
        comes.setdefault(span.first, []).append(span.bytes)
        goes.setdefault(span.last, []).append(span.bytes)
    held: Size = 0
    timeline = list[Size]()
    for step, operation in enumerate(program.operations):
        held = total((held, *comes.get(step, ())))
        timeline.append(add(held, _rounded(operation.workspace, granularity)))
        held = subtract(held, total(goes.get(step, ())))
    weights, inputs = (
        total(_rounded(buffer.bytes, granularity) for buffer in program.buffers if buffer.store is store)
        for store in (Store.WEIGHT, Store.INPUT)
    )
    return Liveness(program, tuple(timeline), weights, inputs, spans, granularity)


def thinned(values: Sequence[int], most: int = 2000) -> tuple[tuple[int, int], ...]:
    """A timeline as (step, bytes) with no more than so many points: of each stretch its largest, so no peak is lost."""
    stride = max(1, -(-len(values) // most))
    kept = list[tuple[int, int]]()
    for start in range(0, len(values), stride):
        step = max(range(start, min(start + stride, len(values))), key=values.__getitem__)
        kept.append((step, values[step]))
    return tuple(kept)


def chosen_sizes(program: Program, sizes: Mapping[str, int] | None) -> dict[str, int]:
    """The example's sizes, with those that are given in their place."""
    for name, size in (sizes or {}).items():
        if name not in program.symbols:
            known = ", ".join(program.symbols) or "none"
            raise UsageError(f"no open dim is called {name!r}", hint=f"open dims: {known}")
        if size < 1:
            raise UsageError(f"{name} cannot be {size}", hint="sizes begin at 1")
    return {**program.symbols, **(sizes or {})}


def _spans(program: Program, as_run: bool, granularity: int) -> Iterator[Span]:
    end = len(program.operations)  # no step: past the last one
    answers = {program.values[value].buffer for value in program.outputs}
    touched = _last_touch(program)
    for index, buffer in enumerate(program.buffers):
        if buffer.store is not Store.ACTIVATION:
            continue
        first = buffer.born or 0
        if as_run:
            last = end if buffer.died is None else buffer.died
        else:
            last = end if index in answers else touched.get(index, first)
        yield Span(index, _rounded(buffer.bytes, granularity), first, max(first, last))


def _last_touch(program: Program) -> dict[int, int]:
    touched = dict[int, int]()
    for step, operation in enumerate(program.operations):
        for value in chain(operation.reads, operation.writes):
            touched[program.values[value].buffer] = step
    return touched


def _rounded(size: Size, granularity: int) -> Size:
    return size if granularity == 1 else multiply(floor_quotient(add(size, granularity - 1), granularity), granularity)
