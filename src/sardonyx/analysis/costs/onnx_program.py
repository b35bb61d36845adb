"""An ONNX file as a Program: what it says is to be carried out, in its order, without a runtime's own optimizations.

Initializers and constants are weights, each once however many use it. Reshape, Squeeze, Unsqueeze, Flatten and Identity
hand on the memory they read, as ONNX Runtime does; everything else writes memory of its own. Functions are looked into:
each call is its operations. Control flow is one operation, which costs what its body does: the costlier branch of an
If, every turn of a Loop or Scan where their number is known and one turn where it is not. What had to be assumed is in
the notes. Open dims stay open (`Program.symbols`, with 1 for an example, since a file has none).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import onnx_ir as ir

from sardonyx import provenance
from sardonyx.analysis.costs.operators.description import Description
from sardonyx.analysis.costs.operators.onnx import describe
from sardonyx.analysis.costs.program import ITEM_BYTES, Buffer, Operation, OpKind, Program, Store, Value
from sardonyx.errors import ModelError
from sardonyx.ir import origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import KEEPS_ORDER
from sardonyx.ir.scopes import bodies, is_constant, label, operator
from sardonyx.ir.shapes import Shapes
from sardonyx.ir.shapes.expr import Expr, Size, add, floor_quotient, larger, multiply, symbol

# One graph of an ONNX model while it is read: the sizes of its values, the attributes of its nodes.
#
# The main graph is a frame, and so is each call of a function, whose sizes and attributes are those of the call.

_NAMES = {
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
_PLAIN = (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.INTS, ir.AttributeType.FLOATS)


@dataclass(frozen=True, slots=True)
class Frame:
    """What is known within one graph, or one call of a function."""

    shapes: Shapes
    untold: dict[str, None]  # names of values whose sizes do not follow from the file, as they are met
    attributes: Mapping[str, ir.Attr] = field(default_factory=dict[str, ir.Attr])  # of the call
    module: str = ""  # of the call
    place: str = ""  # what names in it begin with
    numbers: dict[ir.Value, int] = field(default_factory=dict[ir.Value, int])  # value -> its place in the program

    def call(self, function: ir.Function, node: ir.Node, place: str) -> Frame:
        """The frame of a function that this node calls."""
        defaults = {name: each for name, each in function.attributes.items() if each.value is not None}
        given = {name: self.resolved(each) for name, each in node.attributes.items()}
        attributes = {**defaults, **{name: each for name, each in given.items() if each is not None}}
        shapes = self.shapes.inside(function, node)
        return Frame(shapes, self.untold, attributes, self.module_of(node), f"{self.place}{place}/")

    def resolved(self, attribute: ir.Attr) -> ir.Attr | None:
        """The attribute itself, or what the caller gives for it."""
        return self.attributes.get(attribute.ref_attr_name or "") if attribute.is_ref() else attribute

    def plain(self, node: ir.Node) -> dict[str, object]:
        """A node's numbers and texts."""
        found: dict[str, object] = {}
        for name, each in node.attributes.data.items():
            attribute = self.resolved(each)
            if attribute is None:
                continue
            if attribute.type in _PLAIN:
                found[name] = cast("object", attribute.value)
            elif attribute.type is ir.AttributeType.STRING:
                found[name] = attribute.as_string()
        return found

    def module_of(self, node: ir.Node) -> str:
        """Where a node belongs; what does not say in a function belongs to the call."""
        return origins.owner(node) if origins.origins(node) else self.module

    def value(self, value: ir.Value, buffer: int) -> tuple[Value, bool]:
        """A tensor with its sizes, and whether at least the number of its axes is known.

        What is not known counts as one, and is noted.
        """
        name, sized = f"{self.place}{value.name or '?'}", _pieces_of(value) or value
        dtype, shape = self.shapes.dtype(sized) or sized.dtype, self.shapes.shape(sized)
        if shape is None or dtype is None or any(isinstance(dim, Expr) and dim.is_vague for dim in shape):
            self.untold[name] = None
        sizes = tuple(1 if isinstance(dim, Expr) and dim.is_vague else dim for dim in shape or ())
        return Value(name, *_stored(sizes, dtype), buffer), shape is not None


def _pieces_of(value: ir.Value) -> ir.Value | None:
    """What a sequence was cut from: it holds all of it."""
    maker = value.producer()
    return maker.inputs[0] if maker is not None and maker.op_type == "SplitToSequence" else None


def _stored(shape: tuple[Size, ...], dtype: ir.DataType | None) -> tuple[tuple[Size, ...], str]:
    """Shape and element type in memory; numbers of less than a byte lie several to a byte."""
    if dtype is None:
        return shape, "float32"
    if dtype in _NAMES:
        return shape, _NAMES[dtype]
    each = 8 // dtype.bitwidth if shape else 1
    return ((*shape[:-1], floor_quotient(add(shape[-1], each - 1), each)) if shape else shape), "uint8"


