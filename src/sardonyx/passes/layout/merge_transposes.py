"""Transpose(Transpose(x, p), q) => Transpose(x, p[q]).

Two that cancel are removed. Refuses if the value in between is read elsewhere, since then nothing would be saved. Helps
because every Transpose copies its whole input.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._matching import permutation, require, require_sole, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass


class MergeTransposes(PairPass):
    """Two consecutive Transposes."""

    accuracy = Accuracy.EXACT
    roots = inner = ("Transpose",)
    example = Example(
        before="""
            (float[N, 3, 4] x) => (float[4, 3, N] y)
            { a = Transpose <perm = [0, 2, 1]> (x)  y = Transpose <perm = [1, 2, 0]> (a) }
        """,
        after="{ y = Transpose <perm = [2, 1, 0]> (x) }",
        near_miss="""
            (float[N, 3, 4] x) => (float[4, 3, N] y, float[N, 4, 3] z)
            { a = Transpose <perm = [0, 2, 1]> (x)  y = Transpose <perm = [1, 2, 0]> (a)  z = Neg(a) }
        """,
        refusal="read elsewhere",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        source, nodes = required(inner.inputs[0]), (inner, node)
        first, second = permutation(inner, graph), permutation(node, graph)
        rank = len(first or second or ())
        # Without a known rank both reverse the axes, whatever the rank.
        first, second = first or tuple(range(rank))[::-1], second or tuple(range(rank))[::-1]
        require(len(first) == len(second))  # otherwise no rank fits both
        perm = tuple(first[axis] for axis in second)
        if perm == tuple(range(rank)):
            return Match(nodes, build=lambda _: source)
        require_sole(node, inner, graph, "the value in between is read elsewhere")
        return Match(nodes, build=lambda op: op.Transpose(source, perm=perm))
