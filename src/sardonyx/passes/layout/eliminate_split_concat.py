"""Concat(Split(x)) => x.

For all parts in order, along the axis of the Split. Refuses if a part is missing, repeated or out of order. Helps
because neither node then copies anything.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass, require, required


class EliminateSplitConcat(PairPass):
    """Parts of a Split that are concatenated again."""

    accuracy = Accuracy.EXACT
    roots = ("Concat",)
    inner, operand = ("Split",), 0
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

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        rank = required(graph.rank(inner.inputs[0]))
        require(all(value in inner.outputs for value in node.inputs))
        require(tuple(node.inputs) == tuple(inner.outputs), "it does not concatenate all parts in order")
        first, second = (each.attributes.get_int("axis", 0) % rank for each in (inner, node))
        require(first == second, "the Split is along another axis")
        return Match((inner, node), build=lambda _: inner.inputs[:1])
