"""RotaryEmbedding(s * x) => s * RotaryEmbedding(x).

For a finite number s in single precision; in half precision the rotation could overflow before it is scaled. Refuses if
the scaled value is read elsewhere. Helps because attention has a scale attribute and takes over a scale that is right
before it.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.passes._matching import operand_producer, with_operand
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement


class SinkRotaryScale(NodePass):
    """A scale before a rotation, of all or a part of each head."""

    name = "sink-rotary-scale"
    accuracy = Accuracy.REASSOCIATES
    roots = ("RotaryEmbedding",)
    opset = 23
    needs = 23
    example = Example(
        before="""
            agraph (float[B, 2, S, 8] x, float[B, S, 4] c, float[B, S, 4] s) => (float[B, 2, S, 8] y)
            <float by = {0.125}> { a = Mul(x, by)  y = RotaryEmbedding(a, c, s) }
        """,
        after="""
            agraph (float[B, 2, S, 8] x, float[B, S, 4] c, float[B, S, 4] s) => (float[B, 2, S, 8] y)
            <float by = {0.125}> { a = RotaryEmbedding(x, c, s)  y = Mul(a, by) }
        """,
        near_miss="""
            agraph (float[B, 2, S, 8] x, float[B, S, 4] c, float[B, S, 4] s)
                => (float[B, 2, S, 8] y, float[B, 2, S, 8] a)
            <float by = {0.125}> { a = Mul(x, by)  y = RotaryEmbedding(a, c, s) }
        """,
        refusal="the scaled value is read elsewhere",
        opset=23,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        scaling = operand_producer(node, 0, ("Mul", "Div"))
        if scaling is None or graph.dtype(node.outputs[0]) != ir.DataType.FLOAT:
            return None
        sides = (0, 1) if scaling.op_type == "Mul" else (1,)
        side = next((side for side in sides if _is_scale(scaling, side, graph)), None)
        if side is None:
            return None
        if graph.sole_consumer(scaling.outputs[0]) is not node:
            return Refused("the scaled value is read elsewhere", (scaling, node))

        def build(op: Builder) -> Replacement:
            """Rotate, then scale."""
            rotated = op.like(node, with_operand(node, 0, scaling.inputs[1 - side]))
            return op.like(scaling, with_operand(scaling, 1 - side, rotated))

        return Match((scaling, node), build=build)


def _is_scale(node: ir.Node, side: int, graph: Facts) -> bool:
    """Return whether the operand on a side is a finite number that does not change the shape of the other one."""
    number = graph.scalar(node.inputs[side])
    return number is not None and math.isfinite(number) and graph.same_shape(node.inputs[1 - side], node.outputs[0])
