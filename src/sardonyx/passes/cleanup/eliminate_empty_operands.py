"""Concat(x, empty) => x, if the other operands have size zero along the axis.

Refuses if all operands are empty; a size that is dynamic and may be positive counts as not empty. Helps because
exporters keep the part of each head that is not rotated even if it is empty, which hides the rotation from attention.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, require, required


class EliminateEmptyOperands(NodePass):
    """Empty operands of Concat."""

    accuracy = Accuracy.EXACT
    roots = ("Concat",)
    opset = 4  # before, the axis was optional
    example = Example(
        before="""
            (float[N, 4] x, float[N, 0] none) => (float[N, 4] y)
            { a = Exp(x)  b = Concat <axis = -1> (a, none)  y = Relu(b) }
        """,
        after="{ a = Exp(x)  y = Relu(a) }",
        near_miss="(float[N, 0] x, float[N, 0] none) => (float[N, 0] y) { y = Concat <axis = -1> (x, none) }",
        refusal="all its operands are empty",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        axis = node.attributes.get_int("axis", 0) % required(graph.rank(node.outputs[0]) or None)
        shapes = [(value, graph.shape(value)) for value in map(required, node.inputs)]
        nonempty = tuple(value for value, shape in shapes if shape is None or shape[axis] != 0)
        require(len(nonempty) < len(node.inputs) > 1)
        require(len(nonempty) > 0, "all its operands are empty")
        return Match((node,), build=lambda op: nonempty[0] if len(nonempty) == 1 else op.like(node, nonempty))
