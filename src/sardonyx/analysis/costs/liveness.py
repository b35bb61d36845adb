"""The memory that a program needs at each step, and the buffers that are alive at its peak.

A buffer is alive from the operation that allocates it until after the last one that reads or writes a value in it;
outputs stay alive. While an operation runs, its inputs, outputs and workspace are alive together. Weights and inputs
belong to the caller and are counted separately. `docs/memory.md` lists what this leaves out.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct

from sardonyx.analysis.costs.program import Operation, Program, Store
from sardonyx.errors import UsageError
from sardonyx.ir.shapes.expr import Size, add, floor_quotient, multiply, subtract, total, value_of


class Span(Struct, frozen=True):
    """The steps during which one activation buffer is alive, both ends included."""

    buffer: int
    bytes: Size
    first: int
    last: int


class Alive(Struct, frozen=True):
    """A buffer that is alive at the peak."""

    buffer: int
    name: str  # its first value
    bytes: int
    module: str  # the module that allocated it
    made_by: str | None  # the operation that allocated it; None: it existed before the first


class Peak(Struct, frozen=True):
    """The step that needs the most memory, at given sizes."""

    bytes: int  # activations, and the workspace of the running operation
    weights: int
    inputs: int
    workspace: int
    step: int | None  # None: the program has no operations
    operation: Operation | None
    alive: tuple[Alive, ...]  # largest first
    sizes: Mapping[str, int]

    @property
    def total(self) -> int:
        """The peak with weights and inputs."""
        return self.bytes + self.weights + self.inputs

    @property
    def modules(self) -> dict[str, int]:
        """The bytes of each module at the peak, largest first; a workspace counts for the running operation."""
        by_module = Counter[str]()
        for buffer in self.alive:
            by_module[buffer.module] += buffer.bytes
        if self.operation is not None and self.workspace:
            by_module[self.operation.module] += self.workspace
        return dict(by_module.most_common())


class Liveness(Struct, frozen=True):
    """The live bytes while each operation runs, symbolic if the program has dynamic dimensions."""

    program: Program
    timeline: tuple[Size, ...]  # activations and workspace, one for each step
    weights: Size
    inputs: Size
    spans: tuple[Span, ...]
    granularity: int

    def values(self, sizes: Mapping[str, int] | None = None) -> list[int]:
        """Return the timeline in bytes at these sizes, by default the example's."""
        chosen = chosen_sizes(self.program, sizes)
        numbers = {size: value_of(size, chosen) for size in set(self.timeline)}
        return [numbers[size] for size in self.timeline]

    def at(self, sizes: Mapping[str, int] | None = None) -> Peak:
        """Return the peak at these sizes, by default the example's; of equal steps, the earliest."""
        chosen = chosen_sizes(self.program, sizes)
        numbers = self.values(chosen)
        weights, inputs = value_of(self.weights, chosen), value_of(self.inputs, chosen)
        if not numbers:
            return Peak(0, weights, inputs, 0, None, None, (), chosen)
        step = max(range(len(numbers)), key=numbers.__getitem__)
        operation = self.program.operations[step]
        workspace = value_of(_rounded(operation.workspace, self.granularity), chosen)
        alive = sorted(self._alive(step, chosen), key=lambda buffer: (-buffer.bytes, buffer.buffer))
        return Peak(numbers[step], weights, inputs, workspace, step, operation, tuple(alive), chosen)

    def _alive(self, step: int, sizes: Mapping[str, int]) -> Iterator[Alive]:
        names = dict[int, str]()
        for value in self.program.values:
            names.setdefault(value.buffer, value.name)
        for span in self.spans:
            if span.first <= step <= span.last:
                buffer = self.program.buffers[span.buffer]
                creator = None if buffer.born is None else self.program.operations[buffer.born].name
                octets = value_of(span.bytes, sizes)
                yield Alive(span.buffer, names.get(span.buffer, ""), octets, buffer.module, creator)


def liveness(program: Program, *, as_run: bool = False, granularity: int = 1) -> Liveness:
    """Compute the live bytes at each step, in time linear in the number of operations.

    Args:
        program: The program.
        as_run: Free buffers when the recorded run freed them, as Python does; otherwise after their last use.
        granularity: Round every buffer up to a multiple of this (512: the blocks of the CUDA allocator).
    """
    spans = tuple(_spans(program, as_run, granularity))
    allocated, freed = defaultdict[int, list[Size]](list), defaultdict[int, list[Size]](list)
    for span in spans:
        allocated[span.first].append(span.bytes)
        freed[span.last].append(span.bytes)
    live: Size = 0
    timeline = list[Size]()
    for step, operation in enumerate(program.operations):
        live = total((live, *allocated[step]))
        timeline.append(add(live, _rounded(operation.workspace, granularity)))
        live = subtract(live, total(freed[step]))
    weights, inputs = (
        total(_rounded(buffer.bytes, granularity) for buffer in program.buffers if buffer.store is store)
        for store in (Store.WEIGHT, Store.INPUT)
    )
    return Liveness(program, tuple(timeline), weights, inputs, spans, granularity)


def thinned(values: Sequence[int], most: int = 2000) -> tuple[tuple[int, int], ...]:
    """Return a timeline as at most `most` points (step, bytes): the largest of each interval, so no peak is lost."""
    stride = max(1, -(-len(values) // most))
    points = list[tuple[int, int]]()
    for start in range(0, len(values), stride):
        step = max(range(start, min(start + stride, len(values))), key=values.__getitem__)
        points.append((step, values[step]))
    return tuple(points)


def chosen_sizes(program: Program, sizes: Mapping[str, int] | None) -> dict[str, int]:
    """Return the sizes of the example, overridden by the given ones."""
    check_sizes(sizes or {}, program.symbols)
    return {**program.symbols, **(sizes or {})}


def check_sizes(sizes: Mapping[str, int], dims: Iterable[str]) -> None:
    """Refuse sizes below 1, and sizes of other dimensions than these."""
    names = list(dims)
    for name, size in sizes.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            suggestion = f"did you mean {close[0]}? " if close else ""
            hint = f"{suggestion}dynamic dimensions: {', '.join(names) or 'none'}"
            raise UsageError(f"there is no dynamic dimension {name!r}", hint=hint)
        if size < 1:
            raise UsageError(f"{name} cannot be {size}", hint="sizes start at 1")


def _spans(program: Program, as_run: bool, granularity: int) -> Iterator[Span]:
    end = len(program.operations)  # one past the last step
    outputs = {program.values[value].buffer for value in program.outputs}
    touched = _last_touch(program)
    for index, buffer in enumerate(program.buffers):
        if buffer.store is not Store.ACTIVATION:
            continue
        first = buffer.born or 0
        if as_run:
            last = end if buffer.died is None else buffer.died
        else:
            last = end if index in outputs else touched.get(index, first)
        yield Span(index, _rounded(buffer.bytes, granularity), first, max(first, last))


def _last_touch(program: Program) -> dict[int, int]:
    touched = dict[int, int]()
    for step, operation in enumerate(program.operations):
        for value in chain(operation.reads, operation.writes):
            touched[program.values[value].buffer] = step
    return touched


def _rounded(size: Size, granularity: int) -> Size:
    return size if granularity == 1 else multiply(floor_quotient(add(size, granularity - 1), granularity), granularity)
