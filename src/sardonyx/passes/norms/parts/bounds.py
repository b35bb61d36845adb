"""What Clip and Relu let through, in every opset's form, to the sign of a zero.

The function is the runtime's: a bound that is left out is the largest finite number of the type, so that an infinity
does not pass; with bounds the wrong way round everything becomes the upper one. To Relu, and to Clip in single and
double precision, -0.0 is less than 0.0; to Clip in half precision they are equal, and the input comes out as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from sardonyx.graph.facts import Facts
from sardonyx.passes.shared.matching import operand

BOUNDS_AS_INPUTS = 11  # the opset
LARGEST: Mapping[ir.DataType, float] = MappingProxyType(
    {
        dtype: float(np.finfo(dtype.numpy()).max)
        for dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
    }
)


@dataclass(frozen=True, slots=True)
class Range:
    """From the lowest to the highest number; `zeros_are_equal` where the sign of a zero decides nothing."""

    low: float
    high: float
    zeros_are_equal: bool = False

    def clipped(self, number: float) -> float:
        """What the operator makes of a number."""
        raised = self.low if self._is_less(number, self.low) else number
        return self.high if self._is_less(self.high, raised) else raised

    def _is_less(self, one: float, other: float) -> bool:
        if one == other == 0 and not self.zeros_are_equal:
            return math.copysign(1.0, one) < math.copysign(1.0, other)
        return one < other


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
    return None if any(map(math.isnan, found)) else Range(*found, zeros_are_equal=dtype == ir.DataType.FLOAT16)


def alike(one: Callable[[float], float], other: Callable[[float], float], ranges: Iterable[Range]) -> bool:
    """Whether two functions made of these ranges are the same one, zeros of both signs told apart.

    Between two neighbouring bounds such a function is constant or gives its input, so one number from there is enough.
    """
    return all(_identical(one(number), other(number)) for number in _telling(ranges))


def _telling(ranges: Iterable[Range]) -> Iterator[float]:
    """Both zeros, all bounds, and a number between any two neighbours."""
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
