"""Where(Expand(c), 0, -inf) => Expand(Where(c, 0, -inf)).

Any operator that treats every element alike, with single numbers as its other operands. Refuses where something else
reads what was expanded. Helps because the work is done once for each element there is, not for each copy of it.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import BROADCASTS, UNARY
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes._matching import maker, operand
from sardonyx.passes.base import Example, NodePass
from sardonyx.records.run import Accuracy


class SinkExpand(NodePass):
    """Elementwise work on copies."""

    name = "sink-expand"
    accuracy = Accuracy.EXACT
    roots = tuple(sorted(BROADCASTS | UNARY))
    opset = 8  # from which on there is Expand
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (bool[B, 1, S] x) => (float[B, M, S] y)
            <float zero = {0}, float[1] low = {-9}, int64[2] rows = {4, 1}> {
                c = Not(x)  e = Expand(c, rows)  y = Where(e, zero, low)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (bool[B, 1, S] x) => (float[B, M, S] y)
            <float zero = {0}, float[1] low = {-9}, int64[2] rows = {4, 1}> {
                c = Not(x)  e = Where(c, zero, low)  y = Expand(e, rows)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (bool[B, 1, S] x) => (float[B, M, S] y, bool[B, M, S] e)
            <float zero = {0}, float[1] low = {-9}, int64[2] rows = {4, 1}> {
                c = Not(x)  e = Expand(c, rows)  y = Where(e, zero, low)
            }
        """,
        refusal="read elsewhere",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """One operand is expanded, the others are numbers."""
        for index in range(len(node.inputs)):
            expand = maker(node, index, ("Expand",))
            if expand is None or not _beside_numbers(node, index, operand(expand, 0), graph):
                continue
            if graph.sole_user(expand.outputs[0]) is not node:
                return Refused("what was expanded is read elsewhere", (expand, node))
            return Match((expand, node), {"index": index})
        return None

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The work first."""
        expand, node = match.nodes
        index: int = match.found["index"]
        done = op.like(node, (*node.inputs[:index], expand.inputs[0], *node.inputs[index + 1 :]))
        return op.like(expand, (done, expand.inputs[1]))


def _beside_numbers(node: ir.Node, index: int, source: ir.Value | None, graph: Facts) -> bool:
    """Whether all other operands are single numbers with no more axes than what was expanded."""
    rank = graph.rank(source)
    others = [value for at, value in enumerate(node.inputs) if at != index]
    return rank is not None and all(
        graph.scalar(other) is not None and (graph.rank(other) or 0) <= rank for other in others
    )
