"""What Clip and Relu let through, in every opset's spelling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.graph.facts import Facts
from sardonyx.passes.shared.matching import operand


@dataclass(frozen=True, slots=True)
class Range:
    """From the lowest to the highest number."""

    low: float
    high: float

    def clipped(self, number: float) -> float:
        """The nearest number in the range."""
        return min(max(number, self.low), self.high)


def bounds(node: ir.Node, graph: Facts) -> Range | None:
    """The bounds of a Clip or Relu, attributes or inputs, where they are constants and numbers."""
    if node.op_type == "Relu":
        return Range(0.0, math.inf)
    found = [-math.inf, math.inf]
    for place, name in enumerate(("min", "max")):
        value, attribute = operand(node, place + 1), node.attributes.get(name)
        number = attribute.as_float() if attribute is not None else graph.scalar(value)
        if number is None and value is not None:
            return None
        found[place] = found[place] if number is None else float(number)
    return None if any(map(math.isnan, found)) else Range(*found)
