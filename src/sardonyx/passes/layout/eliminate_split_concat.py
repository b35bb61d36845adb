"""Concat(Split(x)) => x.

For all parts in order, along the axis of the Split. Refuses if a part is missing, repeated or out of order. Helps
because neither node then copies anything.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._matching import operand_producer
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, Refused


class EliminateSplitConcat(NodePass):
    """Parts of a Split that are concatenated again."""

    name = "eliminate-split-concat"
    accuracy = Accuracy.EXACT
    roots = ("Concat",)
    opset = 4  # before, the axis of Concat was optional
    example = Example(
        before="""
            agraph (float[N, M] x) => (float[N, M] y) {
                a = Neg(x)  b, c = Split <axis = 1, num_outputs = 2> (a)  d = Concat <axis = -1> (b, c)  y = Abs(d)
            }
        """,
        after="agraph (float[N, M] x) => (float[N, M] y) { a = Neg(x)  y = Abs(a) }",
        near_miss="""
            agraph (float[N, M] x) => (float[N, M] y) {
                b, c = Split <axis = 1, num_outputs = 2> (x)  d = Concat <axis = 1> (c, b)  y = Abs(d)
            }
        """,
        refusal="all parts in order",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        split = operand_producer(node, 0, ("Split",))
        rank = None if split is None else graph.rank(split.inputs[0])
        if split is None or rank is None or any(value not in split.outputs for value in node.inputs):
            return None
        nodes = (split, node)
        if tuple(node.inputs) != tuple(split.outputs):
            return Refused("it does not concatenate all parts in order", nodes)
        if node.attributes.get_int("axis", 0) % rank != split.attributes.get_int("axis", 0) % rank:
            return Refused("the Split is along another axis", nodes)
        return Match(nodes, build=lambda _: split.inputs[:1])
