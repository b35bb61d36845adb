"""Cos(Concat(a, a)) => Concat(Cos(a), Cos(a)).

Also Sin, and a following Cast or factor. Refuses if the concatenated value is read elsewhere, since it would be
computed twice. Helps because half as many angles are computed, and because RotaryEmbedding takes one angle per pair,
which is then available.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._matching import operand_producer, require, required, with_operand
from sardonyx.passes.base import Accuracy, Example, Facts, Match, OperandPass

_COSTLY = ("Cos", "Sin")


class SplitConcatTrig(OperandPass):
    """Elementwise operations on a value concatenated with itself."""

    accuracy = Accuracy.REASSOCIATES  # vector kernels round the elements at the end of a tensor differently
    roots = (*_COSTLY, "Cast", "Mul", "Div")
    example = Example(
        before="""
            (float[N, 4] x) => (float[N, 8] y)
            <float by = {1.5}> { a = Tanh(x)  b = Concat <axis = -1> (a, a)  c = Cos(b)  y = Mul(c, by) }
        """,
        after="{ a = Tanh(x)  c = Cos(a)  d = Mul(c, by)  y = Concat <axis = -1> (d, d) }",
        near_miss="""
            (float[N, 4] x) => (float[N, 8] y, float[N, 8] b)
            <float by = {1.5}> { a = Tanh(x)  b = Concat <axis = -1> (a, a)  y = Mul(b, by) }
        """,
        refusal="the doubled value is read elsewhere",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match:
        doubling = required(operand_producer(node, index, ("Concat",)))
        require(len(doubling.inputs) == 2 and doubling.inputs[0] is doubling.inputs[1])
        if node.op_type in ("Mul", "Div"):  # by a number
            require(graph.scalar(node.inputs[1 - index]) is not None)
            require(graph.same_shape(node.inputs[index], node.outputs[0]))
        is_sole = node.op_type in _COSTLY or graph.sole_consumer(doubling.outputs[0]) is node
        require(is_sole, "the doubled value is read elsewhere", doubling, node)
        inputs = with_operand(node, index, doubling.inputs[0])
        return Match((doubling, node), build=lambda op: op.like(doubling, (op.like(node, inputs),) * 2))
