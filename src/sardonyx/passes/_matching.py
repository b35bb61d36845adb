"""Questions that most matchers ask: which producer, which consumer, which constant numbers.

A node counts as one of the given operators only if it belongs to the standard domain and none of its attributes is a
parameter of the enclosing function, since the value of such an attribute is unknown.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import has_references, operand


def other_operand(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the other of two operands: the value itself for `x * x`, None if the value is not an operand."""
    if len(node.inputs) != 2 or value not in (first := node.inputs[0], second := node.inputs[1]):
        return None
    return second if first is value else first


def producer_of(value: ir.Value | None, beside: ir.Node, op_types: Container[str]) -> ir.Node | None:
    """Return the producer of a value if it is one of these operators, in the same graph as `beside`."""
    node = None if value is None else value.producer()
    return node if node is not None and node.graph is beside.graph and _is_one_of(node, op_types) else None


def operand_producer(node: ir.Node, index: int, op_types: Container[str]) -> ir.Node | None:
    """Return the producer of an operand if it is one of these operators, in the same graph as the node."""
    return producer_of(operand(node, index), node, op_types)


def consumer_of(value: ir.Value, graph: Facts, op_types: Container[str]) -> ir.Node | None:
    """Return the only consumer of a value if it is one of these operators and reads the value once."""
    node = graph.sole_consumer(value)
    return node if node is not None and _is_one_of(node, op_types) else None


def is_used(value: ir.Value) -> bool:
    """Return whether a value has a consumer or is a graph output."""
    return bool(value.uses()) or value.is_graph_output()


def _is_one_of(node: ir.Node, op_types: Container[str]) -> bool:
    return node.op_type in op_types and not node.domain and not has_references(node)


def with_operand(node: ir.Node, index: int, value: ir.Value | None) -> tuple[ir.Value | None, ...]:
    """Return the inputs of a node with one of them replaced."""
    return (*node.inputs[:index], value, *node.inputs[index + 1 :])


def ints(node: ir.Node, name: str, index: int, graph: Facts) -> tuple[int, ...] | None:
    """Return integers that newer opsets take as an input and older ones as an attribute; None if absent or computed."""
    attribute = node.attributes.get(name)
    return tuple(attribute.as_ints()) if attribute is not None else graph.ints(operand(node, index))


def is_specified(node: ir.Node, name: str, index: int) -> bool:
    """Return whether the node has such integers at all, constant or computed."""
    return name in node.attributes or operand(node, index) is not None
