"""What Clip and Relu compute, in the form of every opset, including the sign of zeros.

The function is the one of the runtime: a missing bound is the largest finite number of the type, so that infinities are
clipped too; if the bounds are reversed everything becomes the upper one. Whether -0.0 counts as less than 0.0, or as
equal so that the input is returned, depends on the kernel. In single and double precision it also depends on the
position of the element: full vectors of elements are compared one way, the remainder of a tensor the other. Every
operator treats the same element the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import operand

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
        number = attribute.as_float() if attribute is not None else graph.scalar(value)
        if number is None and value is not None:
            return None
        limits[place] = limits[place] if number is None else float(number)
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
