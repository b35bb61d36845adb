"""What Clip and Relu let through, in every opset's form, to the sign of a zero.

The function is the runtime's: a bound that is left out is the largest finite number of the type, so that an infinity
does not pass; with bounds the wrong way round everything becomes the upper one. Whether -0.0 is less than 0.0, or equal
so that the input comes out as it is, depends on the kernel. In single and double precision it depends on the element's
place too: vectors of elements are compared one way, the rest of a tensor the other. Each element then meets the same
way in every operator.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.passes._matching import operand

BOUNDS_AS_INPUTS = 11  # the opset
LARGEST: Mapping[ir.DataType, float] = MappingProxyType(
    {
        dtype: float(np.finfo(dtype.numpy()).max)
        for dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
    }
)


@dataclass(frozen=True, slots=True)
class Range:
    """From the lowest to the highest number."""

    low: float
    high: float

    def clipped(self, number: float, *, zeros_are_equal: bool) -> float:
        """What the operator makes of a number."""
        raised = self.low if _is_less(number, self.low, zeros_are_equal) else number
        return self.high if _is_less(self.high, raised, zeros_are_equal) else raised


def bounds(node: ir.Node, graph: Facts) -> Range | None:
    """The bounds of a Clip or Relu, attributes or inputs, where they are constants and numbers."""
    dtype = graph.dtype(node.inputs[0])
    if dtype is None or dtype not in LARGEST:
        return None
    if node.op_type == "Relu":
        return Range(0.0, math.inf)
    found = [-LARGEST[dtype], LARGEST[dtype]]
    for place, name in enumerate(("min", "max")):
        value, attribute = operand(node, place + 1), node.attributes.get(name)
        number = attribute.as_float() if attribute is not None else graph.scalar(value)
        if number is None and value is not None:
            return None
        found[place] = found[place] if number is None else float(number)
    return None if any(map(math.isnan, found)) else Range(*found)


def merged(first: ir.Node, second: ir.Node, graph: Facts) -> tuple[str, Range] | None:
    """The operator, and its range, that does the work of two with constant bounds; None where there is none."""
    dtype, one, two = graph.dtype(first.inputs[0]), bounds(first, graph), bounds(second, graph)
    if one is None or two is None:
        return None
    steps = ((first.op_type, one), (second.op_type, two))
    low, high = (_applied(steps, end, dtype, False) for end in (-math.inf, math.inf))
    telling = tuple(_telling((one, two, Range(low, high))))
    for found in (*(step for step in steps if step[0] == "Relu"), ("Clip", Range(low, high))):
        if all(
            _identical(_applied(steps, number, dtype, equal), _applied((found,), number, dtype, equal))
            for number in telling
            for equal in (False, True)
        ):
            return found
    return None


def _applied(steps: Sequence[tuple[str, Range]], number: float, dtype: ir.DataType | None, equal: bool) -> float:
    """What the operators make of a number, where zeros of both signs are equal to them or not."""
    for op_type, found in steps:
        number = found.clipped(number, zeros_are_equal=op_type == "Clip" if dtype == ir.DataType.FLOAT16 else equal)
    return number


def _is_less(one: float, other: float, zeros_are_equal: bool) -> bool:
    if one == other == 0 and not zeros_are_equal:
        return math.copysign(1.0, one) < math.copysign(1.0, other)
    return one < other


def _telling(ranges: Iterable[Range]) -> Iterator[float]:
    """Both zeros, all bounds, and a number between any two neighbours, where such a function is constant or x."""
    largest = LARGEST[ir.DataType.DOUBLE]
    fixed = (0.0, -math.inf, math.inf, -largest, largest)
    ends = sorted({*fixed, *(bound for each in ranges for bound in (each.low, each.high))})
    yield -0.0
    yield from ends
    for low, high in itertools.pairwise(ends):
        if math.isfinite(low) and math.isfinite(high):
            yield low / 2 + high / 2


def _identical(one: float, other: float) -> bool:
    return one == other and math.copysign(1.0, one) == math.copysign(1.0, other)
