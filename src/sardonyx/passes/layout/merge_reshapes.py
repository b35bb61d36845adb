"""Reshape(Reshape(x, a), b) => Reshape(x, b).

For every pair of Reshape, Squeeze, Unsqueeze and Flatten; a pair that restores the shape is removed. A 0 in the outer
target copies a dim of the inner result, so it is replaced by that dim, or kept if x has the same dim there. Refuses if
the value in between is read elsewhere or the combined target is uncertain. Helps because each view costs a node and
hides its neighbours from other passes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import VIEWS
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import ints, normal_axes, operand_producer, reshape_target
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement

_MOST_AXES = 64  # of a tensor of unknown rank; the limit of numpy


class MergeReshapes(NodePass):
    """Two consecutive views."""

    name = "merge-reshapes"
    accuracy = Accuracy.EXACT
    roots = tuple(sorted(VIEWS))
    opset = 5  # before, the target of Reshape was an attribute
    example = Example(
        before="""
            agraph (float[N, 6] x) => (float[N, 3, 2] y) <int64[3] a = {0, 2, 3}, int64[3] b = {0, 3, -1}> {
                u = Reshape(x, a)  y = Reshape(u, b)
            }
        """,
        after="""
            agraph (float[N, 6] x) => (float[N, 3, 2] y) <int64[3] a = {0, 2, 3}, int64[3] b = {0, 3, -1}> {
                y = Reshape(x, b)
            }
        """,
        near_miss="""
            agraph (float[N, M] x, int64[2] a) => (float[P, Q] y) <int64[2] b = {0, -1}> {
                u = Reshape(x, a)  y = Reshape(u, b)
            }
        """,
        refusal="copies a dim",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        inner = operand_producer(node, 0, VIEWS)
        source = None if inner is None else operand(inner, 0)
        if inner is None or source is None:
            return None
        nodes = (inner, node)
        if graph.same_shape(source, node.outputs[0]) or _cancels(inner, node, graph):
            return Match(nodes, build=lambda _: source)
        if graph.sole_consumer(inner.outputs[0]) is not node:
            return Refused("the value in between is read elsewhere", nodes)
        if (axes := _joint_axes(inner, node, graph)) is not None:
            if "axes" in node.attributes:
                return Match(nodes, build=lambda op: op.Unsqueeze(source, axes=axes))
            return Match(nodes, build=lambda op: op.Unsqueeze(source, op.constant(np.array(axes, np.int64), "axes")))
        target = _joint_target(inner, node, graph)
        if isinstance(target, str):
            return Refused(target, nodes)

        def build(op: Builder) -> Replacement:
            value = target if isinstance(target, ir.Value) else op.constant(np.array(target, np.int64), "target")
            return op.Reshape(source, value, allowzero=1 if _explicit_zeros(node) else None)

        return Match(nodes, build=build)


def _explicit_zeros(node: ir.Node) -> bool:
    return node.op_type == "Reshape" and node.attributes.get_int("allowzero", 0) == 1


def _cancels(inner: ir.Node, outer: ir.Node, graph: Facts) -> bool:
    """Return whether one removes exactly the axes that the other inserts; no size has to be known for that."""
    if {inner.op_type, outer.op_type} != {"Squeeze", "Unsqueeze"}:
        return False
    inner_axes, outer_axes = ints(inner, "axes", 1, graph), ints(outer, "axes", 1, graph)
    if not inner_axes or not outer_axes:
        return False
    rank = graph.rank(inner.outputs[0] if inner.op_type == "Unsqueeze" else inner.inputs[0])
    axes = normal_axes(inner_axes, rank)
    return axes is not None and axes == normal_axes(outer_axes, rank)


def _joint_axes(inner: ir.Node, outer: ir.Node, graph: Facts) -> tuple[int, ...] | None:
    """Return the axes of one Unsqueeze that replaces two."""
    if inner.op_type != "Unsqueeze" or outer.op_type != "Unsqueeze":
        return None
    first, second = ints(inner, "axes", 1, graph), ints(outer, "axes", 1, graph)
    if first is None or second is None:
        return None
    rank = graph.rank(inner.outputs[0])
    first = normal_axes(first, rank)
    second = normal_axes(second, None if rank is None else rank + len(second))
    if first is None or second is None or any(axis >= _MOST_AXES for axis in (*first, *second)):
        return None
    places = [axis for axis in range(_MOST_AXES + len(second)) if axis not in second]
    return tuple(sorted((*second, *(places[axis] for axis in first))))


def _joint_target(inner: ir.Node, outer: ir.Node, graph: Facts) -> tuple[int, ...] | ir.Value | str:
    """Return the target that replaces both, or why it is uncertain."""
    source = graph.shape(inner.inputs[0])
    if outer.op_type != "Reshape":
        target = reshape_target(source, graph.shape(outer.outputs[0]))
        return target if target is not None else "the combined shape has more than one dynamic dim"
    target_value = operand(outer, 1)
    if target_value is not None and _explicit_zeros(outer):
        return target_value
    target = graph.ints(target_value)
    if target is None or target_value is None:
        return "the outer target is computed"
    between = graph.shape(inner.outputs[0])
    resolved = list(target)
    for index, dim in enumerate(target):
        if dim != 0:
            continue
        inner_dim = between[index] if between is not None and index < len(between) else None
        if isinstance(inner_dim, int) and inner_dim > 0:
            resolved[index] = inner_dim
        elif inner_dim is None or source is None or index >= len(source) or source[index] != inner_dim:
            constant_target = reshape_target(source, graph.shape(outer.outputs[0]))
            return (
                constant_target
                if constant_target is not None
                else "the outer target copies a dim that the inner view creates"
            )
    return target_value if tuple(resolved) == target else tuple(resolved)
