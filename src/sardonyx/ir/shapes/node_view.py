"""A node as the rules see it: what is known of its operands, and its attributes.

An attribute of the wrong type, or a reference to a function's parameter where a number is needed, raises ValueError;
the engine then treats the outputs as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.shapes.expr import Size

if TYPE_CHECKING:
    from sardonyx.ir.shapes.engine import Shapes

Shape = tuple[Size, ...]
Contents = tuple[Size | None, ...]  # the elements in row-major order; None for unknown ones
Typed = tuple[ir.DataType | None, Shape | None]


class Unknown(Exception):
    """What a rule needs is unknown, and so are the results of the node."""


class NodeView(Struct, frozen=True):
    """One node; operands are numbered, and the first is the default."""

    node: ir.Node
    ask: Shapes

    def operand(self, index: int = 0) -> ir.Value | None:
        """Return an operand, or None if it is left out."""
        inputs = self.node.inputs
        return inputs[index] if index < len(inputs) else None

    def shape(self, index: int = 0) -> Shape | None:
        """Return the shape of an operand, or None if its rank is unknown."""
        return self.ask.shape(self.operand(index))

    def known(self, index: int = 0) -> Shape:
        """Return the shape of an operand, without which the rule cannot do."""
        shape = self.ask.shape(self.operand(index))
        if shape is None:
            raise Unknown
        return shape

    def contents(self, index: int = 0) -> Contents | None:
        """Return the elements of an operand, or None if not even their number is known."""
        return self.ask.contents(self.operand(index))

    def elements(self, index: int = 0) -> Contents:
        """Return the elements of an operand, without which the rule cannot do."""
        contents = self.ask.contents(self.operand(index))
        if contents is None:
            raise Unknown
        return contents

    def scalar(self, index: int) -> Size | None:
        """Return the first element of an operand, or None if it is unknown."""
        return (self.contents(index) or (None,))[0]

    def unknowns(self, count: int) -> Shape:
        """Return new unknown dimensions."""
        return tuple([self.ask.unknown() for _ in range(count)])

    def has(self, name: str) -> bool:
        """Return whether the node has an attribute."""
        return name in self.node.attributes.data  # the underlying dict, because rules read it for every node

    def _attribute(self, name: str, kind: ir.AttributeType) -> Any:
        attribute = self.node.attributes.data.get(name)
        if attribute is None:
            return None
        if attribute.type is not kind or attribute.value is None:
            raise ValueError(name)
        return attribute.value

    def number(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        value = self._attribute(name, ir.AttributeType.INT)
        return default if value is None else value

    def numbers(self, name: str) -> Sequence[int] | None:
        """Return an attribute of several integers, or None if it is absent."""
        return self._attribute(name, ir.AttributeType.INTS)

    def ints(self, name: str, index: int) -> Sequence[int] | None:
        """Return numbers that older opsets pass as the attribute `name` and newer ones as an operand.

        None if they are absent or not constant.
        """
        attribute = self.numbers(name)
        if attribute is not None:
            return attribute
        contents = self.contents(index)
        return None if contents is None or not are_numbers(contents) else cast("Sequence[int]", contents)

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        attribute = self.node.attributes.data.get(name)
        return default if attribute is None else attribute.as_string()

    def tensor(self, name: str) -> ir.TensorProtocol | None:
        """Return a tensor attribute, or None if it is absent."""
        return self._attribute(name, ir.AttributeType.TENSOR)

    def body(self, name: str) -> ir.Graph:
        """Return a graph attribute."""
        return self.node.attributes.data[name].as_graph()


def are_numbers(sizes: Contents) -> bool:
    """Return whether all sizes are numbers."""
    return all(type(size) is int for size in sizes)
