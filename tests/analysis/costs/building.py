"""Programs whose operations have kinds, written by hand or random, for the tests of regions and traffic."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from sardonyx.ir.shapes.expr import Size
from sardonyx.verbs.analyze.costs.program import Buffer, Operation, OpKind, Program, Store, Value

Shape = Sequence[Size]


class Building:
    """A program under construction; every method returns the index of its value."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.values: list[Value] = []
        self.buffers: list[Buffer] = []
        self.inputs: list[int] = []

    def _value(self, shape: Shape, dtype: str, buffer: int, name: str | None = None) -> int:
        self.values.append(Value(name or f"v{len(self.values)}", tuple(shape), dtype, buffer))
        return len(self.values) - 1

    def _fresh(self, shape: Shape, dtype: str, store: Store, module: str, born: int | None, name: str | None) -> int:
        value = self._value(shape, dtype, len(self.buffers), name)
        self.buffers.append(Buffer(self.values[value].bytes, store, module, born))
        return value

    def weight(self, shape: Shape, dtype: str = "float32", module: str = "", name: str | None = None) -> int:
        """A parameter or constant."""
        return self._fresh(shape, dtype, Store.WEIGHT, module, None, name)

    def input(self, shape: Shape, dtype: str = "float32", name: str | None = None) -> int:
        """An input of the model."""
        self.inputs.append(self._fresh(shape, dtype, Store.INPUT, "", None, name))
        return self.inputs[-1]

    def _step(self, kind: OpKind, reads: Sequence[int], writes: Sequence[int], operator: str, module: str, macs: Size,
              other_flops: Size, workspace: Size = 0) -> None:  # fmt: skip
        name = f"{operator}_{len(self.operations)}"
        self.operations.append(Operation(name, operator, kind, module, tuple(dict.fromkeys(reads)), tuple(writes),
                                         macs, other_flops, workspace))  # fmt: skip

    def op(self, kind: OpKind, reads: Sequence[int], shape: Shape, *, operator: str = "", module: str = "",
           dtype: str = "float32", macs: Size = 0, other_flops: Size = 0,
           workspace: Size = 0) -> int:  # fmt: skip
        """An operation that writes one new value into its own memory."""
        value = self._fresh(shape, dtype, Store.ACTIVATION, module, len(self.operations), None)
        self._step(kind, reads, [value], operator or str(kind), module, macs, other_flops, workspace)
        return value

    def ops(self, kind: OpKind, reads: Sequence[int], shapes: Sequence[Shape], *, operator: str = "", module: str = "",
            dtype: str = "float32") -> tuple[int, ...]:  # fmt: skip
        """An operation with several results."""
        step = len(self.operations)
        values = tuple(self._fresh(shape, dtype, Store.ACTIVATION, module, step, None) for shape in shapes)
        self._step(kind, reads, values, operator or str(kind), module, 0, 0)
        return values

    def view(self, source: int, shape: Shape, *, module: str = "", also: Sequence[int] = ()) -> int:
        """A view of the same memory; `also`: its other operands, such as the shape of an ONNX Reshape."""
        value = self._value(shape, self.values[source].dtype, self.values[source].buffer)
        self._step(OpKind.VIEW, [source, *also], [value], "view", module, 0, 0)
        return value

    def into(self, target: int, kind: OpKind, reads: Sequence[int] = (), *, same_value: bool = False,
             operator: str = "", module: str = "") -> int:  # fmt: skip
        """An operation in place: reads `target` and writes its memory; the result is a new value, or itself."""
        old = self.values[target]
        value = target if same_value else self._value(old.shape, old.dtype, old.buffer)
        self._step(kind, [target, *reads], [value], operator or f"{kind}_", module, 0, 0)
        return value

    def program(self, *outputs: int, **symbols: int) -> Program:
        """The finished program; `symbols`: dynamic dims with their size in the example."""
        return Program(tuple(self.operations), tuple(self.values), tuple(self.buffers), tuple(self.inputs), outputs,
                       symbols)  # fmt: skip


_DRAWN = (
    *[kind for kind in OpKind if kind is not OpKind.VIEW],
    *[OpKind.ARITHMETIC, OpKind.ACTIVATION, OpKind.SELECT, OpKind.MATMUL, OpKind.NORM]
    * 3,  # so that rules have matches
)
WAYS = ("op", "op", "op", "view", "into", "ops")
_SHAPES = ((2, 3), (3, 2), (6,), (2, 3), (2, 1), (4, 3))


@st.composite
def programs(draw: st.DrawFn, steps: int = 14, ways: Sequence[str] = WAYS) -> Program:
    """Any program: views of views, writing in place through them, values read many times or never."""
    building = Building()
    known = [building.input((2, 3)), building.input((4, 3)), building.weight((2, 3)), building.weight((6,))]
    for _ in range(draw(st.integers(1, steps))):
        how = draw(st.sampled_from(ways))
        kind = draw(st.sampled_from(_DRAWN))
        reads = draw(st.lists(st.sampled_from(known[-4:] + known[:3]), min_size=1, max_size=3))
        shape = draw(st.sampled_from(_SHAPES))
        module = draw(st.sampled_from(("", "a", "a.b", "a.c", "d")))
        if how == "op":
            reads = [] if kind == OpKind.CREATE else reads
            known.append(building.op(kind, reads, shape, module=module, macs=draw(st.integers(0, 5))))
        elif how == "ops":
            known.extend(building.ops(kind, reads, [shape, (2, 3)], module=module))
        elif how == "view":
            known.append(building.view(reads[0], shape, module=module))
        else:
            kind = OpKind.ARITHMETIC if kind == OpKind.CREATE else kind
            known.append(building.into(reads[0], kind, reads[1:], same_value=draw(st.booleans()), module=module))
    outputs = draw(st.lists(st.sampled_from(known[4:]), max_size=3, unique=True))
    return building.program(*outputs)


def run_in(program: Program, order: Sequence[int]) -> tuple[dict[int, int], list[int]]:
    """What every operation computes, and the outputs, if they run in this order on real memory."""
    memory = dict.fromkeys(range(len(program.buffers)), 0)
    results = dict[int, int]()
    for step in order:
        operation = program.operations[step]
        if operation.kind is OpKind.VIEW:
            continue
        read = tuple(memory[program.values[value].buffer] for value in operation.reads)
        contents = tuple(memory[program.values[value].buffer] for value in operation.writes)
        results[step] = hash((step, read, contents))
        for number, value in enumerate(operation.writes):
            memory[program.values[value].buffer] = hash((results[step], number))
    return results, [memory[program.values[value].buffer] for value in program.outputs]
