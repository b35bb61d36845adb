"""What the steps of a program read and write, alone and fused into regions, and the bytes that this moves.

A view takes no time and no memory, so a read through a view is a read of the memory behind it. Each in-place write
creates a new version of the memory, so that reads before and after it are different. A value that one operation reads
twice counts once; of a lookup table only the returned rows count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

from msgspec import Struct

from sardonyx.ir.shapes.expr import add, subtract, total, value_of
from sardonyx.records.provenance import lowest_common
from sardonyx.verbs.analyze.costs.program import OpKind, Program, Size, Store

Write = tuple[int, int]  # a step and the value it wrote


class Piece(Struct, frozen=True):
    """A version of a value: its memory after the last step that wrote it."""

    value: int
    writer: int | None  # None: it existed before the run
    is_mixed: bool = False  # the writer wrote only a part of it


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
        self.view_sources: dict[int, int | None] = {}  # step that creates a view -> step that wrote what is behind it
        # compared at the sizes of the example, or 7 for a dimension whose example size is 1
        sizes = defaultdict(lambda: 7, {name: size for name, size in program.symbols.items() if size > 1})
        self._bytes = [value_of(value.bytes, sizes) for value in program.values]
        self.elements = [value.elements for value in program.values]
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
        outputs = (self._resolve(value)[1] for value in program.outputs)
        kept = (buffer.store is not Store.ACTIVATION for buffer in program.buffers)
        outlasting = (self._chains.get(index, ()) for index, is_kept in enumerate(kept) if is_kept)
        self.persistent: frozenset[Write] = frozenset(chain.from_iterable((*outputs, *outlasting)))

    def kind(self, step: int) -> OpKind:
        """Return the kind of a step."""
        return self.program.operations[step].kind

    def is_weight(self, piece: Piece) -> bool:
        """Return whether a piece is a weight or constant."""
        return self.program.buffers[self._buffer(piece.value)].store is Store.WEIGHT

    def is_parameter(self, piece: Piece) -> bool:
        """Return whether a piece is a weight, or a cast or reordered copy of one."""
        return self.is_weight(piece) or piece.writer in self._prepared

    def activations(self, step: int) -> list[Piece]:
        """Return what a step reads other than parameters and scalars."""
        return [piece for piece in self.reads[step]
                if not self.is_parameter(piece) and self.elements[piece.value] != 1]  # fmt: skip

    def read_bytes(self, step: int, piece: Piece) -> Size:
        """Return the bytes a step reads of a piece; of a lookup table, only the rows it returns."""
        values, writes = self.program.values, self.writes[step]
        if self.kind(step) is OpKind.LOOKUP and self._bytes[piece.value] > sum(self._bytes[value] for value in writes):
            return total(values[value].bytes for value in writes)
        return values[piece.value].bytes

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

    def _buffer(self, value: int) -> int:
        return self._home.get(value, self.program.values[value].buffer)

    def _view(self, step: int) -> None:
        """Register a view: the same memory under another name, or a part of it."""
        operation = self.program.operations[step]
        self._creator.update(dict.fromkeys(operation.writes, step))
        self.views[step], self.view_sources[step] = set(), None
        if not operation.reads:  # a view of a constant that the program does not list
            return
        source, *sides = operation.reads
        piece, _ = self._resolve(source)
        self.view_sources[step] = piece.writer
        shape_writers = {writer for side in sides for writer, _ in self._resolve(side)[1]}
        needs = shape_writers.union(*(self._needs.get(value, ()) for value in operation.reads))
        for view in operation.writes:
            self._home[view], self._needs[view] = self._buffer(source), needs
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
        if buffer not in self._first:  # it existed before the run
            values = enumerate(self.program.values)
            self._first[buffer] = next((index for index, one in values if one.buffer == buffer), value)
        first = self._first[buffer]
        for read in self.program.operations[step].reads:
            if self._buffer(read) == buffer and self._bytes[read] == self._bytes[value]:
                self._same[value] = self._same[read]
                return self._same[read]
        if self._bytes[value] >= self._bytes[first]:
            self._same[value] = first
        return self._same[value]


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

    @property
    def bytes(self) -> Size:
        """All bytes that cross the boundary."""
        return total((self.bytes_in, self.weight_bytes, self.bytes_out))


def region_of(flow: Flow, rule: str, steps: Sequence[int], views: Sequence[int], depends_on: Iterable[int]) -> Region:
    """Build the region of these steps, with the views that belong to it."""
    inside, values = set(steps), flow.program.values
    entering, internal, reads = dict[Piece, Size](), list[Size](), list[Size]()
    for step in steps:
        for piece in flow.reads[step]:
            size = flow.read_bytes(step, piece)
            if piece.is_mixed or piece.writer not in inside:
                entering[piece] = size
                reads.append(size)
            else:
                internal.append(size)
    # a result that nothing reads is written too: it is a second output of an operator, and no rule allows omitting it
    leaving = set(flow.leaving(inside))
    out, inner, escapes = list[int](), list[int](), list[int]()
    for write in flow.written(sorted(inside)):
        readers = flow.readers.get(write, ())
        (out if write in leaving or not readers else inner).append(write[1])
        if write in leaving and not inside.isdisjoint(readers):
            escapes.append(write[1])
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
        bytes_out=total(values[value].bytes for value in out),
        internal_bytes=total((*internal, *(values[value].bytes for value in inner))),
        reread_bytes=subtract(total(reads), add(weights, activations)),
        escapes=tuple(dict.fromkeys(escapes)),
    )


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


class Moved(Struct, frozen=True):
    """The bytes that one operation moves."""

    read: Size  # activations and inputs
    weights: Size
    written: Size

    @property
    def bytes(self) -> Size:
        """All bytes."""
        return total((self.read, self.weights, self.written))


def moved(program: Program) -> tuple[Moved, ...]:
    """Return the bytes that each operation moves, in the order of the program."""
    flow = Flow(program)
    return tuple(
        Moved(
            read=total(flow.read_bytes(step, piece) for piece in flow.reads[step] if not flow.is_weight(piece)),
            weights=total(flow.read_bytes(step, piece) for piece in flow.reads[step] if flow.is_weight(piece)),
            written=total(program.values[value].bytes for value in flow.writes[step]),
        )
        for step in range(len(program.operations))
    )
