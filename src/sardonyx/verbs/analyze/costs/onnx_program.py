"""Convert an ONNX model to a `Program`: its nodes in file order, without the optimizations of a runtime.

Initializers and constants are weights, each counted once. Reshape, Squeeze, Unsqueeze, Flatten and Identity are views,
as in ONNX Runtime; other nodes allocate their outputs. Calls of functions are inlined up to a limit, beyond which they
are operations of unknown cost. An If is the operations of its more expensive branch. A Loop or Scan is one operation
with the costs of its body: of all iterations if their number is known, otherwise of one. Assumptions are listed in the
notes. Dynamic dimensions are in `Program.symbols`, with size 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import onnx_ir as ir
from msgspec import Struct, field
from msgspec.structs import replace

from sardonyx.errors import ModelError
from sardonyx.ir import origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import KEEPS_ORDER
from sardonyx.ir.scopes import MAX_CALL_DEPTH, bodies, inlining_limit, is_constant, label, operator
from sardonyx.ir.shapes import Shapes
from sardonyx.ir.shapes.expr import Expr, Size, add, floor_quotient, larger, multiply, names_in, symbol, value_of
from sardonyx.records import provenance
from sardonyx.verbs.analyze.costs.onnx_operators import describe
from sardonyx.verbs.analyze.costs.program import (
    ITEM_BYTES,
    Buffer,
    Description,
    Operation,
    OpKind,
    Program,
    Store,
    Value,
)

_DTYPES = {
    **{kind: kind.name.lower() for kind in ir.DataType if kind.name.lower() in ITEM_BYTES and kind.bitwidth >= 8},
    ir.DataType.FLOAT: "float32",
    ir.DataType.DOUBLE: "float64",
    ir.DataType.FLOAT8E4M3FN: "float8_e4m3fn",
    ir.DataType.FLOAT8E4M3FNUZ: "float8_e4m3fn",
    ir.DataType.FLOAT8E5M2: "float8_e5m2",
    ir.DataType.FLOAT8E5M2FNUZ: "float8_e5m2",
    ir.DataType.FLOAT8E8M0: "float8_e5m2",
    ir.DataType.STRING: "uint64",  # a reference
}
_NUMERIC = (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.INTS, ir.AttributeType.FLOATS)


class Frame(Struct, frozen=True):
    """The main graph or one call of a function: the sizes of its values and the attributes of its nodes."""

    shapes: Shapes
    unsized: dict[str, None]  # names of values whose sizes are unknown, in the order of use
    attributes: Mapping[str, ir.Attr] = field(default_factory=dict[str, ir.Attr])  # of the call
    module: str = ""  # of the call
    place: str = ""  # the prefix of names inside
    depth: int = 0  # of calls within calls
    numbers: dict[ir.Value, int] = field(default_factory=dict[ir.Value, int])  # value -> its index in the program

    def call(self, function: ir.Function, node: ir.Node, place: str) -> Frame:
        """Return the frame of the function that a node calls."""
        defaults = {name: default for name, default in function.attributes.items() if default.value is not None}
        arguments = {name: self.resolved(attribute) for name, attribute in node.attributes.items()}
        attributes = {**defaults, **{name: argument for name, argument in arguments.items() if argument is not None}}
        shapes = self.shapes.inside(function, node)
        return Frame(shapes, self.unsized, attributes, self.module_of(node), f"{self.place}{place}/", self.depth + 1)

    def resolved(self, attribute: ir.Attr) -> ir.Attr | None:
        """Return an attribute, or for a reference, the argument of the call."""
        return self.attributes.get(attribute.ref_attr_name or "") if attribute.is_ref() else attribute

    def plain_attributes(self, node: ir.Node) -> dict[str, object]:
        """Return the attributes of a node that are numbers or strings."""
        values: dict[str, object] = {}
        for name, reference in node.attributes.data.items():
            attribute = self.resolved(reference)
            if attribute is None:
                continue
            if attribute.type in _NUMERIC:
                values[name] = cast("object", attribute.value)
            elif attribute.type is ir.AttributeType.STRING:
                values[name] = attribute.as_string()
        return values

    def module_of(self, node: ir.Node) -> str:
        """Return the module of a node; a node of a function without one belongs to the module of the call."""
        return origins.owner(node) if origins.origins(node) else self.module

    def value(self, value: ir.Value, buffer: int) -> tuple[Value, bool]:
        """Return a value with its sizes, and whether its rank is known; unknown sizes count as 1 and are noted."""
        producer, name = value.producer(), f"{self.place}{value.name or '?'}"
        split = producer.inputs[0] if producer is not None and producer.op_type == "SplitToSequence" else None
        sized = split or value  # a sequence has the size of the tensor that it was split from
        dtype, shape = self.shapes.dtype(sized) or sized.dtype, self.shapes.shape(sized)
        if shape is None or dtype is None or any(isinstance(dim, Expr) and dim.is_vague for dim in shape):
            self.unsized[name] = None
        sizes = tuple(1 if isinstance(dim, Expr) and dim.is_vague else dim for dim in shape or ())
        stored = "float32" if dtype is None else _DTYPES.get(dtype, "uint8")
        if dtype is not None and dtype not in _DTYPES and sizes:  # elements smaller than a byte are packed
            per_byte = 8 // dtype.bitwidth
            sizes = (*sizes[:-1], floor_quotient(add(sizes[-1], per_byte - 1), per_byte))
        return Value(name, sizes, stored, buffer), shape is not None

    def sized(self, value: ir.Value | None) -> Value | None:
        """Return a value as an operand of a rule; None if it is omitted, or its rank is unknown."""
        tensor, has_rank = (None, False) if value is None or not value.name else self.value(value, -1)
        return tensor if has_rank else None


def name_dims(shapes: Shapes, inputs: list[ir.Value], symbol: Callable[[str], Expr]) -> dict[str, int]:
    """Return the dynamic dimensions of the inputs with example size 1; unnamed ones are named after input and axis."""
    names: dict[str, int] = {}
    for value in inputs:
        dtype, shape = shapes.typed(value)
        dims: list[Size] = []
        for axis, dim in enumerate(shape or ()):
            size = symbol(f"{value.name}[{axis}]") if isinstance(dim, Expr) and dim.is_vague else dim
            dims.append(size)
            if isinstance(size, Expr):
                names[repr(size)] = 1
        if shape is not None:
            shapes.learn(value, (dtype, tuple(dims)))
    return names


_EXAMPLES_NAMED = 3  # values or nodes named in a note
_USUAL_SIZE = 512  # of a dynamic dimension, to tell which branch of an If is more expensive


def program_of(model: ir.Model) -> Program:
    """Return the program of a model; modules are known if `tagged` or `attach` has read them."""
    facts = Facts(model)
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    symbols = name_dims(facts.shapes, inputs, symbol)
    facts.infer()
    return _ProgramBuilder(facts, inlining_limit(model)).build(model, inputs, symbols)


class _ProgramBuilder(Struct):
    """Builds the program of one model."""

    facts: Facts
    inlinable: int  # nodes of functions that may still be visited
    operations: list[Operation] = field(default_factory=list[Operation])
    values: list[Value] = field(default_factory=list[Value])
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    weights: dict[ir.Value, int] = field(default_factory=dict[ir.Value, int])
    names: Counter[str] = field(default_factory=Counter[str])
    unknown: Counter[str] = field(default_factory=Counter[str])  # operators in no table
    choices: dict[str, None] = field(default_factory=dict[str, None])  # every If
    notes: dict[str, None] = field(default_factory=dict[str, None])

    def build(self, model: ir.Model, inputs: list[ir.Value], symbols: dict[str, int]) -> Program:
        frame = Frame(self.facts.shapes, {})
        arguments = [self._allocate(value, frame, Store.INPUT, "", None) for value in inputs]
        self._graph(model.graph, frame)
        outputs = [self._number(value, frame) for value in model.graph.outputs]
        for what, names in (
            ("counted as the more expensive branch", self.choices),
            ("unknown sizes count as 1", frame.unsized),
        ):
            if names:
                examples = ", ".join(list(names)[:_EXAMPLES_NAMED]) + (", …" if len(names) > _EXAMPLES_NAMED else "")
                self.notes[f"{what} ({len(names)}): {examples}"] = None
        if self.unknown:
            listed = ", ".join(f"{name} ({count})" for name, count in sorted(self.unknown.items()))
            self.notes[f"operators of unknown cost, whose arithmetic is not counted: {listed}"] = None
        sizes = {*(dim for value in self.values for dim in value.shape), *(step.macs for step in self.operations)}
        own = sorted({*names_in(sizes)} - symbols.keys())  # dimensions declared for unknown operators
        operations, values, buffers = tuple(self.operations), tuple(self.values), tuple(self.buffers)
        ends, symbols = (tuple(arguments), tuple(outputs)), symbols | dict.fromkeys(own, 1)
        return Program(operations, values, buffers, *ends, symbols, tuple(self.notes))

    # Memory

    def _allocate(self, value: ir.Value, frame: Frame, store: Store, module: str, born: int | None) -> int:
        tensor, _ = frame.value(value, len(self.buffers))
        self.buffers.append(Buffer(tensor.bytes, store, module, born))
        return self._add(value, tensor, frame)

    def _add(self, value: ir.Value, tensor: Value, frame: Frame) -> int:
        self.values.append(tensor)
        frame.numbers[value] = len(self.values) - 1
        return len(self.values) - 1

    def _number(self, value: ir.Value, frame: Frame) -> int:
        """Return the index of a value; a weight is added when it is first read."""
        if value in frame.numbers:
            return frame.numbers[value]
        if value not in self.weights:
            producer = value.producer()
            if not value.is_initializer() and (producer is None or not is_constant(producer)):
                raise ModelError(
                    f"{frame.place}{value.name} is read before it is computed", hint="check the file with onnx.checker"
                )
            users = provenance.merge([origins.origins(value), *(origins.origins(user) for user in value.consumers())])
            self.weights[value] = self._allocate(value, frame, Store.WEIGHT, provenance.owner_of(users), None)
        return self.weights[value]

    # Operations

    def _graph(self, nodes: Iterable[ir.Node], frame: Frame) -> None:
        for node in nodes:
            if is_constant(node):
                continue
            function = self._called(node, frame)
            if function is not None:
                self._call(function, node, frame)
            elif operator(node) == "If":
                self._choice(node, frame)
            else:
                self._operation(node, frame)

    def _call(self, function: ir.Function, node: ir.Node, frame: Frame) -> None:
        inner = frame.call(function, node, label(node))
        for value, argument in zip(function.inputs, node.inputs, strict=False):
            if argument is not None:
                inner.numbers[value] = self._number(argument, frame)
        self._graph(function, inner)
        for value, result in zip(node.outputs, function.outputs, strict=False):
            frame.numbers[value] = self._number(result, inner)

    def _choice(self, node: ir.Node, frame: Frame) -> None:
        """Add the operations of the more expensive branch, whose results are those of the If from here on."""
        self.choices[frame.place + label(node)] = None
        branch = max((body for _, body in bodies(node)), key=lambda body: self._expense(body, frame))
        results = dict(zip(node.outputs, branch.outputs, strict=True))
        frame.shapes.settle(results)
        self._graph(branch, replace(frame, module=frame.module_of(node)))
        for value, result in results.items():
            frame.numbers[value] = self._number(result, frame)

    def _expense(self, nodes: Iterable[ir.Node], frame: Frame) -> int:
        """Return the arithmetic of nodes at usual sizes; what it would note is dropped."""
        noted: list[dict[str, Any]] = [self.unknown, self.choices, self.notes, frame.unsized]
        before = [note.copy() for note in noted]
        cost = self._sum(nodes, frame)
        for note, kept in zip(noted, before, strict=True):
            note.clear()
            note.update(kept)
        flops = add(multiply(2, cost.macs), cost.other_flops)
        return value_of(flops, dict.fromkeys(names_in([flops]), _USUAL_SIZE))

    def _called(self, node: ir.Node, frame: Frame) -> ir.Function | None:
        """Return the function that a node calls, or None for another operator and beyond the limit of inlining."""
        function = self.facts.model.functions.get(node.op_identifier())
        if function is None or frame.depth >= MAX_CALL_DEPTH or self.inlinable < 0:
            return None
        self.inlinable -= sum(1 for _ in function.graph.all_nodes())
        return function if self.inlinable >= 0 else None

    def _operation(self, node: ir.Node, frame: Frame) -> None:
        cost = self._cost(node, frame)
        module, op_type = frame.module_of(node), operator(node)
        reads = [self._number(value, frame) for value in _operands(node, frame)]
        writes: list[int] = []
        for value in node.outputs:
            if not value.name:
                continue
            if op_type in KEEPS_ORDER and reads:
                tensor, _ = frame.value(value, self.values[reads[0]].buffer)
                writes.append(self._add(value, tensor, frame))
            else:
                writes.append(self._allocate(value, frame, Store.ACTIVATION, module, len(self.operations)))
        name, operands = frame.place + label(node), tuple(dict.fromkeys(reads))
        self.names[name] += 1
        while self.names[name] > 1:
            name = f"{name}#{self.names[name]}"
            self.names[name] += 1
        self.operations.append(
            Operation(name, op_type, cost.kind, module, operands, tuple(writes), cost.macs, cost.other_flops)
        )

    # Costs

    def _cost(self, node: ir.Node, frame: Frame) -> Description:
        """Describe a node, with the costs of its bodies or of the function that it calls."""
        function = self._called(node, frame)
        if function is not None:
            return self._sum(function, frame.call(function, node, label(node)))
        inside = [self._sum(body, frame) for _, body in bodies(node)]
        if inside:
            return self._control(node, frame, inside)
        reads, writes = map(frame.sized, node.inputs), map(frame.sized, node.outputs)
        cost = describe(operator(node), list(reads), list(writes), frame.plain_attributes(node))
        if not cost.known:
            self.unknown[operator(node)] += 1
        return cost

    def _sum(self, nodes: Iterable[ir.Node], frame: Frame) -> Description:
        macs: Size = 0
        flops: Size = 0
        for node in nodes:
            if not is_constant(node):
                cost = self._cost(node, frame)
                macs, flops = add(macs, cost.macs), add(flops, cost.other_flops)
        return Description(OpKind.OTHER, macs, flops)

    def _control(self, node: ir.Node, frame: Frame, inside: list[Description]) -> Description:
        name = frame.place + label(node)
        macs, flops = inside[0].macs, inside[0].other_flops
        for other in inside[1:]:
            macs, flops = larger(macs, other.macs), larger(flops, other.other_flops)
        if node.op_type == "If":
            self.choices[name] = None
            return Description(OpKind.OTHER, macs, flops)
        iterations = _iterations(node, frame)
        counted = "1 iteration, since the number is unknown" if iterations is None else f"{iterations!r} iterations"
        self.notes[f"{name}: counted as {counted}"] = None
        times: Size = 1 if iterations is None else iterations
        return Description(OpKind.OTHER, multiply(times, macs), multiply(times, flops))


def _iterations(node: ir.Node, frame: Frame) -> Size | None:
    """Return how often a body runs: the trip count of a Loop, or the length of what a Scan iterates over."""
    size: Size | None = None
    count = frame.plain_attributes(node).get("num_scan_inputs")
    if node.op_type == "Loop" and node.inputs[0] is not None:
        size = (frame.shapes.contents(node.inputs[0]) or (None,))[0]
    elif node.op_type == "Scan" and isinstance(count, int) and count:
        shape = frame.shapes.shape(node.inputs[-count])
        axes = cast("Sequence[int]", frame.plain_attributes(node).get("scan_input_axes", (0,)))
        size = shape[axes[0]] if shape else None
    return None if isinstance(size, Expr) and size.is_vague else size


def _operands(node: ir.Node, frame: Frame) -> Iterator[ir.Value]:
    """Yield the values that a node and its bodies read, without inputs of a function that this call omits."""
    captured = (value for _, body in bodies(node) for value in _captured(body, set()))
    for value in filter(None, (*node.inputs, *captured)):
        if value in frame.numbers or not value.is_graph_input() or value.is_initializer():
            yield value


def _captured(body: ir.Graph, own: set[ir.Value]) -> Iterator[ir.Value]:
    """Yield the values that a body reads from the graphs around it; `own` has the values of enclosing bodies."""
    own |= {*body.inputs, *body.initializers.values()}
    for node in body:
        for value in node.inputs:
            if value is not None and value not in own:
                yield value
        own.update(node.outputs)
        for _, inner in bodies(node):
            yield from _captured(inner, own)
    yield from (value for value in body.outputs if value not in own)
