"""Cos(Concat(a, a)) => Concat(Cos(a), Cos(a)).

Also Sin, and a following Cast or factor. Refuses if the concatenated value is read elsewhere, since it would be
computed twice. Helps because half as many angles are computed, and because RotaryEmbedding takes one angle per pair,
which is then available.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import operand_producer, with_operand
from sardonyx.passes.base import Accuracy, Example, Facts, Match, OperandPass, Refused

_COSTLY = ("Cos", "Sin")


class SplitConcatTrig(OperandPass):
    """Elementwise operations on a value concatenated with itself."""

    name = "split-concat-trig"
    accuracy = Accuracy.REASSOCIATES  # vector kernels round the elements at the end of a tensor differently
    roots = (*_COSTLY, "Cast", "Mul", "Div")
    example = Example(
        before="""
            agraph (float[N, 4] x) => (float[N, 8] y) <float by = {1.5}> {
                a = Tanh(x)  b = Concat <axis = -1> (a, a)  c = Cos(b)  y = Mul(c, by)
            }
        """,
        after="""
            agraph (float[N, 4] x) => (float[N, 8] y) <float by = {1.5}> {
                a = Tanh(x)  c = Cos(a)  d = Mul(c, by)  y = Concat <axis = -1> (d, d)
            }
        """,
        near_miss="""
            agraph (float[N, 4] x) => (float[N, 8] y, float[N, 8] b) <float by = {1.5}> {
                a = Tanh(x)  b = Concat <axis = -1> (a, a)  y = Mul(b, by)
            }
        """,
        refusal="the doubled value is read elsewhere",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match | Refused | None:
        doubling = operand_producer(node, index, ("Concat",))
        if doubling is None or len(doubling.inputs) != 2 or doubling.inputs[0] is not doubling.inputs[1]:
            return None
        if not _elementwise(node, index, graph):
            return None
        if node.op_type not in _COSTLY and graph.sole_consumer(doubling.outputs[0]) is not node:
            return Refused("the doubled value is read elsewhere", (doubling, node))
        inputs = with_operand(node, index, doubling.inputs[0])
        return Match((doubling, node), build=lambda op: op.like(doubling, (op.like(node, inputs),) * 2))


def _elementwise(node: ir.Node, index: int, graph: Facts) -> bool:
    """Return whether the node treats every element of this input alike."""
    if node.op_type not in ("Mul", "Div"):
        return index == 0
    other = operand(node, 1 - index)
    return graph.scalar(other) is not None and graph.same_shape(node.inputs[index], node.outputs[0])
