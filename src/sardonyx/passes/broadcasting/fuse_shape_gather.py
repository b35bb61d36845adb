"""Unsqueeze(Gather(Shape(x), k)) => Shape<start=k, end=k+1>(x).

Also a Gather of adjacent axes, and a Slice. Refuses axes that are not adjacent. Helps because exporters read sizes one
by one, each time with three nodes where one suffices.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import operand_producer, require, required
from sardonyx.passes._parts import ranges
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass


class FuseShapeGather(NodePass):
    """A part of a shape, as a vector."""

    accuracy = Accuracy.EXACT
    roots = ("Unsqueeze", "Gather", "Slice")
    needs = 15  # Shape with a start and an end
    example = Example(
        before="""
            (float[N, M] x) => (float[K] y) <int64 one = {1}, int64[1] front = {0}>
            { s = Shape(x)  m = Gather(s, one)  l = Unsqueeze(m, front)  y = ConstantOfShape(l) }
        """,
        after="{ l = Shape <start = 1, end = 2> (x)  y = ConstantOfShape(l) }",
        near_miss="""
            (float[N, M, K] x) => (float[L, O] y)
            <int64[2] some = {0, 2}> { s = Shape(x)  l = Gather(s, some)  y = ConstantOfShape(l) }
        """,
        refusal="not adjacent",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        selection = required(operand_producer(node, 0, ("Gather",))) if node.op_type == "Unsqueeze" else node
        shape_node = required(operand_producer(selection, 0, ("Shape",)))
        source = shape_node.inputs[0]
        rank = required(graph.rank(source) or None)
        if node.op_type == "Slice":
            start, end, step = required((ranges(node, graph) or {}).get(0))
            places = list(range(rank))[start:end] if step == 1 else []
        else:
            places = [number % rank for number in required(graph.ints(operand(selection, 1)))]
        # The result is a vector: of a vector of indices, or of one index with an Unsqueeze.
        require(len(places) > 0 and not shape_node.attributes and graph.rank(node.outputs[0]) == 1)
        nodes = tuple(dict.fromkeys((shape_node, selection, node)))
        is_run = places == list(range(places[0], places[0] + len(places)))
        require(is_run, "the axes it selects are not adjacent", *nodes)
        return Match(nodes, build=lambda op: op.Shape(source, start=places[0], end=places[-1] + 1))
