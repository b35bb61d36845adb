"""Add(x, Expand(y)) => Add(x, y).

For every operator that broadcasts. Also ConstantOfShape, which is replaced by its number, and an Unsqueeze that inserts
leading axes. Refuses if the result would have another shape. Helps because exporters expand explicitly what operators
broadcast anyway: each Expand is a copy, and its target a chain of size computations.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import BROADCASTS
from sardonyx.passes._matching import axes_of, fits_without, require, required, with_operand
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, PairPass, Replacement


class EliminateExpand(PairPass):
    """Operands that are expanded although the operator broadcasts them."""

    accuracy = Accuracy.EXACT
    roots = tuple(sorted(BROADCASTS))
    inner = ("Expand", "ConstantOfShape", "Unsqueeze")
    opset = 8  # since then all of them broadcast by the same rule
    example = Example(
        before="""
            (float[N, M] x, float[M] y) => (float[N, M] z) <int64[1] front = {0}> {
                s = Shape(x)  a = Expand(y, s)  b = Mul(x, a)
                f = ConstantOfShape <value = float[1] {2}> (s)  c = Add(f, b)
                t = Tanh(y)  u = Unsqueeze(t, front)  z = Sub(c, u)
            }
        """,
        after="""
            <float f = {2}, int64[1] front = {0}> {
                s = Shape(x)  b = Mul(x, y)  c = Add(f, b)  t = Tanh(y)  z = Sub(c, t)
            }
        """,
        near_miss="(float[N, M] x, float[M] y) => (float[N, M] z) { s = Shape(x)  a = Expand(y, s)  z = Mul(y, a) }",
        refusal="the result would have another shape",
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        refusal, fill = "the result would have another shape", None
        if inner.op_type == "ConstantOfShape":
            number = inner.attributes.get("value")
            fill = np.zeros((), np.float32) if number is None else number.as_tensor().numpy().reshape(())
        if inner.op_type == "Unsqueeze":
            axes, refusal = required(axes_of(inner, graph) or None), ""
            require(axes == tuple(range(len(axes))))  # broadcasting inserts leading axes only
        shape = graph.shape(inner.inputs[0]) if fill is None else ()
        require(fits_without(node, index, shape, graph), refusal)

        def build(op: Builder) -> Replacement:
            source = inner.inputs[0] if fill is None else op.constant(fill, "fill")
            return op.like(node, with_operand(node, index, source))

        return Match((inner, node), build=build)
