"""Unsqueeze(Gather(Shape(x), k)) => Shape<start=k, end=k+1>(x).

Also a Gather of adjacent axes, and a Slice. Refuses axes that are not adjacent. Helps because exporters read sizes one
by one, each time with three nodes where one suffices.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import operand_producer
from sardonyx.passes._parts import ranges
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, Refused


class FuseShapeGather(NodePass):
    """A part of a shape, as a vector."""

    name = "fuse-shape-gather"
    accuracy = Accuracy.EXACT
    roots = ("Unsqueeze", "Gather", "Slice")
    needs = 15  # Shape with a start and an end
    example = Example(
        before="""
            agraph (float[N, M] x) => (float[K] y) <int64 one = {1}, int64[1] front = {0}> {
                s = Shape(x)  m = Gather(s, one)  l = Unsqueeze(m, front)  y = ConstantOfShape(l)
            }
        """,
        after="""
            agraph (float[N, M] x) => (float[K] y) <int64 one = {1}, int64[1] front = {0}> {
                l = Shape <start = 1, end = 2> (x)  y = ConstantOfShape(l)
            }
        """,
        near_miss="""
            agraph (float[N, M, K] x) => (float[L, O] y) <int64[2] some = {0, 2}> {
                s = Shape(x)  l = Gather(s, some)  y = ConstantOfShape(l)
            }
        """,
        refusal="not adjacent",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        selection = node if node.op_type != "Unsqueeze" else operand_producer(node, 0, ("Gather",))
        shape_node = None if selection is None else operand_producer(selection, 0, ("Shape",))
        rank = None if shape_node is None else graph.rank(operand(shape_node, 0))
        if selection is None or shape_node is None or not rank or shape_node.attributes:
            return None
        if node.op_type == "Slice":
            taken = (ranges(node, graph) or {}).get(0)
            places = None if taken is None or taken[2] != 1 else list(range(rank))[slice(*taken)]
        else:
            numbers = graph.ints(operand(selection, 1))
            places = None if numbers is None else [number % rank for number in numbers]
        if not places or graph.rank(node.outputs[0]) != 1:  # of a vector of indices, or of one with an Unsqueeze
            return None
        nodes = (shape_node, node) if selection is node else (shape_node, selection, node)
        if places != list(range(places[0], places[0] + len(places))):
            return Refused("the axes it selects are not adjacent", nodes)
        source = shape_node.inputs[0]
        return Match(nodes, build=lambda op: op.Shape(source, start=places[0], end=places[-1] + 1))
