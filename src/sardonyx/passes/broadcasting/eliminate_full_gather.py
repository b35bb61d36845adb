"""Gather(x, [0, 1, 2, …]) => x.

Also GatherND. If the indices, however computed, are all rows of x in order, the result is a view of x; if they are all
rows and a range of columns, it is a Gather of these columns (which rejects a column that x does not have even if there
are no rows). Refuses if that is not certain for every size. Helps because exporters write `mask[rows, columns]` as a
flat index computed from two ranges, a product and a sum, or as pairs of indices, each expanded to all pairs.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Shape
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.scopes import operand, operator
from sardonyx.ir.shapes.expr import product
from sardonyx.passes._matching import inserted_axes, operand_producer, reshape_target
from sardonyx.passes._parts import is_last
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement
from sardonyx.passes.broadcasting._ramps import Ramp, flat_ramp, ramp_of


class EliminateFullGather(NodePass):
    """Gather of all rows of a value in order."""

    name = "eliminate-full-gather"
    accuracy = Accuracy.EXACT
    roots = ("Gather", "GatherND")
    needs = 13  # Unsqueeze with its axes as an input
    example = Example(
        before="""
            agraph (float[B, S] x) => (float[B, 1, S] y)
            <int64[2] behind = {1, 2}, int64[1] flat = {-1}, int64[1] ends = {1}, int64 zero = {0}, int64 one = {1}> {
                a = Tanh(x)  f = Reshape(a, flat)
                s = Shape(x)  b = Gather(s, zero)  n = Gather(s, one)
                rows = Range(zero, b, one)  columns = Range(zero, n, one)
                r = Unsqueeze(rows, behind)  o = Mul(r, n)  i = Add(o, columns)  y = Gather(f, i)
            }
        """,
        after="""
            agraph (float[B, S] x) => (float[B, 1, S] y)
            <int64[2] behind = {1, 2}, int64[1] flat = {-1}, int64[1] ends = {1}, int64 zero = {0}, int64 one = {1}> {
                a = Tanh(x)
                s = Shape(x)  b = Gather(s, zero)  n = Gather(s, one)
                rows = Range(zero, b, one)  columns = Range(zero, n, one)
                r = Unsqueeze(rows, behind)  o = Mul(r, n)  i = Add(o, columns)  y = Unsqueeze(a, ends)
            }
        """,
        near_miss="""
            agraph (float[S, 4] x, int64 n) => (float[M, 4] y) <int64 zero = {0}, int64 one = {1}> {
                a = Tanh(x)  rows = Range(zero, n, one)  y = Gather(a, rows)
            }
        """,
        refusal="may not gather all rows",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        data = operand(node, 0)
        shape = graph.shape(data)
        if not shape or data is None:
            return None
        ramp, axes = _row_numbers(node, shape, graph)
        count = None if ramp is None else ramp.counts
        if ramp is None or count is None or not ramp.shape or count != product(shape[:axes]):
            columns = _columns(node, data, shape, graph)
            if columns is not None:
                return columns
            return Refused("it may not gather all rows", (node,)) if count is not None else None
        view = operand_producer(node, 0, VIEWS)
        result = (*ramp.shape, *shape[axes:])
        for source, nodes in ((None if view is None else operand(view, 0), (view, node)), (data, (node,))):
            conversion = _view(graph.shape(source), result)
            if source is not None and conversion is not None:
                matched = tuple(member for member in nodes if member is not None)
                return Match(matched, build=partial(_viewed, source, *conversion))
        return Refused("the result needs a Reshape whose target is not constant", (node,))


def _viewed(source: ir.Value, operator: str, numbers: tuple[int, ...], op: Builder) -> Replacement:
    """Return the source itself, or a view of it."""
    if operator == "Identity":
        return source
    return op.node(operator, (source, op.constant(np.array(numbers, np.int64), "axes")))


def _row_numbers(node: ir.Node, shape: Shape, graph: Facts) -> tuple[Ramp | None, int]:
    """Return the flat row numbers that are gathered, as a ramp, and how many axes they index."""
    indices = operand(node, 1)
    if node.op_type == "Gather":
        return (ramp_of(indices, graph) if node.attributes.get_int("axis", 0) in (0, -len(shape)) else None), 1
    concat = operand_producer(node, 1, ("Concat",))
    if concat is None or node.attributes.get_int("batch_dims", 0):
        return None, 0
    if not is_last(concat.attributes.get_int("axis", 0), indices, graph):
        return None, 0
    per_axis = _per_axis(concat, graph)
    return (None, 0) if per_axis is None else (flat_ramp(per_axis, shape[: len(per_axis)]), len(per_axis))


def _per_axis(concat: ir.Node, graph: Facts) -> list[Ramp] | None:
    """Return the index of every axis, which Concat joins to tuples of indices, or None if one is not a ramp."""
    places = [ramp_of(part, graph) for part in concat.inputs]
    per_axis = [
        Ramp(ramp.shape[:-1], ramp.steps[:-1], ramp.start) for ramp in places if ramp and ramp.shape[-1:] == (1,)
    ]
    return per_axis if len(per_axis) == len(places) else None


def _columns(node: ir.Node, data: ir.Value, shape: Shape, graph: Facts) -> Match | None:
    """Match all rows with the same range of columns, each index along an axis of its own, rows first."""
    concat = operand_producer(node, 1, ("Concat",)) if node.op_type == "GatherND" else None
    if concat is None or node.attributes.get_int("batch_dims", 0) or len(concat.inputs) != 2 or len(shape) < 2:
        return None
    places = _per_axis(concat, graph)
    columns = _range_behind(operand(concat, 1), graph)
    if places is None or columns is None or not is_last(concat.attributes.get_int("axis", 0), operand(node, 1), graph):
        return None
    rows, numbers = places[0], ramp_of(columns, graph)
    axes = [axis for axis, dim in enumerate(rows.shape) if dim != 1]
    if numbers is None or rows.shape != places[1].shape or len(axes) != 2:
        return None
    table = (shape[0], *numbers.shape)
    found = [(place.start, *(place.steps[axis] for axis in axes)) for place in places]
    if tuple(rows.shape[axis] for axis in axes) != table or found != [(0, 1, 0), (numbers.start, 0, *numbers.steps)]:
        return None
    view = _view((*table, *shape[2:]), (*rows.shape, *shape[2:]))
    return view and Match((node,), build=lambda op: _viewed(op.Gather(data, columns, axis=1), *view, op))


def _range_behind(value: ir.Value | None, graph: Facts) -> ir.Value | None:
    """Return the vector that a value is a view of, or repeats, or None if there is none."""
    while value is not None and graph.rank(value) != 1:
        node = value.producer()
        value = operand(node, 0) if node is not None and operator(node) in VIEWS | {"Expand"} else None
    return value


def _view(source: Shape | None, result: Shape) -> tuple[str, tuple[int, ...]] | None:
    """Return the view that turns `source` into `result`: Identity, Unsqueeze or Reshape, with its axes or target."""
    if source is None:
        return None
    if source == result:
        return "Identity", ()
    axes = inserted_axes(source, result)
    if axes is not None:
        return "Unsqueeze", axes
    target = reshape_target(source, result)
    return None if target is None else ("Reshape", target)
