"""Reshape(Transpose(Reshape(Concat(Slice(x), Slice(x))))) => Gather(Reshape(x), rows).

For any number of operators that only move elements, between one value and one result: they become the fewest that do
the same, computed on element numbers. That is a view, a Transpose with views around it, or a Gather of whole rows, as
for windows and their inverse, rolls, unfolded patches, and Transposes that move only dims of size one. Does not apply
if a size is unknown (the first axis may be dynamic if nothing moves along it), or if a product of two computed matrices
would read gathered rows, since attention is recognised by its Transposes. Helps because each operator copies all of its
input: gathering the rows of a rolled window once takes 0.23-0.43 of the time.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.layout._arranging import LayoutStep, arrangements, build, copies
from sardonyx.passes.layout._movement import MOVING, Region, movement, regions_before
from sardonyx.records.run import Accuracy


class MergeRearrangements(NodePass):
    """Several movements of the same elements."""

    name = "merge-rearrangements"
    accuracy = Accuracy.EXACT
    roots = tuple(sorted(MOVING))
    opset = 9  # before, a Constant could not be of integer type
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4, 32] x) => (float[N, 2, 2, 32] y) <
                int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {4}, int64[4] s = {0, 2, 2, 32}
            > {
                a = Slice(x, zero, one, one)  b = Slice(x, one, end, one)  c = Concat <axis = 1> (b, a)
                d = Reshape(c, s)  y = Transpose <perm = [0, 2, 1, 3]> (d)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4, 32] x) => (float[N, 2, 2, 32] y) <int64[2, 2] rows = {1, 3, 2, 0}> {
                y = Gather <axis = 1> (x, rows)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[4, N] x) => (float[N, 2, 2] y) <int64[3] s = {2, 2, -1}> {
                a = Reshape(x, s)  y = Transpose <perm = [2, 0, 1]> (a)
            }
        """,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Match the largest region before a node that fewer or cheaper nodes can replace."""
        for region in reversed(regions_before(node)):
            steps = _better(region, node, graph)
            if steps is not None:
                return Match((*reversed(region.nodes[1:]), node), {"source": region.source, "steps": steps})
        return None

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build the nodes of the arrangement."""
        return build(match.details["steps"], match.details["source"], op)


def _better(region: Region, root: ir.Node, graph: Facts) -> tuple[LayoutStep, ...] | None:
    """Return the fewest nodes that do what a region does, if they are fewer, or as many with fewer copies."""
    if len(root.outputs) != 1:
        return None
    current = len(region.nodes), sum(node.op_type not in VIEWS for node in region.nodes)
    if current[1] == 0:
        return None  # merge-reshapes merges views, also with dynamic dims
    if current[0] == 1 and not _may_be_a_view(root, graph):
        return None
    region_movement = movement(region, root.outputs[0], graph)
    if region_movement is None:
        return None
    rows = not _is_part_of_attention(region, root, graph)
    best = min(
        arrangements(region_movement, current[0], rows=rows),
        key=lambda steps: (len(steps), copies(steps)),
        default=None,
    )
    return best if best is not None and (len(best), copies(best)) < current else None


def _may_be_a_view(node: ir.Node, graph: Facts) -> bool:
    """Return whether a single node may preserve the order of all elements, by a cheap check."""
    if node.op_type != "Transpose":
        return node.op_type in ("Gather", "GatherND") and graph.tensor(node.inputs[1]) is not None
    shape, perm = graph.shape(node.inputs[0]) or (), node.attributes.get_ints("perm")
    real = [axis for axis in perm or range(len(shape))[::-1] if axis < len(shape) and shape[axis] != 1]
    return real == sorted(real)


def _is_part_of_attention(region: Region, root: ir.Node, graph: Facts) -> bool:
    """Return whether a product of two computed matrices is before or after, where heads are split and merged."""
    neighbours = [use.node for use in root.outputs[0].uses()]
    if (producer := region.source.producer()) is not None:
        neighbours.append(producer)
    return any(node.op_type == "MatMul" and graph.tensor(node.inputs[1]) is None for node in neighbours)
