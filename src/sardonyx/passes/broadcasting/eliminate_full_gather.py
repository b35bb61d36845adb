"""Gather(x, [0, 1, 2, …]) => x.

Also GatherND. Where the indices, however computed, are all rows of x in order, the result is x seen with other axes.
Refuses where that is not certain for every size. Helps because exporters write `mask[rows, columns]`, with all rows and
columns, as a flat index made of two ranges, a product and a sum, or as pairs of indices, each expanded to all pairs.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts, Shape
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.ir.shapes.expr import product
from sardonyx.passes._matching import maker, operand
from sardonyx.passes._pieces import is_last
from sardonyx.passes._sizes import inserted_axes
from sardonyx.passes._views import reshape_target
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.broadcasting._ramps import Ramp, flat_ramp, ramp_of
from sardonyx.records.run import Accuracy


class EliminateFullGather(NodePass):
    """Every row of a value, in order."""

    name = "eliminate-full-gather"
    accuracy = Accuracy.EXACT
    roots = ("Gather", "GatherND")
    needs = 13  # Unsqueeze with its axes as an input
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[B, S] x) => (float[B, 1, S] y)
            <int64[2] behind = {1, 2}, int64[1] flat = {-1}, int64[1] ends = {1}, int64 zero = {0}, int64 one = {1}> {
                a = Tanh(x)  f = Reshape(a, flat)
                s = Shape(x)  b = Gather(s, zero)  n = Gather(s, one)
                rows = Range(zero, b, one)  columns = Range(zero, n, one)
                r = Unsqueeze(rows, behind)  o = Mul(r, n)  i = Add(o, columns)  y = Gather(f, i)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[B, S] x) => (float[B, 1, S] y)
            <int64[2] behind = {1, 2}, int64[1] flat = {-1}, int64[1] ends = {1}, int64 zero = {0}, int64 one = {1}> {
                a = Tanh(x)
                s = Shape(x)  b = Gather(s, zero)  n = Gather(s, one)
                rows = Range(zero, b, one)  columns = Range(zero, n, one)
                r = Unsqueeze(rows, behind)  o = Mul(r, n)  i = Add(o, columns)  y = Unsqueeze(a, ends)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[S, 4] x, int64 n) => (float[M, 4] y) <int64 zero = {0}, int64 one = {1}> {
                a = Tanh(x)  rows = Range(zero, n, one)  y = Gather(a, rows)
            }
        """,
        refusal="not certainly all rows",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Indices that count up, as many as there are rows."""
        data = operand(node, 0)
        shape = graph.shape(data)
        ramp, axes = (None, 0) if not shape or data is None else _counted(node, shape, graph)
        count = None if ramp is None else ramp.counts
        if ramp is None or count is None or not ramp.shape or data is None or shape is None:
            return None
        if count != product(shape[:axes]):
            return Refused("not certainly all rows are gathered", (node,))
        view = maker(node, 0, VIEWS)
        result = (*ramp.shape, *shape[axes:])
        for source, nodes in ((None if view is None else operand(view, 0), (view, node)), (data, (node,))):
            how = _way(graph.shape(source), result)
            if source is not None and how is not None:
                kept = tuple(each for each in nodes if each is not None)
                return Match(kept, {"source": source, "how": how})
        return Refused("the shape of the result cannot be written down", (node,))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The rows with their axes."""
        operator, numbers = match.found["how"]
        source: ir.Value = match.found["source"]
        if operator == "Identity":
            return source
        return op.node(operator, (source, op.constant(np.array(numbers, np.int64), "axes")))[0]


def _counted(node: ir.Node, shape: Shape, graph: Facts) -> tuple[Ramp | None, int]:
    """The numbers of the rows that are gathered, where they rise evenly, and how many axes they count through."""
    indices = operand(node, 1)
    if node.op_type == "Gather":
        return (ramp_of(indices, graph) if node.attributes.get_int("axis", 0) in (0, -len(shape)) else None), 1
    together = maker(node, 1, ("Concat",))
    if together is None or node.attributes.get_int("batch_dims", 0):
        return None, 0
    if not is_last(together.attributes.get_int("axis", 0), indices, graph):
        return None, 0
    places = [ramp_of(each, graph) for each in together.inputs]
    known = [Ramp(each.shape[:-1], each.steps[:-1], each.start) for each in places if each and each.shape[-1:] == (1,)]
    return (flat_ramp(known, shape[: len(known)]) if len(known) == len(places) else None), len(known)


def _way(source: Shape | None, result: Shape) -> tuple[str, tuple[int, ...]] | None:
    """The one view that makes `result` of `source`: nothing, axes of one put in, or a Reshape."""
    if source is None:
        return None
    if source == result:
        return "Identity", ()
    axes = inserted_axes(source, result)
    if axes is not None:
        return "Unsqueeze", axes
    target = reshape_target(source, result)
    return None if target is None else ("Reshape", target)
