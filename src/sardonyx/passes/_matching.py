"""The questions every matcher asks: what is this input, which node made it, what are these numbers."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from sardonyx.ir.facts import Facts


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """An input that may be left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def maker(node: ir.Node, index: int, op_types: Container[str]) -> ir.Node | None:
    """The node beside this one that makes its input, where it is one of these standard operators.

    Not one whose attributes are a function's parameters: no rule can know their values.
    """
    value = operand(node, index)
    made_by = None if value is None else value.producer()
    if made_by is None or made_by.op_type not in op_types or made_by.domain or made_by.graph is not node.graph:
        return None
    return None if any(attribute.is_ref() for attribute in made_by.attributes.values()) else made_by


def ints(node: ir.Node, name: str, index: int, graph: Facts) -> tuple[int, ...] | None:
    """Numbers that newer opsets take as an input and older ones as an attribute; None where absent or computed."""
    attribute = node.attributes.get(name)
    return tuple(attribute.as_ints()) if attribute is not None else graph.ints(operand(node, index))


def given(node: ir.Node, name: str, index: int) -> bool:
    """Whether the node has such numbers at all, be they computed."""
    return name in node.attributes or operand(node, index) is not None