def name_dims(shapes: Shapes, inputs: list[ir.Value], symbol: Callable[[str], Expr]) -> dict[str, int]:
    """The open dims of the inputs with an example of 1; those that have no name get one after input and axis."""
    names: dict[str, int] = {}
    for value in inputs:
        dtype, shape = shapes.typed(value)
        dims: list[Size] = []
        for axis, dim in enumerate(shape or ()):
            size = symbol(f"{value.name}_{axis}") if isinstance(dim, Expr) and dim.is_vague else dim
            dims.append(size)
            if isinstance(size, Expr):
                names[repr(size)] = 1
        if shape is not None:
            shapes.learn(value, (dtype, tuple(dims)))
    return names


def names_in(sizes: Iterable[Size]) -> Iterator[str]:
    """The named dims that sizes are made of."""
    for size in sizes:
        if isinstance(size, Expr):
            for atoms, _ in size.terms:
                for atom in atoms:
                    yield from names_in(atom.args) if atom.args else (str(atom),)


_NAMED = 3  # examples in a note


def program_of(model: ir.Model) -> Program:
    """What a model carries out; its nodes know their modules where `tagged` or `attach` has read them."""
    facts = Facts(model)
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    symbols = name_dims(facts.shapes, inputs, symbol)
    facts.infer()
    return _Writer(facts).written(model, inputs, symbols)


@dataclass
class _Writer:
    """A program while it is being written."""

    facts: Facts
    operations: list[Operation] = field(default_factory=list[Operation])
    values: list[Value] = field(default_factory=list[Value])
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    weights: dict[ir.Value, int] = field(default_factory=dict[ir.Value, int])
    names: Counter[str] = field(default_factory=Counter[str])
    unknown: Counter[str] = field(default_factory=Counter[str])  # operators in no table
    notes: dict[str, None] = field(default_factory=dict[str, None])

    def written(self, model: ir.Model, inputs: list[ir.Value], symbols: dict[str, int]) -> Program:
        """The whole program."""
        frame = Frame(self.facts.shapes, {})
        given = [self._new(value, frame, Store.INPUT, "", None) for value in inputs]
        self._graph(model.graph, frame)
        outputs = [self._number(value, frame) for value in model.graph.outputs]
        self._note_missing(frame)
        sizes = {*(dim for value in self.values for dim in value.shape), *(each.macs for each in self.operations)}
        symbols |= dict.fromkeys(sorted({*names_in(sizes)} - symbols.keys()), 1)  # declared of foreign operators
        operations, values, buffers = tuple(self.operations), tuple(self.values), tuple(self.buffers)
        return Program(operations, values, buffers, tuple(given), tuple(outputs), symbols, tuple(self.notes))

    # Memory

    def _new(self, value: ir.Value, frame: Frame, store: Store, module: str, born: int | None) -> int:
        """A value in a buffer of its own."""
        made, _ = frame.value(value, len(self.buffers))
        self.buffers.append(Buffer(made.bytes, store, module, born))
        return self._keep(value, made, frame)

    def _keep(self, value: ir.Value, made: Value, frame: Frame) -> int:
        self.values.append(made)
        frame.numbers[value] = len(self.values) - 1
        return len(self.values) - 1

    def _number(self, value: ir.Value, frame: Frame) -> int:
        """A value's place; a weight gets its own when it is first read."""
        if value in frame.numbers:
            return frame.numbers[value]
        if value not in self.weights:
            maker = value.producer()
            if not value.is_initializer() and (maker is None or not is_constant(maker)):
                raise ModelError(
                    f"{frame.place}{value.name} is read before anything makes it", hint="check the file: onnx.checker"
                )
            users = provenance.merge([origins.origins(value), *(origins.origins(each) for each in value.consumers())])
            self.weights[value] = self._new(value, frame, Store.WEIGHT, provenance.owner_of(users), None)
        return self.weights[value]

    # Operations

    def _graph(self, nodes: Iterable[ir.Node], frame: Frame) -> None:
        for node in nodes:
            if is_constant(node):
                continue
            function = self.facts.model.functions.get(node.op_identifier())
            if function is None:
                self._operation(node, frame)
                continue
            inner = frame.call(function, node, label(node))
            for value, given in zip(function.inputs, node.inputs, strict=False):
                if given is not None:
                    inner.numbers[value] = self._number(given, frame)
            self._graph(function, inner)
            for value, result in zip(node.outputs, function.outputs, strict=False):
                frame.numbers[value] = self._number(result, inner)

    def _operation(self, node: ir.Node, frame: Frame) -> None:
        said = self._cost(node, frame)
        module, kind = frame.module_of(node), operator(node)
        reads = [self._number(value, frame) for value in _read_by(node, frame)]
        writes: list[int] = []
        for value in node.outputs:
            if not value.name:
                continue
            if kind in KEEPS_ORDER and reads:
                made, _ = frame.value(value, self.values[reads[0]].buffer)
                writes.append(self._keep(value, made, frame))
            else:
                writes.append(self._new(value, frame, Store.ACTIVATION, module, len(self.operations)))
        name, kept = self._unique(frame.place + label(node)), tuple(dict.fromkeys(reads))
        self.operations.append(
            Operation(name, kind, said.kind, module, kept, tuple(writes), said.macs, said.other_flops)
        )

    def _unique(self, name: str) -> str:
        self.names[name] += 1
        if self.names[name] == 1:
            return name
        return self._unique(f"{name}#{self.names[name]}")

    # Costs

    def _cost(self, node: ir.Node, frame: Frame) -> Description:
        """What a node is and costs, with all that it carries inside."""
        function = self.facts.model.functions.get(node.op_identifier())
        if function is not None:
            return self._sum(function, frame.call(function, node, label(node)))
        inside = [self._sum(body, frame) for _, body in bodies(node)]
        if inside:
            return self._control(node, frame, inside)
        reads = [_sized(value, frame) for value in node.inputs]
        writes = [_sized(value, frame) if value.name else None for value in node.outputs]
        said = describe(operator(node), reads, writes, frame.plain(node))
        if not said.known:
            self.unknown[operator(node)] += 1
        return said

    def _sum(self, nodes: Iterable[ir.Node], frame: Frame) -> Description:
        macs: Size = 0
        flops: Size = 0
        for node in nodes:
            if not is_constant(node):
                said = self._cost(node, frame)
                macs, flops = add(macs, said.macs), add(flops, said.other_flops)
        return Description(OpKind.OTHER, macs, flops)

    def _control(self, node: ir.Node, frame: Frame, inside: list[Description]) -> Description:
        name = frame.place + label(node)
        macs, flops = inside[0].macs, inside[0].other_flops
        for other in inside[1:]:
            macs, flops = larger(macs, other.macs), larger(flops, other.other_flops)
        if node.op_type == "If":
            self.notes[f"{name}: counted as the costlier branch"] = None
            return Description(OpKind.OTHER, macs, flops)
        turns = _turns(node, frame)
        how = "one turn, since their number is not known" if turns is None else f"{turns!r} turns"
        self.notes[f"{name}: counted as {how}"] = None
        times: Size = 1 if turns is None else turns
        return Description(OpKind.OTHER, multiply(times, macs), multiply(times, flops))

    def _note_missing(self, frame: Frame) -> None:
        if frame.untold:
            few = ", ".join(list(frame.untold)[:_NAMED]) + (", …" if len(frame.untold) > _NAMED else "")
            self.notes[f"sizes that do not follow from the file count as 1 ({len(frame.untold)}): {few}"] = None
        if self.unknown:
            listed = ", ".join(f"{name} ({count})" for name, count in sorted(self.unknown.items()))
            self.notes[f"operators whose arithmetic is not known and not counted: {listed}"] = None


