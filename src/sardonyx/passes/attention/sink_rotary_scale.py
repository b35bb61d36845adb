"""RotaryEmbedding(s * x) => s * RotaryEmbedding(x).

For a finite number s in single precision; in half precision the rotation could overflow before it is scaled. Refuses if
the scaled value is read elsewhere. Helps because attention has a scale attribute and takes over a scale that is right
before it.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.passes._matching import require, required, value_and_scalar, with_operand
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, PairPass, Replacement


class SinkRotaryScale(PairPass):
    """A scale before a rotation, of all or a part of each head."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("RotaryEmbedding",)
    inner, operand = ("Mul", "Div"), 0
    read_elsewhere = "the scaled value is read elsewhere"
    opset = 23
    needs = 23
    example = Example(
        before="""
            (float[B, 2, S, 8] x, float[B, S, 4] c, float[B, S, 4] s) => (float[B, 2, S, 8] y)
            <float by = {0.125}> { a = Mul(x, by)  y = RotaryEmbedding(a, c, s) }
        """,
        after="{ a = RotaryEmbedding(x, c, s)  y = Mul(a, by) }",
        near_miss="""
            (float[B, 2, S, 8] x, float[B, S, 4] c, float[B, S, 4] s) => (float[B, 2, S, 8] y, float[B, 2, S, 8] a)
            <float by = {0.125}> { a = Mul(x, by)  y = RotaryEmbedding(a, c, s) }
        """,
        refusal="the scaled value is read elsewhere",
        opset=23,
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        require(graph.dtype(node.outputs[0]) == ir.DataType.FLOAT)
        states, number = required(value_and_scalar(inner, graph, *((0, 1) if inner.op_type == "Mul" else (1,))))
        require(math.isfinite(number))

        def build(op: Builder) -> Replacement:
            rotated = op.like(node, with_operand(node, 0, states))
            return op.like(inner, with_operand(inner, inner.inputs.index(states), rotated))

        return Match((inner, node), build=build)
