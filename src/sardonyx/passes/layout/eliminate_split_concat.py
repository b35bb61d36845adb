"""Concat(Split(x)) => x.

For all parts in order, along the axis of the Split. Refuses if a part is missing, repeated or out of order. Helps
because neither node then copies anything.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._matching import operand_producer, require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass


class EliminateSplitConcat(NodePass):
    """Parts of a Split that are concatenated again."""

    accuracy = Accuracy.EXACT
    roots = ("Concat",)
    opset = 4  # before, the axis of Concat was optional
    example = Example(
        before="""
            (float[N, M] x) => (float[N, M] y)
            { a = Neg(x)  b, c = Split <axis = 1, num_outputs = 2> (a)  d = Concat <axis = -1> (b, c)  y = Abs(d) }
        """,
        after="{ a = Neg(x)  y = Abs(a) }",
        near_miss="{ b, c = Split <axis = 1, num_outputs = 2> (x)  d = Concat <axis = 1> (c, b)  y = Abs(d) }",
        refusal="all parts in order",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        split = required(operand_producer(node, 0, ("Split",)))
        rank = required(graph.rank(split.inputs[0]))
        require(all(value in split.outputs for value in node.inputs))
        is_whole = tuple(node.inputs) == tuple(split.outputs)
        require(is_whole, "it does not concatenate all parts in order", split, node)
        is_same = node.attributes.get_int("axis", 0) % rank == split.attributes.get_int("axis", 0) % rank
        require(is_same, "the Split is along another axis", split, node)
        return Match((split, node), build=lambda _: split.inputs[:1])
