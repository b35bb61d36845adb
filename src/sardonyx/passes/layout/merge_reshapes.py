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
from sardonyx.passes._matching import axes_of, require_sole, required, reshape_target
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, PairPass, Replacement

_MAX_AXES = 64  # of a tensor of unknown rank; the limit of numpy


class MergeReshapes(PairPass):
    """Two consecutive views."""

    accuracy = Accuracy.EXACT
    roots = tuple(sorted(VIEWS))
    inner, operand = VIEWS, 0
    opset = 5  # before, the target of Reshape was an attribute
    example = Example(
        before="""
            (float[N, 6] x) => (float[N, 3, 2] y)
            <int64[3] a = {0, 2, 3}, int64[3] b = {0, 3, -1}> { u = Reshape(x, a)  y = Reshape(u, b) }
        """,
        after="{ y = Reshape(x, b) }",
        near_miss="""
            (float[N, M] x, int64[2] a) => (float[P, Q] y)
            <int64[2] b = {0, -1}> { u = Reshape(x, a)  y = Reshape(u, b) }
        """,
        refusal="copies a dim",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        source, nodes = required(inner.inputs[0]), (inner, node)
        first, second = (axes_of(each, graph) if each.op_type in ("Squeeze", "Unsqueeze") else None for each in nodes)
        # One removes exactly the axes that the other inserts; no size has to be known for that.
        cancels = bool(first) and first == second and inner.op_type != node.op_type
        if cancels or graph.same_shape(source, node.outputs[0]):
            return Match(nodes, build=lambda _: source)
        require_sole(node, inner, graph, "the value in between is read elsewhere")
        if node.op_type == inner.op_type == "Unsqueeze" and first is not None and second is not None:
            places = [axis for axis in range(_MAX_AXES + len(second)) if axis not in second]
            if max((*first, *second), default=0) < _MAX_AXES:
                axes = np.array(sorted((*second, *(places[axis] for axis in first))), np.int64)
                if "axes" in node.attributes:
                    return Match(nodes, build=lambda op: op.Unsqueeze(source, axes=axes.tolist()))
                return Match(nodes, build=lambda op: op.Unsqueeze(source, op.constant(axes, "axes")))
        is_explicit = node.op_type == "Reshape" and node.attributes.get_int("allowzero", 0) == 1
        target = operand(node, 1) if is_explicit else _joint_target(inner, node, graph)

        def build(op: Builder) -> Replacement:
            value = op.constant(np.array(target, np.int64), "target") if isinstance(target, tuple) else target
            return op.Reshape(source, value, allowzero=1 if is_explicit else None)

        return Match(nodes, build=build)


def _joint_target(inner: ir.Node, outer: ir.Node, graph: Facts) -> tuple[int, ...] | ir.Value | None:
    """Return the target that replaces both, where 0 copies a dim; refuse if it is uncertain."""
    nodes, source, between = (inner, outer), graph.shape(inner.inputs[0]), graph.shape(inner.outputs[0])
    whole = reshape_target(source, graph.shape(outer.outputs[0]))
    if outer.op_type != "Reshape":
        return required(whole, "the combined shape has more than one dynamic dim", *nodes)
    target = required(graph.ints(outer.inputs[1]), "the outer target is computed", *nodes)
    resolved = list(target)
    for index, dim in enumerate(target):
        if dim != 0:
            continue
        inner_dim = between[index] if between is not None and index < len(between) else None
        if isinstance(inner_dim, int) and inner_dim > 0:
            resolved[index] = inner_dim
        elif inner_dim is None or source is None or index >= len(source) or source[index] != inner_dim:
            return required(whole, "the outer target copies a dim that the inner view creates", *nodes)
    return outer.inputs[1] if tuple(resolved) == target else tuple(resolved)
