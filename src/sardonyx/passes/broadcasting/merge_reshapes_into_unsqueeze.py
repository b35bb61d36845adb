"""Reshape(Reshape(x, flat), shape) => Unsqueeze(x).

For a chain of views that together only inserts axes of size one, whatever the shapes in between and however the last
target is computed. Refuses if an axis may not be at the same place. Helps because the target need not be computed, and
because an Unsqueeze works for all sizes, zero included.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import VIEWS
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import inserted_axes, operand_producer, require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass


class MergeReshapesIntoUnsqueeze(NodePass):
    """Views that together insert axes of size one."""

    accuracy = Accuracy.EXACT
    roots = ("Reshape", "Unsqueeze")
    opset = 5  # before, the target of Reshape was an attribute
    needs = 13  # Unsqueeze with its axes as an input
    example = Example(
        before="""
            (float[B, S] x) => (float[B, 1, S] y)
            <int64[1] flat = {-1}, int64[1] one = {1}, int64[1] zero = {0}, int64[1] two = {2}> {
                a = Tanh(x)  s = Shape(a)  b = Slice(s, zero, one)  n = Slice(s, one, two)
                t = Concat <axis = 0> (b, one, n)  f = Reshape(a, flat)  y = Reshape(f, t)
            }
        """,
        after="""{
            a = Tanh(x)  s = Shape(a)  b = Slice(s, zero, one)  n = Slice(s, one, two)
            t = Concat <axis = 0> (b, one, n)  y = Unsqueeze(a, one)
        }""",
        near_miss="""
            (float[B, S] x, int64[3] t) => (float[K, L, M] y)
            <int64[1] flat = {-1}> { a = Tanh(x)  f = Reshape(a, flat)  y = Reshape(f, t) }
        """,
        refusal="an axis may not be at the same place",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        nodes, best, result = [node], None, graph.shape(node.outputs[0])
        while True:
            source = operand(nodes[0], 0)
            if axes := inserted_axes(graph.shape(source), result):
                best = tuple(nodes), source, np.array(axes, np.int64)
            previous = operand_producer(nodes[0], 0, VIEWS)
            if previous is None:
                break
            nodes.insert(0, previous)
        is_computed = node.op_type == "Reshape" and graph.tensor(operand(node, 1)) is None
        refusal = "an axis may not be at the same place" if is_computed and len(nodes) > 1 else ""
        matched, start, inserted = required(best, refusal, *nodes)
        require(len(matched) > 1 or is_computed)
        return Match(matched, build=lambda op: op.Unsqueeze(start, op.constant(inserted, "axes")))
