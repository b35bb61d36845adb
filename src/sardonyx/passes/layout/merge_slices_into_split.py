"""Slice(x, 0, a), Slice(x, a, end) => Split(x).

For Slices of one value along one axis that together cover it, each element once. Refuses if a range is computed, the
size of the axis is dynamic, or parts overlap or are missing. Helps because one node then produces all parts, and other
passes see that they belong together.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand, operator
from sardonyx.passes._parts import ranges, split_into
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, Refused

MAX_CONSUMERS = 64  # consumers of a value that are considered


class MergeSlicesIntoSplit(NodePass):
    """Slices that together are all of a value."""

    name = "merge-slices-into-split"
    accuracy = Accuracy.EXACT
    roots = ("Slice",)
    opset = 10  # before, ranges were attributes
    example = Example(
        before="""
            agraph (float[N, 6] x) => (float[N, 2] y, float[N, 4] z) <
                int64[1] zero = {0}, int64[1] two = {2}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}
            > { b = Slice(x, two, end, last)  a = Slice(x, zero, two, last)  y = Neg(a)  z = Abs(b) }
        """,
        after="""
            agraph (float[N, 6] x) => (float[N, 2] y, float[N, 4] z) <int64[2] sizes = {2, 4}> {
                a, b = Split <axis = 1> (x, sizes)  y = Neg(a)  z = Abs(b)
            }
        """,
        near_miss="""
            agraph (float[N, 6] x) => (float[N, 3] y, float[N, 4] z) <
                int64[1] zero = {0}, int64[1] two = {2}, int64[1] three = {3}, int64[1] six = {6}, int64[1] one = {1}
            > { a = Slice(x, zero, three, one)  b = Slice(x, two, six, one)  y = Neg(a)  z = Abs(b) }
        """,
        refusal="do not cover",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        source = operand(node, 0)
        own = _part(node, graph)
        if source is None or own is None or own[1] != 0 or len(source.uses()) > MAX_CONSUMERS:
            return None
        axis, size = own[0], own[3]
        parts: dict[ir.Node, tuple[int, int]] = {}
        for user in dict.fromkeys(use.node for use in source.uses()):
            part = _part(user, graph) if operator(user) == "Slice" and user.graph is node.graph else None
            if part is not None and part[0] == axis and operand(user, 0) is source:
                parts[user] = part[1:3]
        if len(parts) < 2:
            return None
        order = sorted(parts, key=parts.__getitem__)
        edges = [0, *(parts[part_node][1] for part_node in order)]
        if [parts[part_node][0] for part_node in order] != edges[:-1] or edges[-1] != size:
            return Refused("the slices do not cover the axis exactly once", tuple(order))
        first = graph.first(parts)
        sizes = [end - start for start, end in sorted(parts.values())]
        nodes = (*(part_node for part_node in order if part_node is not first), first)
        outputs = tuple(part_node.outputs[0] for part_node in order)
        return Match(nodes, outputs=outputs, build=lambda op: split_into(source, axis, sizes, op))


def _part(node: ir.Node, graph: Facts) -> tuple[int, int, int, int] | None:
    """Return the axis, start and end of the part, and the size of the axis, or None if that is uncertain."""
    slice_ranges, shape = ranges(node, graph), graph.shape(node.inputs[0])
    if slice_ranges is None or shape is None or len(slice_ranges) != 1:
        return None
    ((axis, (start, end, step)),) = slice_ranges.items()
    size = shape[axis]
    if not isinstance(size, int) or step != 1:
        return None
    start, end, _ = slice(start, end, step).indices(size)
    return (axis, start, end, size) if start < end else None
