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
from sardonyx.passes._matching import inserted_axes, operand_producer, required, reshape_target
from sardonyx.passes._parts import is_last
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement
from sardonyx.passes.broadcasting._ramps import Ramp, flat_ramp, ramp_of


class EliminateFullGather(NodePass):
    """Gather of all rows of a value in order."""

    accuracy = Accuracy.EXACT
    roots = ("Gather", "GatherND")
    needs = 13  # Unsqueeze with its axes as an input
    example = Example(
        before="""
            (float[B, S] x) => (float[B, 1, S] y)
            <int64[2] behind = {1, 2}, int64[1] flat = {-1}, int64[1] ends = {1}, int64 zero = {0}, int64 one = {1}> {
                a = Tanh(x)  f = Reshape(a, flat)
                s = Shape(x)  b = Gather(s, zero)  n = Gather(s, one)
                rows = Range(zero, b, one)  columns = Range(zero, n, one)
                r = Unsqueeze(rows, behind)  o = Mul(r, n)  i = Add(o, columns)  y = Gather(f, i)
            }
        """,
        after="""{
            a = Tanh(x)
            s = Shape(x)  b = Gather(s, zero)  n = Gather(s, one)
            rows = Range(zero, b, one)  columns = Range(zero, n, one)
            r = Unsqueeze(rows, behind)  o = Mul(r, n)  i = Add(o, columns)  y = Unsqueeze(a, ends)
        }""",
        near_miss="""
            (float[S, 4] x, int64 n) => (float[M, 4] y)
            <int64 zero = {0}, int64 one = {1}> { a = Tanh(x)  rows = Range(zero, n, one)  y = Gather(a, rows) }
        """,
        refusal="may not gather all rows",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        data = required(operand(node, 0))
        shape = required(graph.shape(data) or None)
        places = required(_places(node, shape, graph))
        rest = shape[len(places) :]
        rows = flat_ramp(places, shape[: len(places)])
        count = None if rows is None else rows.counts
        if rows is None or count is None or not rows.shape or count != product(shape[: len(places)]):
            columns = None if node.op_type == "Gather" else _columns(node, data, shape, places, graph)
            return required(columns, "it may not gather all rows" if count is not None else "", node)
        view = operand_producer(node, 0, VIEWS)
        sources = [(data, (node,))] if view is None else [(operand(view, 0), (view, node)), (data, (node,))]
        for source, nodes in sources:
            conversion = _view(graph.shape(source), (*rows.shape, *rest))
            if source is not None and conversion is not None:
                return Match(nodes, build=partial(_viewed, source, *conversion))
        raise Refused("the result needs a Reshape whose target is not constant", (node,))


def _viewed(source: ir.Value, operator: str, numbers: tuple[int, ...], op: Builder) -> Replacement:
    """Return the source itself, or a view of it."""
    if operator == "Identity":
        return source
    return op.node(operator, (source, op.constant(np.array(numbers, np.int64), "axes")))


def _places(node: ir.Node, shape: Shape, graph: Facts) -> list[Ramp] | None:
    """Return the indices along each of the first axes, or None if they are not ramps."""
    indices = operand(node, 1)
    if node.op_type == "Gather":
        ramp = ramp_of(indices, graph) if node.attributes.get_int("axis", 0) in (0, -len(shape)) else None
        return None if ramp is None else [ramp]
    concat = operand_producer(node, 1, ("Concat",))  # joins them to tuples
    if concat is None or node.attributes.get_int("batch_dims", 0):
        return None
    if not is_last(concat.attributes.get_int("axis", 0), indices, graph):
        return None
    ramps = [ramp_of(part, graph) for part in concat.inputs]
    places = [Ramp(ramp.shape[:-1], ramp.steps[:-1], ramp.start) for ramp in ramps if ramp and ramp.shape[-1:] == (1,)]
    return places if len(places) == len(ramps) else None


def _columns(node: ir.Node, data: ir.Value, shape: Shape, places: list[Ramp], graph: Facts) -> Match | None:
    """Match all rows with the same range of columns, each index along an axis of its own, rows first."""
    columns = required(operand_producer(node, 1, ("Concat",))).inputs[-1]
    while columns is not None and graph.rank(columns) != 1:  # the vector that the last indices are a view of or repeat
        spread = columns.producer()
        columns = operand(spread, 0) if spread is not None and operator(spread) in VIEWS | {"Expand"} else None
    numbers = ramp_of(columns, graph)
    if len(places) != 2 or len(shape) < 2 or numbers is None or places[0].shape != places[1].shape:
        return None
    rows = places[0].shape
    axes = [axis for axis, dim in enumerate(rows) if dim != 1]
    table = (shape[0], *numbers.shape)
    found = [(place.start, *(place.steps[axis] for axis in axes)) for place in places]
    if tuple(rows[axis] for axis in axes) != table or found != [(0, 1, 0), (numbers.start, 0, *numbers.steps)]:
        return None
    view = _view((*table, *shape[2:]), (*rows, *shape[2:]))
    return view and Match((node,), build=lambda op: _viewed(op.Gather(data, columns, axis=1), *view, op))


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
