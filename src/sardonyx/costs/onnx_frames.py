"""One graph of an ONNX model while it is read: the sizes of its values, the attributes of its nodes.

The main graph is a frame, and so is each call of a function, whose sizes and attributes are those of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import onnx_ir as ir

from sardonyx.costs.program import ITEM_BYTES, Value
from sardonyx.graph import origins
from sardonyx.graph.shapes import Expr, Shapes, Size
from sardonyx.graph.shapes.expr import add, floor_quotient

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
