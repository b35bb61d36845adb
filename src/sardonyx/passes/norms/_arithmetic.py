"""Arithmetic in any form: operands in either order, scalars of any rank, powers and factors as any of their operators.

Each function answers one question about a value and returns the nodes it looked through, so that a match can list them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.expressions import Expression, reshape
from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import is_used_outside, operand
from sardonyx.passes._dtypes import preserves_values
from sardonyx.passes._matching import producer_of

# The float types of the fused operators, widest last. Doubles are not among them, since those operators compute in
# single precision.
FUSED_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT)
_PRECISION: Mapping[ir.DataType | None, float] = MappingProxyType(
    {
        ir.DataType.DOUBLE: 2.0**-52,
        ir.DataType.FLOAT: 2.0**-23,
        ir.DataType.FLOAT16: 2.0**-10,
        ir.DataType.BFLOAT16: 2.0**-7,
    }
)
_ROUNDINGS = 2  # units in the last place by which a constant may differ from its mathematical value


class Term(Struct, frozen=True, eq=False):
    """A value as `factor * source`, and the nodes that multiply, last one first."""

    source: ir.Value
    factor: float
    nodes: tuple[ir.Node, ...]


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


def without_factors(value: ir.Value, beside: ir.Node, graph: Facts) -> Term:
    """Return the value without the scalar constants it is multiplied or divided by."""
    factor, nodes = 1.0, list[ir.Node]()
    while (node := producer_of(value, beside, ("Mul", "Div"))) is not None and (
        scaled := value_and_factor(node, graph)
    ) is not None:
        value, factor = scaled[0], factor * scaled[1]
        nodes.append(node)
    return Term(value, factor, tuple(nodes))


def raised(value: ir.Value | None, beside: ir.Node, graph: Facts) -> tuple[ir.Value, float, ir.Node] | None:
    """Return base, exponent and node of a power: x * x, Pow with a constant, Sqrt, Reciprocal, 1 / x."""
    node = producer_of(value, beside, ("Mul", "Pow", "Sqrt", "Reciprocal", "Div"))
    return None if node is None else power(node, graph)


def power(node: ir.Node, graph: Facts) -> tuple[ir.Value, float, ir.Node] | None:
    """Return the same as `raised`, for a node."""
    base = operand(node, 0)
    match node.op_type:
        case "Mul" if base is not None and operand(node, 1) is base:
            return base, 2.0, node
        case "Sqrt" if base is not None:
            return base, 0.5, node
        case "Reciprocal" if base is not None:
            return base, -1.0, node
        case "Pow":
            operands = value_and_scalar(node, graph, 1)
            return None if operands is None else (*operands, node)
        case "Div":
            operands = value_and_scalar(node, graph, 0)
            return (operands[0], -1.0, node) if operands is not None and operands[1] == 1 else None
        case _:
            return None


def squared(value: ir.Value | None, beside: ir.Node, graph: Facts) -> tuple[ir.Value, ir.Node] | None:
    """Return the value that is squared and the node that squares it."""
    base_power = raised(value, beside, graph)
    return (base_power[0], base_power[2]) if base_power is not None and base_power[1] == 2 else None


def uncast(value: ir.Value, beside: ir.Node, graph: Facts) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """Return the value before casts that preserve every value, and the casts, last one first."""
    casts: list[ir.Node] = []
    while (node := producer_of(value, beside, ("Cast",))) is not None and (source := node.inputs[0]) is not None:
        if not preserves_values(graph.dtype(source), node.attributes.get_int("to", 0)):
            break
        casts.append(node)
        value = source
    return value, tuple(casts)


def near(number: float, wanted: float, dtype: ir.DataType | None) -> bool:
    """Return whether a constant equals `wanted` within the precision of its type."""
    return abs(number - wanted) <= _ROUNDINGS * _PRECISION.get(dtype, 0.0) * abs(wanted)


def to_single(number: float) -> float:
    """Return the number in single precision, as an attribute stores it."""
    return float(np.float32(number))


def fits_single(number: float) -> bool:
    """Return whether the number is within the normal range of single precision."""
    limits = np.finfo(np.float32)
    return number == 0 or float(limits.tiny) <= abs(number) <= float(limits.max)


def escaping_value(nodes: Iterable[ir.Node], root: ir.Node) -> ir.Value | None:
    """Return a value produced inside a match, other than by its root, that is used outside of it; otherwise None."""
    inside = {*nodes, root}
    values = (value for node in inside - {root} for value in node.outputs)
    return next((value for value in values if is_used_outside(value, inside)), None)


def last_axes(axes: Sequence[int] | None, rank: int | None) -> int | None:
    """Return the number of axes if they are exactly the last ones, otherwise None."""
    if axes is None:
        return rank
    if rank is None and any(axis >= 0 for axis in axes):
        return None
    negative = {axis if axis < 0 else axis - (rank or 0) for axis in axes}
    return len(axes) if negative == set(range(-len(axes), 0)) and axes else None


def broadcast_constant(constant: ir.TensorProtocol, sizes: Sequence[int]) -> Expression | ir.TensorProtocol | None:
    """Return a small constant broadcast to exactly these sizes, or None if it does not fit."""
    own, wanted = constant.shape.numpy(), tuple(sizes)
    if own == wanted:
        return constant
    shape = own
    while len(shape) > len(wanted) and shape[0] == 1:
        shape = shape[1:]
    try:
        if np.broadcast_shapes(shape, wanted) != wanted:
            return None
    except ValueError:
        return None
    view = reshape(constant, shape)
    return view if shape == wanted else view.expanded(wanted)
