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
from sardonyx.passes._matching import fits_without, ints, normal_axes, operand_producer
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement


class EliminateExpand(NodePass):
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

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Match an operand that the operator would broadcast to the same values."""
        missed: Refused | None = None
        for index in range(len(node.inputs)):
            producer = operand_producer(node, index, ("Expand", "ConstantOfShape", "Unsqueeze"))
            if producer is None or not _is_broadcast(producer, graph):
                continue
            source = operand(producer, 0)
            filled = producer.op_type == "ConstantOfShape"
            shape = () if filled else graph.shape(source)
            if shape is not None and fits_without(node, index, shape, graph):
                return Match((producer, node), {"index": index, "source": None if filled else source})
            if producer.op_type != "Unsqueeze":
                missed = Refused("the result would have another shape", (producer, node))
        return missed

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Apply the operator to the operand before it was expanded."""
        spread, node = match.nodes
        index: int = match.details["index"]
        source = match.details["source"]
        if source is None:
            source = op.constant(_fill(spread), "fill")
        return op.like(node, (*node.inputs[:index], source, *node.inputs[index + 1 :]))


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
