"""Add(x, Gather(table, [k, k, …])) => Add(x, table[k]).

For every operator that broadcasts, if all indices are the same number, however they were expanded, sliced or gathered.
Refuses if the result would have another shape. Helps because models without segment ids look up segment zero for every
token.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import BROADCASTS, MOVES_DATA
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import fits_without, require, required, with_operand
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, PairPass, Replacement

_MAX_DEPTH = 16


class FoldRepeatedGather(PairPass):
    """The same row of a table for every element."""

    accuracy = Accuracy.EXACT
    roots = tuple(sorted(BROADCASTS))
    inner = ("Gather",)
    opset = 8
    example = Example(
        before="""
            (float[B, S, 2] x, int64[B, S] at) => (float[B, S, 2] y)
            <float[3, 2] table = {1, 2, 3, 4, 5, 6}, int64[1, 4] ones = {1, 1, 1, 1}, int64[1] four = {4}> {
                s = Shape(x)  n = Shape <start = 0, end = 1> (x)  t = Concat <axis = 0> (n, four)
                e = Expand(ones, t)  i = GatherElements <axis = 1> (e, at)  r = Gather(table, i)
                y = Add(x, r)
            }
        """,
        after="""
            <
                float[3, 2] table = {1, 2, 3, 4, 5, 6}, int64[1, 4] ones = {1, 1, 1, 1}, int64[1] four = {4},
                int64 row = {1}
            > {
                s = Shape(x)  n = Shape <start = 0, end = 1> (x)  t = Concat <axis = 0> (n, four)
                e = Expand(ones, t)  i = GatherElements <axis = 1> (e, at)  r = Gather(table, row)
                y = Add(x, r)
            }
        """,
        near_miss="""
            (float[2] x, int64[2] shape) => (float[B, S, 2] y) <
                float[3, 2] table = {1, 2, 3, 4, 5, 6}, int64[1] one = {1}
            > { i = Expand(one, shape)  r = Gather(table, i)  y = Add(x, r) }
        """,
        refusal="another shape",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        table, indices = inner.inputs
        count, *row_shape = required(graph.shape(table) or None)
        require(inner.attributes.get_int("axis", 0) in (0, -1 - len(row_shape)) and graph.rank(indices) != 0)
        row = required(_only_number(indices, graph))
        require(isinstance(count, int) and 0 <= row < count)
        require(fits_without(node, index, tuple(row_shape), graph), "the result would have another shape")

        def build(op: Builder) -> Replacement:
            once = op.like(inner, (table, op.constant(np.array(row, np.int64), "row")))
            return op.like(node, with_operand(node, index, once))

        return Match((inner, node), build=build)


def _only_number(value: ir.Value | None, graph: Facts, depth: int = _MAX_DEPTH) -> int | None:
    """Return the integer that all elements of a value are, or None if they may differ."""
    table = graph.array(value)
    if table is not None:
        same = table.size and table.dtype.kind in "iu" and (table == table.flat[0]).all()
        return int(cast("np.integer", table.flat[0])) if same else None
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type not in MOVES_DATA or depth == 0:
        return None
    return _only_number(operand(node, 0), graph, depth - 1)
