"""Random programs: operations that create tensors, view them and write into them in place."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from msgspec.structs import replace

from sardonyx.ir.shapes.expr import Size, add, floor_quotient, larger, multiply, smaller, symbol
from sardonyx.verbs.analyze.costs.program import Buffer, Operation, OpKind, Program, Store, Value

BATCH, SEQ = symbol("batch"), symbol("seq")
EXAMPLE = {"batch": 2, "seq": 7}
DIMS: tuple[Size, ...] = (1, 3, 40, BATCH, SEQ, floor_quotient(add(SEQ, 1), 2))
SOME, MANY = smaller(multiply(9, SEQ), 90), larger(multiply(7, SEQ), 500)
WORKSPACES: tuple[Size, ...] = (0, 0, 0, multiply(100, BATCH), SOME, MANY)


def in_blocks(program: Program, block: int) -> Program:
    """The program with every buffer and workspace rounded up to whole blocks, as some allocators give memory out."""

    def rounded(size: Size) -> Size:
        return multiply(floor_quotient(add(size, block - 1), block), block)

    buffers = tuple(replace(each, bytes=rounded(each.bytes)) for each in program.buffers)
    operations = tuple(replace(each, workspace=rounded(each.workspace)) for each in program.operations)
    return replace(program, buffers=buffers, operations=operations)


@dataclass
class Sketch:
    """A program under construction."""

    operations: list[Operation] = field(default_factory=list[Operation])
    values: list[Value] = field(default_factory=list[Value])
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    inputs: list[int] = field(default_factory=list[int])

    def given(self, store: Store, shape: tuple[Size, ...]) -> int:
        """A weight or an input."""
        value = self._value(shape, self._buffer(shape, store, str(store), None))
        if store is Store.INPUT:
            self.inputs.append(value)
        return value

    def run(self, reads: tuple[int, ...], shape: tuple[Size, ...], *, module: str = "", workspace: Size = 0) -> int:
        """An operation that creates a tensor."""
        return self._write(reads, shape, self._buffer(shape, Store.ACTIVATION, module, self.step), module, workspace)

    def share(self, reads: tuple[int, ...], *, module: str = "", workspace: Size = 0) -> int:
        """An operation whose result shares the memory of its first operand: a view, or in place."""
        first = self.values[reads[0]]
        return self._write(reads, first.shape, first.buffer, module, workspace)

    @property
    def step(self) -> int:
        """The index of the next operation."""
        return len(self.operations)

    def program(self, outputs: tuple[int, ...]) -> Program:
        """The program so far."""
        operations, values, buffers = tuple(self.operations), tuple(self.values), tuple(self.buffers)
        return Program(operations, values, buffers, tuple(self.inputs), outputs, dict(EXAMPLE))

    def _write(self, reads: tuple[int, ...], shape: tuple[Size, ...], buffer: int, module: str, workspace: Size) -> int:
        value = self._value(shape, buffer)
        kept = tuple(dict.fromkeys(reads))
        name = f"op{self.step}"
        self.operations.append(Operation(name, "f", OpKind.OTHER, module, kept, (value,), workspace=workspace))
        return value

    def _value(self, shape: tuple[Size, ...], buffer: int) -> int:
        self.values.append(Value(f"v{len(self.values)}", shape, "float32", buffer))
        return len(self.values) - 1

    def _buffer(self, shape: tuple[Size, ...], store: Store, module: str, born: int | None) -> int:
        bytes_ = Value("", shape, "float32", 0).bytes
        self.buffers.append(Buffer(bytes_, store, module, born))
        return len(self.buffers) - 1


SHAPES = st.lists(st.sampled_from(DIMS), min_size=0, max_size=3).map(tuple)


@st.composite
def programs(draw: st.DrawFn, most: int = 14) -> Program:
    """Any program of up to `most` operations; some results are unused, some are views of inputs or weights."""
    sketch = Sketch()
    for store in (Store.INPUT, Store.WEIGHT, Store.INPUT):
        sketch.given(store, draw(SHAPES))
    for _ in range(draw(st.integers(0, most))):
        reads = draw(st.lists(st.sampled_from(range(len(sketch.values))), min_size=1, max_size=3).map(tuple))
        module = draw(st.sampled_from(("", "a", "a.b")))
        workspace = draw(st.sampled_from(WORKSPACES))
        if draw(st.integers(0, 2)):
            sketch.run(reads, draw(SHAPES), module=module, workspace=workspace)
        else:
            sketch.share(reads, module=module, workspace=workspace)
    return sketch.program(draw(st.lists(st.sampled_from(range(len(sketch.values))), max_size=3).map(tuple)))
