"""Transpose(Transpose(x, p), q) => Transpose(x, p[q]).

Two that cancel are removed. Refuses if the value in between is read elsewhere, since then nothing would be saved. Helps
because every Transpose copies its whole input.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import operand_producer, permutation, reversed_axes
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, Refused


class MergeTransposes(NodePass):
    """Two consecutive Transposes."""

    name = "merge-transposes"
    accuracy = Accuracy.EXACT
    roots = ("Transpose",)
    example = Example(
        before="""
            agraph (float[N, 3, 4] x) => (float[4, 3, N] y) {
                a = Transpose <perm = [0, 2, 1]> (x)  y = Transpose <perm = [1, 2, 0]> (a)
            }
        """,
        after="agraph (float[N, 3, 4] x) => (float[4, 3, N] y) { y = Transpose <perm = [2, 1, 0]> (x) }",
        near_miss="""
            agraph (float[N, 3, 4] x) => (float[4, 3, N] y, float[N, 4, 3] z) {
                a = Transpose <perm = [0, 2, 1]> (x)  y = Transpose <perm = [1, 2, 0]> (a)  z = Neg(a)
            }
        """,
        refusal="read elsewhere",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        inner = operand_producer(node, 0, ("Transpose",))
        source = None if inner is None else operand(inner, 0)
        if inner is None or source is None:
            return None
        nodes = (inner, node)
        first, second = permutation(inner, graph), permutation(node, graph)
        if first is None and second is None and "perm" not in inner.attributes and "perm" not in node.attributes:
            return Match(nodes, build=lambda _: source)  # both reverse the axes, whatever the rank
        rank = len(first or second or ())
        first, second = first or reversed_axes(rank), second or reversed_axes(rank)
        if len(first) != len(second):
            return None  # no rank fits both
        perm = tuple(first[axis] for axis in second)
        if perm == tuple(range(rank)):
            return Match(nodes, build=lambda _: source)
        if graph.sole_consumer(inner.outputs[0]) is not node:
            return Refused("the value in between is read elsewhere", nodes)
        return Match(nodes, build=lambda op: op.Transpose(source, perm=perm))
