"""Reshape(x, computed) => Reshape(x, constant).

Also Expand and ConstantOfShape. The target follows from the inferred shape of the result: numbers, 0 for a dim that
keeps its position, -1 for one other. Refuses if more dims are unknown. Helps because the size arithmetic that exporters
put before every view becomes dead, and later passes see what the view does.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import reshape_target
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, require, required

_SHAPE_INPUT = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}


class FoldViewTargets(NodePass):
    """Targets computed at run time although the shape of the result is known."""

    accuracy = Accuracy.EXACT
    roots = tuple(_SHAPE_INPUT)
    opset = 5  # before, the target of Reshape was an attribute
    example = Example(
        before="""
            (float[N, 4, 6] x) => (float[N, 4, 2, 3] y) <int64[1] at = {0}, int64[1] to = {2}, int64[2] heads = {2, 3}>
            { a = Relu(x)  s = Shape(x)  n = Slice(s, at, to)  t = Concat <axis = 0> (n, heads)  y = Reshape(a, t) }
        """,
        after="""
            <int64[1] at = {0}, int64[1] to = {2}, int64[2] heads = {2, 3}, int64[4] target = {0, 4, 2, 3}> {
                a = Relu(x)  s = Shape(x)  n = Slice(s, at, to)  t = Concat <axis = 0> (n, heads)
                y = Reshape(a, target)
            }
        """,
        near_miss="""
            (float[N, M] x) => (float[M, N] y) <int64[1] zero = {0}, int64[1] one = {1}> {
                a = Relu(x)  s = Shape(x)  n = Gather(s, zero)  m = Gather(s, one)
                t = Concat <axis = 0> (m, n)  y = Reshape(a, t)
            }
        """,
        refusal="more than one dim",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        index, changed = _SHAPE_INPUT[node.op_type], dict[str, None]()
        target, sizes = required(operand(node, index)), graph.static_shape(node.outputs[0])
        require(graph.tensor(target) is None)
        if node.op_type == "Reshape":
            source, result = required(graph.shape(node.inputs[0])), required(graph.shape(node.outputs[0]))
            own = graph.contents(target) or ()
            sizes = reshape_target(source, result, open_at=own.index(-1) if -1 in own else None)
            sizes, changed = required(sizes, "more than one dim of its result is dynamic"), {"allowzero": None}
        numbers, inputs = np.array(required(sizes), np.int64), node.inputs[:index]
        return Match((node,), build=lambda op: op.like(node, (*inputs, op.constant(numbers, "target")), **changed))
