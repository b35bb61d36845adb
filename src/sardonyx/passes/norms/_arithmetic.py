"""Arithmetic as matchers meet it: operands in any order, scalars of any rank, powers and factors however spelled.

Each helper answers one question about a value and names the nodes it looked through, so that a match can list them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.passes._casts import preserves_values
from sardonyx.passes._matching import operand

# The float types that the fused operators know, widest last. Doubles are not among them: those operators compute in
# single precision whatever they are given.
FUSED_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT)
_PRECISION: Mapping[ir.DataType | None, float] = MappingProxyType(
    {
        ir.DataType.DOUBLE: 2.0**-52,
        ir.DataType.FLOAT: 2.0**-23,
        ir.DataType.FLOAT16: 2.0**-10,
        ir.DataType.BFLOAT16: 2.0**-7,
    }
)
_ROUNDINGS = 2  # units in the last place by which a constant may miss the number it stands for


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A value read as `factor * source`, and the nodes that multiply, the last one first."""

    source: ir.Value
    factor: float
    nodes: tuple[ir.Node, ...]


def made_by(value: ir.Value | None, beside: ir.Node, *op_types: str) -> ir.Node | None:
    """The node in the graph of `beside` that makes the value, where it is one of these standard operators."""
    node = None if value is None else value.producer()
    return node if node is not None and node.graph is beside.graph and _is_plain(node, op_types) else None


def reader(value: ir.Value, graph: Facts, *op_types: str) -> ir.Node | None:
    """The only node that reads the value, where it is one of these standard operators and reads it once."""
    node = graph.sole_user(value)
    return node if node is not None and _is_plain(node, op_types) else None


def _is_plain(node: ir.Node, op_types: Sequence[str]) -> bool:
    """Whether it is such an operator, and no attribute of it is a function's parameter, which nobody knows."""
    if node.op_type not in op_types or node.domain:
        return False
    return not any(attribute.is_ref() for attribute in node.attributes.values())


def partner(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The other one of two operands; the value itself for `x * x`, None where it is no operand."""
    if len(node.inputs) != 2 or value not in (first := node.inputs[0], second := node.inputs[1]):
        return None
    return second if first is value else first


def number_beside(node: ir.Node, graph: Facts, *sides: int) -> tuple[ir.Value, float] | None:
    """The operand beside a scalar constant, and that number; `sides` are where the constant may stand (both).

    Not where the constant has more axes than the operand, since it would then enlarge the result.
    """
    for side in sides or (0, 1):
        number, value = graph.scalar(operand(node, side)), operand(node, 1 - side)
        if number is None or value is None or isinstance(number, bool):
            continue
        axes = graph.rank(node.inputs[side])
        if not axes or axes <= (graph.rank(value) or 0):
            return value, float(number)
    return None


def scaling(node: ir.Node, graph: Facts) -> tuple[ir.Value, float] | None:
    """What a Mul or Div multiplies with a scalar constant, and by how much."""
    if node.op_type == "Mul":
        return number_beside(node, graph)
    found = number_beside(node, graph, 1) if node.op_type == "Div" else None
    return None if found is None or found[1] == 0 else (found[0], 1 / found[1])


def factored(value: ir.Value, beside: ir.Node, graph: Facts) -> Term:
    """The value without the scalar constants it is multiplied with or divided by."""
    factor, nodes = 1.0, list[ir.Node]()
    while (node := made_by(value, beside, "Mul", "Div")) is not None and (found := scaling(node, graph)) is not None:
        value, factor = found[0], factor * found[1]
        nodes.append(node)
    return Term(value, factor, tuple(nodes))


def raised(value: ir.Value | None, beside: ir.Node, graph: Facts) -> tuple[ir.Value, float, ir.Node] | None:
    """Base, exponent and node of a power: x * x, Pow with a constant, Sqrt, Reciprocal, 1 / x."""
    node = made_by(value, beside, "Mul", "Pow", "Sqrt", "Reciprocal", "Div")
    return None if node is None else power(node, graph)


def power(node: ir.Node, graph: Facts) -> tuple[ir.Value, float, ir.Node] | None:
    """As `raised`, from the node."""
    base = operand(node, 0)
    match node.op_type:
        case "Mul" if base is not None and operand(node, 1) is base:
            return base, 2.0, node
        case "Sqrt" if base is not None:
            return base, 0.5, node
        case "Reciprocal" if base is not None:
            return base, -1.0, node
        case "Pow":
            found = number_beside(node, graph, 1)
            return None if found is None else (*found, node)
        case "Div":
            found = number_beside(node, graph, 0)
            return (found[0], -1.0, node) if found is not None and found[1] == 1 else None
        case _:
            return None


def squared(value: ir.Value | None, beside: ir.Node, graph: Facts) -> tuple[ir.Value, ir.Node] | None:
    """What a value is the square of, and the node that squares."""
    found = raised(value, beside, graph)
    return (found[0], found[2]) if found is not None and found[1] == 2 else None


def uncast(value: ir.Value, beside: ir.Node, graph: Facts) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """The same numbers before they were cast to a type that holds them all, and the casts, the last one first."""
    casts: list[ir.Node] = []
    while (node := made_by(value, beside, "Cast")) is not None and (source := node.inputs[0]) is not None:
        if not preserves_values(graph.dtype(source), node.attributes.get_int("to", 0)):
            break
        casts.append(node)
        value = source
    return value, tuple(casts)


def near(number: float, wanted: float, dtype: ir.DataType | None) -> bool:
    """Whether a constant of that type is `wanted` as well as the type can say it."""
    return abs(number - wanted) <= _ROUNDINGS * _PRECISION.get(dtype, 0.0) * abs(wanted)


def single(number: float) -> float:
    """The number as an attribute holds it: in single precision."""
    return float(np.float32(number))


def is_single(number: float) -> bool:
    """Whether single precision has the number with all its digits: neither too large for it nor subnormal."""
    limits = np.finfo(np.float32)
    return number == 0 or float(limits.tiny) <= abs(number) <= float(limits.max)


def escaping(nodes: Iterable[ir.Node], root: ir.Node) -> ir.Value | None:
    """A value made inside a match, not by its root, that something outside reads or that leaves the graph."""
    inside = {*nodes, root}
    for node in inside - {root}:
        for value in node.outputs:
            if value.is_graph_output() or any(use.node not in inside for use in value.uses()):
                return value
    return None


def last_axes(axes: Sequence[int] | None, rank: int | None) -> int | None:
    """How many axes, where they are exactly the last ones; None where they are not, or the rank must be known."""
    if axes is None:
        return rank
    if rank is None and any(axis >= 0 for axis in axes):
        return None
    negative = {axis if axis < 0 else axis - (rank or 0) for axis in axes}
    return len(axes) if negative == set(range(-len(axes), 0)) and axes else None


def spread(constant: ir.TensorProtocol, sizes: Sequence[int]) -> np.ndarray | None:
    """A small constant repeated over exactly these sizes; None where it does not broadcast to them."""
    array = constant.numpy()
    while array.ndim > len(sizes) and array.shape[0] == 1:
        array = array[0]
    try:
        return np.ascontiguousarray(np.broadcast_to(array, tuple(sizes)))
    except ValueError:
        return None
