"""Who reads what whom wrote: a program with its views looked through and its writing in place told apart.

Views are no work and no memory, so a reader is led through them to the memory itself. Memory that is written in place
is a new piece each time, so that what was read before is not taken for what was read after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from sardonyx.analysis.costs.program import OpKind, Program, Size, Store
from sardonyx.ir.shapes.expr import total, value_of

Write = tuple[int, int]  # a step, and the value it wrote


@dataclass(frozen=True, slots=True)
class Piece:
    """What a step reads: a value as it was left by the last step that wrote it."""

    value: int
    writer: int | None  # None: it was there before the run
    is_mixed: bool = False  # that step wrote only a part of it


class _Example(dict[str, int]):
    """Sizes at which two values are compared: the example's, or some number where that tells nothing."""

    def __missing__(self, _: str) -> int:
        return 7


class Flow:
    """All reads and writes of a program's steps, without those that only make views."""

    def __init__(self, program: Program) -> None:
        """Go through the program once, in the order in which it runs."""
        self.program = program
        count = len(program.operations)
        self.reads: list[tuple[Piece, ...]] = [()] * count
        self.writes: list[tuple[int, ...]] = [()] * count  # values, as the memory is first called
        self.before: list[set[int]] = [set() for _ in range(count)]  # steps that must have run, by memory
        self.sources: list[list[Write]] = [[] for _ in range(count)]  # the writes that each reads
        self.readers: dict[Write, list[int]] = {}
        self.views: dict[int, set[int]] = {}  # step that makes a view -> steps that read through it
        self.view_sources: dict[int, int | None] = {}  # step that makes a view -> step that wrote what it shows
        sizes = _Example({name: size for name, size in program.symbols.items() if size > 1})
        self._bytes = [value_of(value.bytes, sizes) for value in program.values]
        self._elements = [value.elements for value in program.values]
        self._same = list(range(len(program.values)))  # value -> the first name of that memory
        self._part_of: dict[int, int] = {}  # a slice -> what it is cut from
        self._maker: dict[int, int] = {}  # a view -> the step that makes it
        self._home: dict[int, int] = {}  # a view -> the buffer it looks into
        self._needs: dict[int, set[int]] = {}  # a view -> the steps that worked out its shape
        self._first: dict[int, int] = {}  # buffer -> the value that is all of it
        self._chains: dict[int, list[Write]] = {}  # buffer -> the writes that make up what is in it now
        self._seen_by: dict[int, list[int]] = {}  # buffer -> who has read what is in it now
        self._turned = set[int]()  # steps that cast a weight or put it into another order
        for step, operation in enumerate(program.operations):
            if operation.kind is OpKind.VIEW:
                self._look(step)
            else:
                self._read(step)
                self._write(step)
        self.steps = tuple(step for step in range(count) if step not in self.views)
        self.kept: frozenset[Write] = frozenset(self._kept())

    def kind(self, step: int) -> OpKind:
        """What the step is."""
        return self.program.operations[step].kind

    def elements(self, value: int) -> Size:
        """How many numbers a value has."""
        return self._elements[value]

    def is_weight(self, piece: Piece) -> bool:
        """Whether it was there before any input came."""
        return self._store(piece.value) is Store.WEIGHT

    def is_parameter(self, piece: Piece) -> bool:
        """Whether it is a weight, or one that was only cast or put into another order."""
        return self.is_weight(piece) or piece.writer in self._turned

    def activations(self, step: int) -> list[Piece]:
        """What it reads beside parameters and single numbers."""
        return [piece for piece in self.reads[step]
                if not self.is_parameter(piece) and self._elements[piece.value] != 1]  # fmt: skip

    def read_bytes(self, step: int, piece: Piece) -> Size:
        """What it moves to read it; of a table, no more than the rows it takes out."""
        values, writes = self.program.values, self.writes[step]
        if self.kind(step) is OpKind.LOOKUP and self._bytes[piece.value] > sum(self._bytes[value] for value in writes):
            return total(values[value].bytes for value in writes)
        return values[piece.value].bytes

    def write_bytes(self, value: int) -> Size:
        """What it moves to write it."""
        return self.program.values[value].bytes

    def distinct(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Each once, and no slice of what is there as a whole."""
        there = dict.fromkeys(pieces)
        return [piece for piece in there if not any(Piece(whole, piece.writer, piece.is_mixed) in there
                                                    for whole in self._wholes(piece.value))]  # fmt: skip

    def leaving(self, steps: set[int]) -> list[Write]:
        """What these steps write that others read, or that outlives the run."""
        return [write for write in self.written(steps)
                if write in self.kept or not steps.issuperset(self.readers.get(write, ()))]  # fmt: skip

    def written(self, steps: Iterable[int]) -> list[Write]:
        """All that these steps write."""
        return [(step, value) for step in steps for value in self.writes[step]]

    def followers(self, step: int) -> list[int]:
        """Who reads what it writes."""
        readers = (self.readers.get((step, value), ()) for value in self.writes[step])
        return list(dict.fromkeys(chain.from_iterable(readers)))

    def _store(self, value: int) -> Store:
        return self.program.buffers[self._buffer(value)].store

    def _buffer(self, value: int) -> int:
        return self._home.get(value, self.program.values[value].buffer)

    def _look(self, step: int) -> None:
        """A view: the same memory under another name, or a part of it."""
        self.views[step] = set()
        if not self.program.operations[step].reads:  # of a constant that the program does not name
            self.view_sources[step] = None
            self._maker.update(dict.fromkeys(self.program.operations[step].writes, step))
            return
        source, *sides = self.program.operations[step].reads
        piece, _ = self._resolve(source)
        self.view_sources[step] = piece.writer
        shape_makers = {writer for side in sides for writer, _ in self._resolve(side)[1]}
        needs = shape_makers.union(*(self._needs.get(value, ()) for value in (source, *sides)))
        for view in self.program.operations[step].writes:
            self._maker[view], self._home[view], self._needs[view] = step, self._buffer(source), needs
            if self._bytes[view] < self._bytes[piece.value]:
                self._part_of[view] = piece.value
            else:  # all of it; a broadcast view shows no more than there is
                self._same[view] = piece.value

    def _resolve(self, value: int) -> tuple[Piece, list[Write]]:
        """The memory it lies in as it is now, and the writes that made it so."""
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
            self._turned.add(step)

    def _through(self, value: int, step: int) -> None:
        """Tell the views it was read through; what told them their shape must have run too."""
        self.before[step] |= self._needs.get(value, set())
        shown: Sequence[int] = (value,)
        while shown and shown[0] in self._maker:
            maker = self._maker[shown[0]]
            self.views[maker].add(step)
            shown = self.program.operations[maker].reads

    def _write(self, step: int) -> None:
        written, fresh = list[int](), set[int]()
        for given in self.program.operations[step].writes:
            value, buffer = given, self._buffer(given)
            self._through(given, step)
            if buffer not in self._first and self.program.buffers[buffer].store is Store.ACTIVATION:
                self._first[buffer] = value
                fresh.add(buffer)
            elif buffer not in fresh:
                value = self._named(step, given, buffer)
                last = [writer for writer, _ in self._chains.get(buffer, [])[-1:]]  # which waits for those before it
                self.before[step].update(one for one in (*last, *self._seen_by.get(buffer, [])) if one != step)
            if value not in written:
                written.append(value)
                if value == self._first[buffer]:
                    self._chains[buffer] = []
                self._chains.setdefault(buffer, []).append((step, value))
                self._seen_by[buffer] = []
        self.writes[step] = tuple(written)

    def _named(self, step: int, value: int, buffer: int) -> int:
        """What the memory that is written in place was called before."""
        first = self._first.setdefault(buffer, self._base(value, buffer))
        for read in self.program.operations[step].reads:
            if self._buffer(read) == buffer and self._bytes[read] == self._bytes[value]:
                self._same[value] = self._same[read]
                return self._same[read]
        if self._bytes[value] >= self._bytes[first]:
            self._same[value] = first
        return self._same[value]

    def _base(self, value: int, buffer: int) -> int:
        """The first value that is known to lie in memory that was there before the run."""
        values = self.program.values
        return next((index for index in range(len(values)) if values[index].buffer == buffer), value)

    def _kept(self) -> Iterable[Write]:
        for value in self.program.outputs:
            yield from self._resolve(value)[1]
        for buffer, writes in self._chains.items():
            if self.program.buffers[buffer].store is not Store.ACTIVATION:
                yield from writes