def _sized(value: ir.Value | None, frame: Frame) -> Value | None:
    if value is None:
        return None
    made, told = frame.value(value, -1)
    return made if told else None


def _turns(node: ir.Node, frame: Frame) -> Size | None:
    """How often a body runs: a Loop that says it beforehand, a Scan as long as what it goes through."""
    attributes = frame.plain(node)
    if node.op_type == "Loop" and node.inputs[0] is not None:
        found = frame.shapes.contents(node.inputs[0])
        return _told(found[0] if found else None)
    count = attributes.get("num_scan_inputs")
    if node.op_type != "Scan" or not isinstance(count, int) or not count:
        return None
    shape = frame.shapes.shape(node.inputs[-count])
    axes = cast("Sequence[int]", attributes.get("scan_input_axes", (0,)))
    return _told(shape[axes[0]] if shape else None)


def _told(size: Size | None) -> Size | None:
    return None if isinstance(size, Expr) and size.is_vague else size


def _read_by(node: ir.Node, frame: Frame) -> Iterator[ir.Value]:
    """What a node reads, with what its bodies take from outside; an input that a caller left out is not there."""
    taken = [value for _, body in bodies(node) for value in _taken(body, set())]
    yield from (value for value in (*node.inputs, *taken) if value is not None and not _is_left_out(value, frame))


def _is_left_out(value: ir.Value, frame: Frame) -> bool:
    """Whether it is an input of the function that this call does not give."""
    return value not in frame.numbers and value.is_graph_input() and not value.is_initializer()


def _taken(body: ir.Graph, own: set[ir.Value]) -> Iterator[ir.Value]:
    """What a body reads of the graphs around it; `own` are the values of the bodies that it lies in."""
    own |= {*body.inputs, *body.initializers.values()}
    for node in body:
        for value in node.inputs:
            if value is not None and value not in own:
                yield value
        own.update(node.outputs)
        for _, inner in bodies(node):
            yield from _taken(inner, own)
    yield from (value for value in body.outputs if value not in own)
