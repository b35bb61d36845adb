"""Add(x, Expand(y)) => Add(x, y).

For every operator that broadcasts. Also ConstantOfShape, which is replaced by its number, and an Unsqueeze that inserts
leading axes. Refuses if the result would have another shape. Helps because exporters expand explicitly what operators
broadcast anyway: each Expand is a copy, and its target a chain of size computations.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import BROADCASTS
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import fits_without, ints, normal_axes, operand_producer, with_operand
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, OperandPass, Refused, Replacement


class EliminateExpand(OperandPass):
    """Operands that are expanded although the operator broadcasts them."""

    name = "eliminate-expand"
    accuracy = Accuracy.EXACT
    roots = tuple(sorted(BROADCASTS))
    opset = 8  # since then all of them broadcast by the same rule
    example = Example(
        before="""
            agraph (float[N, M] x, float[M] y) => (float[N, M] z) <int64[1] front = {0}> {
                s = Shape(x)  a = Expand(y, s)  b = Mul(x, a)
                f = ConstantOfShape <value = float[1] {2}> (s)  c = Add(f, b)
                t = Tanh(y)  u = Unsqueeze(t, front)  z = Sub(c, u)
            }
        """,
        after="""
            agraph (float[N, M] x, float[M] y) => (float[N, M] z) <float f = {2}, int64[1] front = {0}> {
                s = Shape(x)  b = Mul(x, y)  c = Add(f, b)  t = Tanh(y)  z = Sub(c, t)
            }
        """,
        near_miss="""
            agraph (float[N, M] x, float[M] y) => (float[N, M] z) {
                s = Shape(x)  a = Expand(y, s)  z = Mul(y, a)
            }
        """,
        refusal="the result would have another shape",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match | Refused | None:
        spread = operand_producer(node, index, ("Expand", "ConstantOfShape", "Unsqueeze"))
        if spread is None or not _is_broadcast(spread, graph):
            return None
        filled = spread.op_type == "ConstantOfShape"
        shape = () if filled else graph.shape(operand(spread, 0))
        if shape is None or not fits_without(node, index, shape, graph):
            reason = "the result would have another shape"
            return None if spread.op_type == "Unsqueeze" else Refused(reason, (spread, node))

        def build(op: Builder) -> Replacement:
            source = op.constant(_fill(spread), "fill") if filled else spread.inputs[0]
            return op.like(node, with_operand(node, index, source))

        return Match((spread, node), build=build)


def _is_broadcast(node: ir.Node, graph: Facts) -> bool:
    """Return whether broadcasting does the same as the node: an Unsqueeze may only insert leading axes."""
    if node.op_type != "Unsqueeze":
        return True
    axes = normal_axes(ints(node, "axes", 1, graph) or (), graph.rank(node.outputs[0]))
    return bool(axes) and axes == tuple(range(len(axes)))


def _fill(node: ir.Node) -> np.ndarray:
    """Return the number that a ConstantOfShape is filled with."""
    attribute = node.attributes.get("value")
    return np.zeros((), np.float32) if attribute is None else attribute.as_tensor().numpy().reshape(())
