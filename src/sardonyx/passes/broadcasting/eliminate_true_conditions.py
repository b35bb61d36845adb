"""And(x, true) => x.

Also Or(x, false). A condition that is always true is a constant or follows from the numbers compared: positions are
never negative. If the condition gave the result its shape, x is expanded instead. Refuses if that shape is not
available elsewhere. Helps because models with bidirectional attention build their masks as if they were causal, with a
condition for every pair of positions.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Shape
from sardonyx.ir.ops import ORDERS
from sardonyx.ir.scopes import operand
from sardonyx.ir.shapes.expr import at_least, subtract
from sardonyx.passes._matching import holder_of, require, required, size_of
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, OperandPass, Replacement
from sardonyx.passes.broadcasting._ramps import ramp_of

_MAX_CONDITION_BYTES = 1 << 24  # of a constant condition that is read


class EliminateTrueConditions(OperandPass):
    """Conditions that change nothing."""

    accuracy = Accuracy.EXACT
    roots = ("And", "Or")
    opset = 7
    needs = 15  # Shape with a start and an end
    example = Example(
        before="""
            (bool[B, S] x) => (bool[B, S] y) <int64 zero = {0}, int64 one = {1}> {
                a = Not(x)  s = Shape(x)  n = Gather(s, one)  at = Range(zero, n, one)
                c = GreaterOrEqual(at, zero)  y = And(c, a)
            }
        """,
        after="""
            { y = Not(x)  s = Shape(x)  n = Gather(s, one)  at = Range(zero, n, one)  c = GreaterOrEqual(at, zero) }
        """,
        near_miss="""{
            a = Not(x)  s = Shape(x)  n = Gather(s, one)  at = Range(zero, n, one)
            c = GreaterOrEqual(at, one)  y = And(c, a)
        }""",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match:
        require(always(operand(node, index), graph) is (node.op_type == "And"))
        other = required(node.inputs[1 - index])
        goal = _goal(required(graph.shape(other)), required(graph.shape(node.outputs[0])))
        holders = (*graph.scope(node).graph.inputs, other)
        available = all(isinstance(dim, int) or holder_of(dim, holders, graph) is not None for dim in goal)
        require(available, "the shape of the result is not available without the condition", node)

        def build(op: Builder) -> Replacement:
            if not goal:
                return other
            if all(isinstance(dim, int) for dim in goal):
                return op.Expand(other, op.constant(np.array(goal, np.int64), "target"))
            parts = [size_of(dim, (other,), op, graph) for dim in goal]
            return op.Expand(other, op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0])

        return Match((node,), build=build)


def always(value: ir.Value | None, graph: Facts) -> bool | None:
    """Return the truth value that all elements of a value certainly have, or None if they may differ."""
    table = graph.array(value, _MAX_CONDITION_BYTES)
    if table is not None:
        return bool(table.flat[0]) if table.size and (table == table.flat[0]).all() else None
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type not in ORDERS:
        return None
    larger, smaller = (ramp_of(value, graph) for value in node.inputs)
    if node.op_type.startswith("Less"):
        larger, smaller = smaller, larger
    least, most = larger and larger.least, smaller and smaller.most
    if least is None or most is None:
        return None
    margin = 0 if node.op_type.endswith("Equal") else 1
    return True if at_least(subtract(least, most), margin) else None


def _goal(shape: Shape, result: Shape) -> Shape:
    """Return the shortest target of an Expand that turns `shape` into `result`, empty if none is needed."""
    padded = (1,) * (len(result) - len(shape)) + shape
    goal = tuple(1 if own == wanted else wanted for own, wanted in zip(padded, result, strict=True))
    if len(result) > len(shape):
        return goal
    first = next((axis for axis, dim in enumerate(goal) if dim != 1), len(goal))
    return goal[first:]
