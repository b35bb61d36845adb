"""Cos(Concat(a, a)) => Concat(Cos(a), Cos(a)).

Also Sin, and a following Cast or factor. Refuses if the concatenated value is read elsewhere, since it would be
computed twice. Helps because half as many angles are computed, and because RotaryEmbedding takes one angle per pair,
which is then available.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._matching import require, with_operand
from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass

_COSTLY = ("Cos", "Sin")


class SplitConcatTrig(PairPass):
    """Elementwise operations on a value concatenated with itself."""

    accuracy = Accuracy.REASSOCIATES  # vector kernels round the elements at the end of a tensor differently
    roots = (*_COSTLY, "Cast", "Mul", "Div")
    inner = ("Concat",)
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

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        require(len(inner.inputs) == 2 and inner.inputs[0] is inner.inputs[1])
        if node.op_type in ("Mul", "Div"):  # by a number
            require(graph.scalar(node.inputs[1 - index]) is not None)
            require(graph.same_shape(node.inputs[index], node.outputs[0]))
        is_sole = node.op_type in _COSTLY or graph.sole_consumer(inner.outputs[0]) is node
        require(is_sole, "the doubled value is read elsewhere")
        inputs = with_operand(node, index, inner.inputs[0])
        return Match((inner, node), build=lambda op: op.like(inner, (op.like(node, inputs),) * 2))
