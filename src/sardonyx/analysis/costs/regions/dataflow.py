"""The reads and writes of a program's steps, with views resolved and in-place writes distinguished.

A view takes no time and no memory, so a read through a view is a read of the memory behind it. Each in-place write
creates a new version of the memory, so that reads before and after it are different.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from msgspec import Struct

from sardonyx.analysis.costs.program import OpKind, Program, Size, Store
from sardonyx.ir.shapes.expr import total, value_of

Write = tuple[int, int]  # a step and the value it wrote


class Piece(Struct, frozen=True):
    """A version of a value: its memory after the last step that wrote it."""

    value: int
    writer: int | None  # None: it existed before the run
    is_mixed: bool = False  # the writer wrote only a part of it


class _Example(dict[str, int]):
    """The sizes at which values are compared: the example's, or 7 for a dimension whose example size is 1."""

    def __missing__(self, _: str) -> int:
        return 7


class Flow:
    """All reads and writes of a program's steps, except those that only create views."""

    def __init__(self, program: Program) -> None:
        """Walk through the program once in execution order."""
        self.program = program
        count = len(program.operations)
        self.reads: list[tuple[Piece, ...]] = [()] * count
        self.writes: list[tuple[int, ...]] = [()] * count  # values, by the first name of their memory
        self.before: list[set[int]] = [set() for _ in range(count)]  # steps that must run earlier
        self.sources: list[list[Write]] = [[] for _ in range(count)]  # the writes that each step reads
        self.readers: dict[Write, list[int]] = {}
        self.views: dict[int, set[int]] = {}  # step that creates a view -> steps that read through it
        self.view_sources: dict[
            int, int | None
        ] = {}  # step that creates a view -> step that wrote the memory behind it
        sizes = _Example({name: size for name, size in program.symbols.items() if size > 1})
        self._bytes = [value_of(value.bytes, sizes) for value in program.values]
        self._elements = [value.elements for value in program.values]
        self._same = list(range(len(program.values)))  # value -> the first name of that memory
        self._part_of: dict[int, int] = {}  # a slice -> the value it is a part of
        self._creator: dict[int, int] = {}  # a view -> the step that creates it
        self._home: dict[int, int] = {}  # a view -> the buffer behind it
        self._needs: dict[int, set[int]] = {}  # a view -> the steps that computed its shape
        self._first: dict[int, int] = {}  # buffer -> the value that spans all of it
        self._chains: dict[int, list[Write]] = {}  # buffer -> the writes that its current content consists of
        self._seen_by: dict[int, list[int]] = {}  # buffer -> the steps that have read its current content
        self._prepared = set[int]()  # steps that cast a weight or copy it into another order
        for step, operation in enumerate(program.operations):
            if operation.kind is OpKind.VIEW:
                self._view(step)
            else:
                self._read(step)
                self._write(step)
        self.steps = tuple(step for step in range(count) if step not in self.views)
        self.persistent: frozenset[Write] = frozenset(self._persistent())

    def kind(self, step: int) -> OpKind:
        """Return the kind of a step."""
        return self.program.operations[step].kind

    def elements(self, value: int) -> Size:
        """Return the number of elements of a value."""
        return self._elements[value]

    def is_weight(self, piece: Piece) -> bool:
        """Return whether a piece is a weight or constant."""
        return self._store(piece.value) is Store.WEIGHT

    def is_parameter(self, piece: Piece) -> bool:
        """Return whether a piece is a weight, or a cast or reordered copy of one."""
        return self.is_weight(piece) or piece.writer in self._prepared

    def activations(self, step: int) -> list[Piece]:
        """Return what a step reads other than parameters and scalars."""
        return [piece for piece in self.reads[step]
                if not self.is_parameter(piece) and self._elements[piece.value] != 1]  # fmt: skip

    def read_bytes(self, step: int, piece: Piece) -> Size:
        """Return the bytes a step reads of a piece; of a lookup table, only the rows it returns."""
        values, writes = self.program.values, self.writes[step]
        if self.kind(step) is OpKind.LOOKUP and self._bytes[piece.value] > sum(self._bytes[value] for value in writes):
            return total(values[value].bytes for value in writes)
        return values[piece.value].bytes

    def write_bytes(self, value: int) -> Size:
        """Return the bytes of writing a value."""
        return self.program.values[value].bytes

    def distinct(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Return each piece once, without slices of pieces that are included as a whole."""
        unique = dict.fromkeys(pieces)
        return [
            piece
            for piece in unique
            if not any(Piece(whole, piece.writer, piece.is_mixed) in unique for whole in self._wholes(piece.value))
        ]

    def leaving(self, steps: set[int]) -> list[Write]:
        """Return the writes of these steps that other steps read or that outlive the run."""
        return [write for write in self.written(steps)
                if write in self.persistent or not steps.issuperset(self.readers.get(write, ()))]  # fmt: skip

    def written(self, steps: Iterable[int]) -> list[Write]:
        """Return all writes of these steps."""
        return [(step, value) for step in steps for value in self.writes[step]]

    def followers(self, step: int) -> list[int]:
        """Return the steps that read the results of a step."""
        readers = (self.readers.get((step, value), ()) for value in self.writes[step])
        return list(dict.fromkeys(chain.from_iterable(readers)))

    def _store(self, value: int) -> Store:
        return self.program.buffers[self._buffer(value)].store

    def _buffer(self, value: int) -> int:
        return self._home.get(value, self.program.values[value].buffer)

    def _view(self, step: int) -> None:
        """Register a view: the same memory under another name, or a part of it."""
        self.views[step] = set()
        if not self.program.operations[step].reads:  # a view of a constant that the program does not list
            self.view_sources[step] = None
            self._creator.update(dict.fromkeys(self.program.operations[step].writes, step))
            return
        source, *sides = self.program.operations[step].reads
        piece, _ = self._resolve(source)
        self.view_sources[step] = piece.writer
        shape_writers = {writer for side in sides for writer, _ in self._resolve(side)[1]}
        needs = shape_writers.union(*(self._needs.get(value, ()) for value in (source, *sides)))
        for view in self.program.operations[step].writes:
            self._creator[view], self._home[view], self._needs[view] = step, self._buffer(source), needs
            if self._bytes[view] < self._bytes[piece.value]:
                self._part_of[view] = piece.value
            else:  # all of it, or a broadcast view, which has no more memory behind it
                self._same[view] = piece.value

    def _resolve(self, value: int) -> tuple[Piece, list[Write]]:
        """Return the current version of the memory of a value, and the writes that it consists of."""
        whole = self._same[value]
        writes = self._chains.get(self._buffer(value), [])
        covering = {whole, *self._wholes(whole)}
        for index in range(len(writes) - 1, -1, -1):
            if writes[index][1] in covering:
                return Piece(whole, writes[-1][0], index < len(writes) - 1), writes[index:]
        return Piece(whole, writes[-1][0] if writes else None, bool(writes)), list(writes)

    def _wholes(self, value: int) -> Iterable[int]:
        while value in self._part_of:
            value = self._part_of[value]
            yield value

    def _read(self, step: int) -> None:
        pieces = list[Piece]()
        for value in self.program.operations[step].reads:
            piece, writes = self._resolve(value)
            pieces.append(piece)
            self._seen_by.setdefault(self._buffer(value), []).append(step)
            for write in writes:
                self.before[step].add(write[0])
                readers = self.readers.setdefault(write, [])
                if not readers or readers[-1] != step:
                    readers.append(step)
                    self.sources[step].append(write)
            self._through(value, step)
        self.reads[step] = tuple(self.distinct(pieces))
        if pieces and self.kind(step) in (OpKind.COPY, OpKind.SELECT) and all(map(self.is_parameter, pieces)):
            self._prepared.add(step)

    def _through(self, value: int, step: int) -> None:
        """Register a read with the views it passes through; the steps that computed their shapes must run earlier."""
        self.before[step] |= self._needs.get(value, set())
        sources: Sequence[int] = (value,)
        while sources and sources[0] in self._creator:
            creator = self._creator[sources[0]]
            self.views[creator].add(step)
            sources = self.program.operations[creator].reads

    def _write(self, step: int) -> None:
        written, fresh = list[int](), set[int]()
        for target in self.program.operations[step].writes:
            value, buffer = target, self._buffer(target)
            self._through(target, step)
            if buffer not in self._first and self.program.buffers[buffer].store is Store.ACTIVATION:
                self._first[buffer] = value
                fresh.add(buffer)
            elif buffer not in fresh:
                value = self._named(step, target, buffer)
                last = [writer for writer, _ in self._chains.get(buffer, [])[-1:]]  # which depends on earlier ones
                earlier = (*last, *self._seen_by.get(buffer, []))
                self.before[step].update(other for other in earlier if other != step)
            if value not in written:
                written.append(value)
                if value == self._first[buffer]:
                    self._chains[buffer] = []
                self._chains.setdefault(buffer, []).append((step, value))
                self._seen_by[buffer] = []
        self.writes[step] = tuple(written)

    def _named(self, step: int, value: int, buffer: int) -> int:
        """Return the earlier name of memory that is written in place."""
        first = self._first.setdefault(buffer, self._base(value, buffer))
        for read in self.program.operations[step].reads:
            if self._buffer(read) == buffer and self._bytes[read] == self._bytes[value]:
                self._same[value] = self._same[read]
                return self._same[read]
        if self._bytes[value] >= self._bytes[first]:
            self._same[value] = first
        return self._same[value]

    def _base(self, value: int, buffer: int) -> int:
        """Return the first value in a buffer that existed before the run."""
        values = self.program.values
        return next((index for index in range(len(values)) if values[index].buffer == buffer), value)

    def _persistent(self) -> Iterable[Write]:
        for value in self.program.outputs:
            yield from self._resolve(value)[1]
        for buffer, writes in self._chains.items():
            if self.program.buffers[buffer].store is not Store.ACTIVATION:
                yield from writes
