"""What a node was given: attributes, read from the plain dict inside, since these are asked of every node.

A wrong type, or a function's parameter where a number is wanted, is a ValueError: the engine takes it for "not known".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir


def attributes(node: ir.Node) -> Mapping[str, ir.Attr]:
    """All of them."""
    return node.attributes.data


def number(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute."""
    found = node.attributes.data.get(name)
    if found is None:
        return default
    if found.type is not ir.AttributeType.INT or found.value is None:
        raise ValueError(name)
    return cast("int", found.value)


def numbers(node: ir.Node, name: str) -> Sequence[int] | None:
    """An attribute of several integers; None where it is not given."""
    found = node.attributes.data.get(name)
    if found is None:
        return None
    if found.type is not ir.AttributeType.INTS or found.value is None:
        raise ValueError(name)
    return cast("Sequence[int]", found.value)


def text(node: ir.Node, name: str, default: str) -> str:
    """A string attribute."""
    found = node.attributes.data.get(name)
    return default if found is None else found.as_string()


def tensor(node: ir.Node, name: str) -> ir.TensorProtocol | None:
    """A tensor attribute; None where it is not given."""
    found = node.attributes.data.get(name)
    if found is None:
        return None
    if found.type is not ir.AttributeType.TENSOR or found.value is None:
        raise ValueError(name)
    return cast("ir.TensorProtocol", found.value)  # as_tensor() looks at the whole protocol


def sparse_constant(node: ir.Node) -> ir.TensorProtocol | None:
    """The sparse tensor of a Constant, whose type and shape are known though its elements are not looked at."""
    found = node.attributes.data.get("sparse_value") if node.op_type == "Constant" and not node.domain else None
    if found is None or found.type is not ir.AttributeType.SPARSE_TENSOR:
        return None
    return cast("ir.TensorProtocol", found.value)


def body(node: ir.Node, name: str) -> ir.Graph:
    """A graph attribute."""
    return node.attributes.data[name].as_graph()


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """An input; None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def depends_on_caller(node: ir.Node) -> bool:
    """Whether an attribute is a function's parameter."""
    return any(attribute.is_ref() for attribute in node.attributes.data.values())
