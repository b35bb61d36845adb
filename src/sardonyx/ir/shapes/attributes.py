"""Access to the attributes of a node, from its underlying dict because rules read them for every node.

An attribute of the wrong type, or a reference to a function's parameter where a number is needed, raises ValueError;
the engine then treats the outputs as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir

from sardonyx.ir.scopes import tensor_of
from sardonyx.ir.shapes.expr import Size

Shape = tuple[Size, ...]
Contents = tuple[Size | None, ...]  # the elements in row-major order; None for unknown ones
Typed = tuple[ir.DataType | None, Shape | None]


def attributes(node: ir.Node) -> Mapping[str, ir.Attr]:
    """Return all attributes."""
    return node.attributes.data


def number(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute."""
    attribute = node.attributes.data.get(name)
    if attribute is None:
        return default
    if attribute.type is not ir.AttributeType.INT or attribute.value is None:
        raise ValueError(name)
    return cast("int", attribute.value)


def numbers(node: ir.Node, name: str) -> Sequence[int] | None:
    """Return an attribute of several integers, or None if it is absent."""
    attribute = node.attributes.data.get(name)
    if attribute is None:
        return None
    if attribute.type is not ir.AttributeType.INTS or attribute.value is None:
        raise ValueError(name)
    return cast("Sequence[int]", attribute.value)


def text(node: ir.Node, name: str, default: str) -> str:
    """Return a string attribute."""
    attribute = node.attributes.data.get(name)
    return default if attribute is None else attribute.as_string()


def tensor(node: ir.Node, name: str) -> ir.TensorProtocol | None:
    """Return a tensor attribute, or None if it is absent."""
    attribute = node.attributes.data.get(name)
    if attribute is None:
        return None
    if attribute.type is not ir.AttributeType.TENSOR or attribute.value is None:
        raise ValueError(name)
    return tensor_of(attribute)


def sparse_constant(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the sparse tensor of a Constant, whose type and shape are known but not its elements, otherwise None."""
    attribute = node.attributes.data.get("sparse_value") if node.op_type == "Constant" and not node.domain else None
    if attribute is None or attribute.type is not ir.AttributeType.SPARSE_TENSOR:
        return None
    return cast("ir.TensorProtocol", attribute.value)


def body(node: ir.Node, name: str) -> ir.Graph:
    """Return a graph attribute."""
    return node.attributes.data[name].as_graph()
