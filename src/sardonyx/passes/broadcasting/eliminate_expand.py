"""Add(x, Expand(y)) => Add(x, y).

Also a ConstantOfShape, of which only its number is left, and an Unsqueeze that puts axes in front, for every operator
that broadcasts. Refuses where the result would have another shape. Helps because exporters write out what operators do
anyway: each is a copy, and its target a chain of sizes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import BROADCASTS
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes._matching import ints, maker, operand
from sardonyx.passes._views import normal_axes
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.broadcasting._broadcasting import fits_without
from sardonyx.records.run import Accuracy


class EliminateExpand(NodePass):
    """Operands repeated, filled or given axes that the operator would give them itself."""

    name = "eliminate-expand"
    accuracy = Accuracy.EXACT
    roots = tuple(sorted(BROADCASTS))
    opset = 8  # from which on all of them broadcast by the same rule
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, M] x, float[M] y) => (float[N, M] z) <int64[1] front = {0}> {
                s = Shape(x)  a = Expand(y, s)  b = Mul(x, a)
                f = ConstantOfShape <value = float[1] {2}> (s)  c = Add(f, b)
                t = Tanh(y)  u = Unsqueeze(t, front)  z = Sub(c, u)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, M] x, float[M] y) => (float[N, M] z) <float f = {2}, int64[1] front = {0}> {
                s = Shape(x)  b = Mul(x, y)  c = Add(f, b)  t = Tanh(y)  z = Sub(c, t)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, M] x, float[M] y) => (float[N, M] z) {
                s = Shape(x)  a = Expand(y, s)  z = Mul(y, a)
            }
        """,
        refusal="the result would have another shape",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """An operand that the operator would make the same of."""
        missed: Refused | None = None
        for index in range(len(node.inputs)):
            maker_of = maker(node, index, ("Expand", "ConstantOfShape", "Unsqueeze"))
            if maker_of is None or not _only_spreads(maker_of, graph):
                continue
            source = operand(maker_of, 0)
            filled = maker_of.op_type == "ConstantOfShape"
            shape = () if filled else graph.shape(source)
            if shape is not None and fits_without(node, index, shape, graph):
                return Match((maker_of, node), {"index": index, "source": None if filled else source})
            if maker_of.op_type != "Unsqueeze":
                missed = Refused("the result would have another shape", (maker_of, node))
        return missed

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The operator on what there was before."""
        spread, node = match.nodes
        index: int = match.found["index"]
        source = match.found["source"]
        if source is None:
            source = op.constant(_fill(spread), "fill")
        return op.like(node, (*node.inputs[:index], source, *node.inputs[index + 1 :]))


def _only_spreads(node: ir.Node, graph: Facts) -> bool:
    """Whether an Unsqueeze puts axes in front only; the others always repeat."""
    if node.op_type != "Unsqueeze":
        return True
    axes = normal_axes(ints(node, "axes", 1, graph) or (), graph.rank(node.outputs[0]))
    return bool(axes) and axes == tuple(range(len(axes)))


def _fill(node: ir.Node) -> np.ndarray:
    """The number a ConstantOfShape is full of."""
    attribute = node.attributes.get("value")
    return np.zeros((), np.float32) if attribute is None else attribute.as_tensor().numpy().reshape(())
