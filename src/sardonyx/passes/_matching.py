"""Questions that most matchers ask: which operand, which producer, which consumer, which constant numbers.

A node counts as one of the given operators only if it belongs to the standard domain and none of its attributes is a
parameter of the enclosing function, since the value of such an attribute is unknown.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from sardonyx.ir.facts import Facts


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, or None if it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def other_operand(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the other of two operands: the value itself for `x * x`, None if the value is not an operand."""
    if len(node.inputs) != 2 or value not in (first := node.inputs[0], second := node.inputs[1]):
        return None
    return second if first is value else first


def producer_of(value: ir.Value | None, beside: ir.Node, *op_types: str) -> ir.Node | None:
    """Return the producer of a value if it is one of these operators, in the same graph as `beside`."""
    node = None if value is None else value.producer()
    return node if node is not None and node.graph is beside.graph and _is_one_of(node, op_types) else None


def operand_producer(node: ir.Node, index: int, op_types: Container[str]) -> ir.Node | None:
    """Return the producer of an operand if it is one of these operators, in the same graph as the node."""
    value = operand(node, index)
    producer = None if value is None else value.producer()
    if producer is None or producer.graph is not node.graph or not _is_one_of(producer, op_types):
        return None
    return producer


def consumer_of(value: ir.Value, graph: Facts, *op_types: str) -> ir.Node | None:
    """Return the only consumer of a value if it is one of these operators and reads the value once."""
    node = graph.sole_user(value)
    return node if node is not None and _is_one_of(node, op_types) else None


def _is_one_of(node: ir.Node, op_types: Container[str]) -> bool:
    if node.op_type not in op_types or node.domain:
        return False
    return not any(attribute.is_ref() for attribute in node.attributes.values())


def ints(node: ir.Node, name: str, index: int, graph: Facts) -> tuple[int, ...] | None:
    """Return integers that newer opsets take as an input and older ones as an attribute; None if absent or computed."""
    attribute = node.attributes.get(name)
    return tuple(attribute.as_ints()) if attribute is not None else graph.ints(operand(node, index))


def is_specified(node: ir.Node, name: str, index: int) -> bool:
    """Return whether the node has such integers at all, constant or computed."""
    return name in node.attributes or operand(node, index) is not None
