"""The shape that operands broadcast to."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.ir.facts import Dim, Facts, Shape
from sardonyx.ir.shapes.expr import broadcast


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape that operands of these shapes have together."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Dim] = []
    for axis in range(-rank, 0):
        dim: Dim = 1
        for shape in shapes:
            dim = broadcast(dim, shape[axis]) if -axis <= len(shape) else dim
        result.append(dim)
    return tuple(result)


def fits_without(node: ir.Node, index: int, shape: Shape, graph: Facts) -> bool:
    """Whether the result certainly has the same shape where one operand had this shape instead of its own."""
    shapes = [shape if at == index else graph.shape(value) for at, value in enumerate(node.inputs)]
    known = [each for each in shapes if each is not None]
    return len(known) == len(shapes) and broadcast_shape(known) == graph.shape(node.outputs[0])
