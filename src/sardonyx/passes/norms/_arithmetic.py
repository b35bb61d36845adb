"""Arithmetic in any form: operands in either order, scalars of any rank, powers and factors as any of their operators.

Each function answers one question about a value and returns the nodes it looked through, so that a match can list them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.expressions import Expression, reshape
from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import consumer_of, producer_of, value_and_factor, value_and_scalar
from sardonyx.passes._numbers import preserves_values

# What Clip and Relu compute, in the form of every opset, including the sign of zeros.
#
# The function is the one of the runtime: a missing bound is the largest finite number of the type, so that infinities
# are clipped too; if the bounds are reversed everything becomes the upper one. Whether -0.0 counts as less than 0.0, or
# as equal so that the input is returned, depends on the kernel. In single and double precision it also depends on the
# position of the element: full vectors of elements are compared one way, the remainder of a tensor the other. Every
# operator treats the same element the same way.

BOUNDS_AS_INPUTS = 11  # the first opset in which bounds are inputs
LARGEST: Mapping[ir.DataType, float] = MappingProxyType(
    {
        dtype: float(np.finfo(dtype.numpy()).max)
        for dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
    }
)


class Range(Struct, frozen=True):
    """The interval that values are clipped to."""

    low: float
    high: float

    def clipped(self, number: float, *, zeros_are_equal: bool) -> float:
        """Clip a number."""
        raised = self.low if _is_less(number, self.low, zeros_are_equal) else number
        return self.high if _is_less(self.high, raised, zeros_are_equal) else raised


def bounds(node: ir.Node, graph: Facts) -> Range | None:
    """Return the bounds of a Clip or Relu, from attributes or inputs, if they are constants other than NaN."""
    dtype = graph.dtype(node.inputs[0])
    if dtype is None or dtype not in LARGEST:
        return None
    if node.op_type == "Relu":
        return Range(0.0, math.inf)
    limits = [-LARGEST[dtype], LARGEST[dtype]]
    for place, name in enumerate(("min", "max")):
        value, attribute = operand(node, place + 1), node.attributes.get(name)
        if value is not None or attribute is not None:
            number = graph.scalar(value) if attribute is None else attribute.as_float()
            limits[place] = math.nan if number is None else float(number)
    return None if any(map(math.isnan, limits)) else Range(*limits)


def merged(first: ir.Node, second: ir.Node, graph: Facts) -> tuple[str, Range] | None:
    """Return one operator and its range that computes the same as two with constant bounds, or None if there is none.

    Both sides are piecewise constant or x, so it suffices to compare them at all bounds, both zeros, and between
    neighbours.
    """
    dtype, first_range, second_range = graph.dtype(first.inputs[0]), bounds(first, graph), bounds(second, graph)
    if first_range is None or second_range is None:
        return None
    steps = ((first.op_type, first_range), (second.op_type, second_range))
    low, high = (_applied(steps, end, dtype, False) for end in (-math.inf, math.inf))
    samples = tuple(_sample_points((first_range, second_range, Range(low, high))))
    for candidate in (*(step for step in steps if step[0] == "Relu"), ("Clip", Range(low, high))):
        if all(
            _identical(_applied(steps, number, dtype, equal), _applied((candidate,), number, dtype, equal))
            for number in samples
            for equal in (False, True)
        ):
            return candidate
    return None


def _applied(steps: Sequence[tuple[str, Range]], number: float, dtype: ir.DataType | None, equal: bool) -> float:
    """Apply the operators to a number; `equal` is whether zeros of both signs compare as equal."""
    for op_type, interval in steps:
        number = interval.clipped(number, zeros_are_equal=op_type == "Clip" if dtype == ir.DataType.FLOAT16 else equal)
    return number


def _is_less(left: float, right: float, zeros_are_equal: bool) -> bool:
    if left == right == 0 and not zeros_are_equal:
        return math.copysign(1.0, left) < math.copysign(1.0, right)
    return left < right


def _sample_points(ranges: Iterable[Range]) -> Iterator[float]:
    """Yield both zeros, all bounds, and a number between any two neighbours."""
    largest = LARGEST[ir.DataType.DOUBLE]
    fixed = (0.0, -math.inf, math.inf, -largest, largest)
    ends = sorted({*fixed, *(bound for interval in ranges for bound in (interval.low, interval.high))})
    yield -0.0
    yield from ends
    for low, high in itertools.pairwise(ends):
        if math.isfinite(low) and math.isfinite(high):
            yield low / 2 + high / 2


def _identical(left: float, right: float) -> bool:
    return left == right and math.copysign(1.0, left) == math.copysign(1.0, right)


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
_MAX_CONSTANT_ULPS = 2  # units in the last place by which a constant may differ from its mathematical value


class Term(Struct, frozen=True, eq=False):
    """A value as `factor * source`, and the nodes that multiply, in order."""

    source: ir.Value
    factor: float
    nodes: tuple[ir.Node, ...]


def factored(value: ir.Value, beside: ir.Node, graph: Facts) -> Iterator[Term]:
    """Yield the value, and what it was before each multiplication by a number."""
    term = Term(value, 1.0, ())
    yield term
    while (node := producer_of(term.source, beside, ("Mul", "Div"))) and (scaled := value_and_factor(node, graph)):
        term = Term(scaled[0], term.factor * scaled[1], (node, *term.nodes))
        yield term


def multiplied(term: Term, graph: Facts) -> Iterator[Term]:
    """Yield the term, and what it becomes by each following multiplication by a number."""
    yield term
    while (node := consumer_of(term.source, graph, ("Mul", "Div"))) and (scaled := value_and_factor(node, graph)):
        term = Term(node.outputs[0], term.factor * scaled[1], (*term.nodes, node))
        yield term


def power(node: ir.Node, graph: Facts) -> tuple[ir.Value, float] | None:
    """Return base and exponent of a power: x * x, Pow with a constant, Sqrt, Reciprocal, 1 / x."""
    base = operand(node, 0)
    match node.op_type:
        case "Mul" if base is not None and operand(node, 1) is base:
            return base, 2.0
        case "Sqrt" if base is not None:
            return base, 0.5
        case "Reciprocal" if base is not None:
            return base, -1.0
        case "Pow":
            return value_and_scalar(node, graph, 1)
        case "Div":
            operands = value_and_scalar(node, graph, 0)
            return (operands[0], -1.0) if operands is not None and operands[1] == 1 else None
        case _:
            return None


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
    return abs(number - wanted) <= _MAX_CONSTANT_ULPS * _PRECISION.get(dtype, 0.0) * abs(wanted)


def to_single(number: float) -> float:
    """Return the number in single precision, as an attribute stores it."""
    return float(np.float32(number))


def fits_single(number: float) -> bool:
    """Return whether the number is within the normal range of single precision."""
    limits = np.finfo(np.float32)
    return number == 0 or float(limits.tiny) <= abs(number) <= float(limits.max)


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
