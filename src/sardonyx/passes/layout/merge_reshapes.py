"""Reshape(Reshape(x, a), b) => Reshape(x, b).

For every pair of Reshape, Squeeze, Unsqueeze and Flatten; a pair that ends where it began goes altogether. A 0 in the
outer target copies a dim of the inner result, so it is replaced by that dim or kept where x has the same one there.
Refuses where the value in between is read elsewhere or the joint target is not certain. Helps because each view costs
a node, and views hide what lies around them from other passes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes._matching import ints, maker, operand
from sardonyx.passes._views import normal_axes, reshape_target
from sardonyx.passes.base import Example, NodePass
from sardonyx.records.run import Accuracy

_MOST_AXES = 64  # of a tensor whose rank is not known; numpy makes none with more


class MergeReshapes(NodePass):
    """Two views in a row are one."""

    name = "merge-reshapes"
    accuracy = Accuracy.EXACT
    roots = tuple(sorted(VIEWS))
    opset = 5  # before, Reshape had its target as an attribute
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 6] x) => (float[N, 3, 2] y) <int64[3] a = {0, 2, 3}, int64[3] b = {0, 3, -1}> {
                u = Reshape(x, a)  y = Reshape(u, b)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 6] x) => (float[N, 3, 2] y) <int64[3] a = {0, 2, 3}, int64[3] b = {0, 3, -1}> {
                y = Reshape(x, b)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, M] x, int64[2] a) => (float[P, Q] y) <int64[2] b = {0, -1}> {
                u = Reshape(x, a)  y = Reshape(u, b)
            }
        """,
        refusal="copies a dim",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """A view of a view."""
        inner = maker(node, 0, VIEWS)
        source = None if inner is None else operand(inner, 0)
        if inner is None or source is None:
            return None
        nodes = (inner, node)
        if graph.same_shape(source, node.outputs[0]) or _cancels(inner, node, graph):
            return Match(nodes, {"source": source})
        if graph.sole_user(inner.outputs[0]) is not node:
            return Refused("the value in between is read elsewhere", nodes)
        if (axes := _joint_axes(inner, node, graph)) is not None:
            return Match(nodes, {"source": source, "axes": axes})
        target = _joint_target(inner, node, graph)
        if isinstance(target, str):
            return Refused(target, nodes)
        return Match(nodes, {"source": source, "target": target, "allowzero": _explicit_zeros(node)})

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The source itself, one Unsqueeze, or one Reshape."""
        source: ir.Value = match.found["source"]
        if (axes := match.found.get("axes")) is not None:
            if "axes" in match.root.attributes:
                return op.Unsqueeze(source, axes=axes)
            return op.Unsqueeze(source, op.constant(np.array(axes, np.int64), "axes"))
        if (target := match.found.get("target")) is not None:
            if not isinstance(target, ir.Value):
                target = op.constant(np.array(target, np.int64), "target")
            return op.Reshape(source, target, allowzero=1 if match.found["allowzero"] else None)
        return source


def _explicit_zeros(node: ir.Node) -> bool:
    return node.op_type == "Reshape" and node.attributes.get_int("allowzero", 0) == 1


def _cancels(inner: ir.Node, outer: ir.Node, graph: Facts) -> bool:
    """Whether one takes out the very axes the other puts in: then no size has to be known."""
    if {inner.op_type, outer.op_type} != {"Squeeze", "Unsqueeze"}:
        return False
    one, other = ints(inner, "axes", 1, graph), ints(outer, "axes", 1, graph)
    if not one or not other:
        return False
    rank = graph.rank(inner.outputs[0] if inner.op_type == "Unsqueeze" else inner.inputs[0])
    axes = normal_axes(one, rank)
    return axes is not None and axes == normal_axes(other, rank)


def _joint_axes(inner: ir.Node, outer: ir.Node, graph: Facts) -> tuple[int, ...] | None:
    """The axes of one Unsqueeze that does the work of two."""
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
    """What to reshape the inner view's source to, or why that is not certain."""
    source = graph.shape(inner.inputs[0])
    if outer.op_type != "Reshape":
        target = reshape_target(source, graph.shape(outer.outputs[0]))
        return target if target is not None else "the joint shape has more than one dynamic dim"
    given = operand(outer, 1)
    if given is not None and _explicit_zeros(outer):
        return given
    target = graph.ints(given)
    if target is None or given is None:
        return "the outer target is computed"
    between = graph.shape(inner.outputs[0])
    resolved = list(target)
    for index, dim in enumerate(target):
        if dim != 0:
            continue
        own = between[index] if between is not None and index < len(between) else None
        if isinstance(own, int) and own > 0:
            resolved[index] = own
        elif own is None or source is None or index >= len(source) or source[index] != own:
            known = reshape_target(source, graph.shape(outer.outputs[0]))
            return known if known is not None else "the outer target copies a dim that the inner one made"
    return given if tuple(resolved) == target else tuple(resolved)
