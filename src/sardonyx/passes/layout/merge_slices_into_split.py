"""Slice(x, 0, a), Slice(x, a, end) => Split(x).

For Slices of one value along one axis that together cover it, each element once. Refuses if a range is computed, the
size of the axis is dynamic, or parts overlap or are missing. Helps because one node then produces all parts, and other
passes see that they belong together.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operator
from sardonyx.passes._matching import require, required
from sardonyx.passes._parts import Piece, piece_of, split_into
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass

MAX_CONSUMERS = 64  # consumers of a value that are considered


class MergeSlicesIntoSplit(NodePass):
    """Slices that together are all of a value."""

    accuracy = Accuracy.EXACT
    roots = ("Slice",)
    opset = 10  # before, ranges were attributes
    example = Example(
        before="""
            (float[N, 6] x) => (float[N, 2] y, float[N, 4] z) <
                int64[1] zero = {0}, int64[1] two = {2}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}
            > { b = Slice(x, two, end, last)  a = Slice(x, zero, two, last)  y = Neg(a)  z = Abs(b) }
        """,
        after="<int64[2] sizes = {2, 4}> { a, b = Split <axis = 1> (x, sizes)  y = Neg(a)  z = Abs(b) }",
        near_miss="""
            (float[N, 6] x) => (float[N, 3] y, float[N, 4] z) <
                int64[1] zero = {0}, int64[1] two = {2}, int64[1] three = {3}, int64[1] six = {6}, int64[1] one = {1}
            > { a = Slice(x, zero, three, one)  b = Slice(x, two, six, one)  y = Neg(a)  z = Abs(b) }
        """,
        refusal="do not cover",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        own = required(_piece(node, graph))
        source, axis = own.source, own.axis
        require(own.positions.start == 0 and len(source.uses()) <= MAX_CONSUMERS)
        users = [user for user in dict.fromkeys(use.node for use in source.uses()) if user.graph is node.graph]
        found = (_piece(user, graph) for user in users if operator(user) == "Slice")
        pieces = [piece for piece in found if piece and piece.axis == axis and piece.source is source]
        require(len(pieces) > 1)
        pieces.sort(key=lambda piece: (piece.positions.start, piece.positions.stop))
        ranges, order = [piece.positions for piece in pieces], tuple(piece.node for piece in pieces)
        is_cover = [*(part.start for part in ranges), own.size] == [0, *(part.stop for part in ranges)]
        require(is_cover, "the slices do not cover the axis exactly once", *order)
        first, sizes = graph.first(order), list(map(len, ranges))
        nodes = (*(each for each in order if each is not first), first)
        outputs = tuple(each.outputs[0] for each in order)
        return Match(nodes, outputs=outputs, build=lambda op: split_into(source, axis, sizes, op))


def _piece(node: ir.Node, graph: Facts) -> Piece | None:
    """Return the adjacent elements that a Slice takes, or None if that is uncertain."""
    piece = piece_of(node.outputs[0], graph)
    return piece if piece is not None and piece.positions.step == 1 and len(piece.positions) else None
