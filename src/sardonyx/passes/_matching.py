"""Questions that most matchers ask: which producer, which consumer, which constant numbers, which shape.

Operators of other domains than the standard's are given as `domain::Operator`. A node of which an attribute is a
parameter of the enclosing function counts as none of them, since the value of such an attribute is unknown.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence
from typing import ParamSpec, TypeVar

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Dim, Facts, Shape
from sardonyx.ir.rules import Builder, NoMatch, Refused
from sardonyx.ir.scopes import has_references, is_used_outside, operand, operator
from sardonyx.ir.shapes.operators import broadcast_shapes

T = TypeVar("T")
P = ParamSpec("P")


def require(condition: bool, reason: str = "", *nodes: ir.Node) -> None:
    """End a match if a condition does not hold: as a near miss if there is a reason."""
    if not condition:
        raise Refused(reason, nodes) if reason else NoMatch


def required(value: T | None, reason: str = "", *nodes: ir.Node) -> T:
    """Return a value; end the match if it is None, as a near miss if there is a reason."""
    if value is None:
        raise Refused(reason, nodes) if reason else NoMatch
    return value


def require_sole(reader: ir.Node, node: ir.Node, graph: Facts, reason: str, *nodes: ir.Node) -> None:
    """Refuse if the result of a node has another reader; the two nodes are shown, or the given ones."""
    require(graph.sole_consumer(node.outputs[0]) is reader, reason, *(nodes or (node, reader)))


def require_closed(nodes: Sequence[ir.Node]) -> None:
    """Refuse a match if anything else reads a value inside, other than those of its last node."""
    *inner, root = nodes
    inside = {*nodes}
    values = (value for node in inner if node is not root for value in node.outputs)
    escapes = any(is_used_outside(value, inside) for value in values)
    require(not escapes, "a value inside is read elsewhere", *nodes)


def optional(query: Callable[P, T]) -> Callable[P, T | None]:
    """Let a query that ends with `NoMatch` return None instead, so that the matcher can try something else."""

    @functools.wraps(query)
    def ask(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return query(*args, **kwargs)
        except NoMatch:
            return None

    return ask


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


def number_of(value: ir.Value | None, graph: Facts, *, rank: int) -> float | int | bool | None:
    """Return a constant with one element and at most this rank, so that it cannot enlarge what it is combined with."""
    number = graph.scalar(value)
    return None if number is None or (graph.rank(value) or 0) > rank else number


def value_and_scalar(node: ir.Node, graph: Facts, *sides: int) -> tuple[ir.Value, float] | None:
    """Return the operand beside a scalar constant, and the scalar; `sides` are where the constant may be.

    Returns None if the constant has a higher rank than the operand, since it would then enlarge the result.
    """
    for side in sides or (0, 1):
        number, value = graph.scalar(operand(node, side)), operand(node, 1 - side)
        if number is None or value is None or isinstance(number, bool):
            continue
        axes = graph.rank(node.inputs[side])
        if not axes or axes <= (graph.rank(value) or 0):
            return value, float(number)
    return None


def value_and_factor(node: ir.Node, graph: Facts) -> tuple[ir.Value, float] | None:
    """Return the operand that a Mul or Div multiplies by a scalar constant, and the factor."""
    if node.op_type == "Mul":
        return value_and_scalar(node, graph)
    division = value_and_scalar(node, graph, 1) if node.op_type == "Div" else None
    return None if division is None or division[1] == 0 else (division[0], 1 / division[1])


def static(dim: Dim | None, reason: str = "", *nodes: ir.Node) -> int:
    """Return a size that is a number; end the match otherwise, as a near miss if there is a reason."""
    return required(dim if isinstance(dim, int) else None, reason, *nodes)


def is_used(value: ir.Value) -> bool:
    """Return whether a value has a consumer or is a graph output."""
    return bool(value.uses()) or value.is_graph_output()


def _is_one_of(node: ir.Node, op_types: Container[str]) -> bool:
    return operator(node) in op_types and not has_references(node)


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


def axes_of(node: ir.Node, graph: Facts) -> tuple[int, ...] | None:
    """Return the axes of a Squeeze or Unsqueeze counted from the front and sorted, or None if that is uncertain."""
    axes = ints(node, "axes", 1, graph)
    rank = graph.rank(node.inputs[0] if node.op_type == "Squeeze" else node.outputs[0])
    if axes is None or (rank is None and any(axis < 0 for axis in axes)):
        return None
    return tuple(sorted(axis if axis >= 0 else axis + (rank or 0) for axis in axes))


def permutation(node: ir.Node, graph: Facts) -> tuple[int, ...] | None:
    """Return the permutation of a Transpose, or None if it is the default one and the rank is unknown."""
    perm = node.attributes.get_ints("perm")
    if perm is not None:
        return tuple(perm)
    rank = graph.rank(node.inputs[0])
    return None if rank is None else reversed_axes(rank)


def reversed_axes(rank: int) -> tuple[int, ...]:
    """Return the default permutation of a Transpose."""
    return tuple(range(rank))[::-1]


def reshape_target(source: Shape | None, result: Shape | None, *, open_at: int | None = None) -> tuple[int, ...] | None:
    """Return a constant Reshape target that turns `source` into `result` for all symbolic dims, if there is one.

    A dim that keeps its position is written 0. One other symbolic dim may be written -1, but only if no 0 is beside it:
    if that dim has size zero, -1 is undefined. `open_at` is the position of a -1 in the model's own target, which is
    undefined there in the same cases.
    """
    if source is None or result is None or 0 in result:
        return None
    target: list[int] = []
    for index, dim in enumerate(result):
        if isinstance(dim, int):
            target.append(dim)
        else:
            target.append(0 if index < len(source) and source[index] == dim else -1)
    open_dims = target.count(-1)
    if open_dims > 1 or (open_dims and 0 in target and target.index(-1) != open_at):
        return None
    return tuple(target)


def fits_without(node: ir.Node, index: int, shape: Shape | None, graph: Facts) -> bool:
    """Return whether the result certainly keeps its shape if one operand has this shape instead of its own."""
    shapes = [shape if place == index else graph.shape(value) for place, value in enumerate(node.inputs)]
    result = broadcast_shapes(shapes)
    return result is not None and result == graph.shape(node.outputs[0])


def size_of(dim: Dim, values: Sequence[ir.Value], op: Builder, graph: Facts) -> ir.Value | None:
    """Return a size as a tensor of shape [1], or None if no value has it.

    A symbolic size is read from a graph input if one has it, so that equal nodes can be shared; otherwise from one of
    `values`.
    """
    if isinstance(dim, int):
        return op.constant(np.array([dim], np.int64), "size")
    holder = holder_of(dim, (*op.scope.graph.inputs, *values), graph)
    return None if holder is None else op.Shape(holder[0], start=holder[1], end=holder[1] + 1)


def holder_of(dim: Dim, values: Sequence[ir.Value], graph: Facts) -> tuple[ir.Value, int] | None:
    """Return the first of these values that has the dim, and its axis."""
    for value in values:
        shape = graph.shape(value)
        if shape is not None and dim in shape:
            return value, shape.index(dim)
    return None


def inserted_axes(source: Shape | None, result: Shape | None) -> tuple[int, ...] | None:
    """Return the axes an Unsqueeze inserts to turn `source` into `result`, or None if it cannot."""
    if source is None or result is None:
        return None
    remaining, axes = list(source), list[int]()
    for axis, dim in enumerate(result):
        if remaining and dim == remaining[0]:
            remaining.pop(0)
        elif dim == 1:
            axes.append(axis)
        else:
            return None
    return None if remaining else tuple(axes)


def with_last(value: ir.Value, shape: Shape, dtype: ir.DataType | None, op: Builder) -> ir.Value:
    """Reshape a value to a shape with the same first two axes and static ones after them."""
    target = op.constant(np.array([0, 0, *shape[2:]], np.int64), "target")
    return op.learn(op.Reshape(value, target), dtype, shape)
