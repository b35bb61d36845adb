"""Cos(Concat(a, a)) => Concat(Cos(a), Cos(a)).

Also Sin, and what follows them, a Cast or a factor. Refuses where something else reads what these would double anew.
Helps because half as many angles are computed, and because rotations want one angle for each pair, which then stands
there.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes._matching import maker, operand
from sardonyx.passes._pieces import is_last
from sardonyx.passes.base import Example, NodePass
from sardonyx.records.run import Accuracy

_COSTLY = ("Cos", "Sin")


class SplitConcatTrig(NodePass):
    """Operations on every element of a value that holds another one twice."""

    name = "split-concat-trig"
    accuracy = Accuracy.REASSOCIATES  # a vector kernel rounds the angles at its end otherwise than those before
    roots = (*_COSTLY, "Cast", "Mul", "Div")
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 8] y) <float by = {1.5}> {
                a = Tanh(x)  b = Concat <axis = -1> (a, a)  c = Cos(b)  y = Mul(c, by)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 8] y) <float by = {1.5}> {
                a = Tanh(x)  c = Cos(a)  d = Mul(c, by)  y = Concat <axis = -1> (d, d)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 8] y, float[N, 8] b) <float by = {1.5}> {
                a = Tanh(x)  b = Concat <axis = -1> (a, a)  y = Mul(b, by)
            }
        """,
        refusal="the doubled value is read elsewhere",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """One of these on a value made of twins."""
        for index in range(len(node.inputs)):
            doubling = maker(node, index, ("Concat",))
            if doubling is None or not _twins(doubling, graph) or not _elementwise(node, index, graph):
                continue
            if node.op_type not in _COSTLY and graph.sole_user(doubling.outputs[0]) is not node:
                return Refused("the doubled value is read elsewhere", (doubling, node))
            return Match((doubling, node), {"index": index})
        return None

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The same on one of the twins, and double that."""
        doubling, node = match.nodes
        index: int = match.found["index"]
        inputs = (*node.inputs[:index], doubling.inputs[0], *node.inputs[index + 1 :])
        half = op.like(node, inputs)
        return op.like(doubling, (half, half))


def _twins(node: ir.Node, graph: Facts) -> bool:
    """Whether it puts a value beside itself along the last axis."""
    if len(node.inputs) != 2 or node.inputs[0] is not node.inputs[1]:
        return False
    return is_last(node.attributes.get_int("axis", 0), node.outputs[0], graph)


def _elementwise(node: ir.Node, index: int, graph: Facts) -> bool:
    """Whether the node treats every element of this input alike."""
    if node.op_type not in ("Mul", "Div"):
        return index == 0
    other = operand(node, 1 - index)
    return graph.scalar(other) is not None and graph.same_shape(node.inputs[index], node.outputs[0])
