"""Reshape(Reshape(x, flat), shape) => Unsqueeze(x).

A chain of views that only puts axes of one into a value, whatever shapes it passes through and however the last is
computed. Refuses where an axis is not certainly where it was. Helps because the sizes it was given need not be
computed, and because an Unsqueeze works for any of them, zero too.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import VIEWS
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes._matching import maker, operand
from sardonyx.passes._sizes import inserted_axes
from sardonyx.passes.base import Example, NodePass
from sardonyx.records.run import Accuracy


class MergeReshapesIntoUnsqueeze(NodePass):
    """Views that put axes of one into a value."""

    name = "merge-reshapes-into-unsqueeze"
    accuracy = Accuracy.EXACT
    roots = ("Reshape", "Unsqueeze")
    opset = 5  # before, Reshape had its target as an attribute
    needs = 13  # Unsqueeze with its axes as an input
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[B, S] x) => (float[B, 1, S] y)
            <int64[1] flat = {-1}, int64[1] one = {1}, int64[1] zero = {0}, int64[1] two = {2}> {
                a = Tanh(x)  s = Shape(a)  b = Slice(s, zero, one)  n = Slice(s, one, two)
                t = Concat <axis = 0> (b, one, n)  f = Reshape(a, flat)  y = Reshape(f, t)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[B, S] x) => (float[B, 1, S] y)
            <int64[1] flat = {-1}, int64[1] one = {1}, int64[1] zero = {0}, int64[1] two = {2}> {
                a = Tanh(x)  s = Shape(a)  b = Slice(s, zero, one)  n = Slice(s, one, two)
                t = Concat <axis = 0> (b, one, n)  y = Unsqueeze(a, one)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[B, S] x, int64[3] t) => (float[K, L, M] y) <int64[1] flat = {-1}> {
                a = Tanh(x)  f = Reshape(a, flat)  y = Reshape(f, t)
            }
        """,
        refusal="an axis is not certainly where it was",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """The earliest value from which one Unsqueeze leads here, by fewer nodes or without a computed target."""
        nodes, found = [node], None
        result = graph.shape(node.outputs[0])
        while True:
            source = operand(nodes[0], 0)
            axes = inserted_axes(graph.shape(source), result)
            if axes:
                found = Match(tuple(nodes), {"source": source, "axes": axes})
            before = maker(nodes[0], 0, VIEWS)
            if before is None:
                break
            nodes.insert(0, before)
        computed = node.op_type == "Reshape" and graph.tensor(operand(node, 1)) is None
        if found is not None:
            return found if len(found.nodes) > 1 or computed else None
        return Refused("an axis is not certainly where it was", tuple(nodes)) if computed and len(nodes) > 1 else None

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """One Unsqueeze."""
        return op.Unsqueeze(match.found["source"], op.constant(np.array(match.found["axes"], np.int64), "axes"))
