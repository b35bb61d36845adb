"""x * Sigmoid(alpha * x) => QuickGelu(x, alpha), of ONNX Runtime.

With alpha = 1 this is SiLU, also called Swish. Refuses if the gate is used elsewhere. Only for single precision, the
only type with a kernel. Helps because it takes one pass over the data.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._channels import USED_ELSEWHERE
from sardonyx.passes._matching import operand_producer
from sardonyx.passes.base import Accuracy, Example, Facts, Match, OperandPass, Refused
from sardonyx.passes.ort._contrib import DOMAIN, OrtPass, on_ort


class FuseQuickGelu(OrtPass, OperandPass):
    """A value times the sigmoid of a multiple of it."""

    name = "fuse-quick-gelu"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Mul",)
    opset = 7  # before, Mul broadcast only with an attribute
    example = Example(
        before="""
            agraph (float[N, 4] x) => (float[N, 4] y) <float alpha = {1.5}> {
                e = Sin(x)  a = Mul(e, alpha)  s = Sigmoid(a)  y = Mul(s, e)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
            agraph (float[N, 4] x) => (float[N, 4] y) <float alpha = {1.5}> {
                e = Sin(x)  y = com.microsoft.QuickGelu <alpha = 1.5> (e)
            }
        """,
        near_miss="agraph (float[N, 4] x) => (float[N, 4] y) { s = Sigmoid(x)  m = Mul(s, x)  y = Add(m, s) }",
        refusal="used elsewhere",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match | Refused | None:
        gate, value = operand_producer(node, index, ("Sigmoid",)), node.inputs[1 - index]
        if gate is None or value is None or graph.dtype(value) != ir.DataType.FLOAT:
            return None
        scaled = _scaled(gate, value, graph)
        if scaled is None:
            return None
        alpha, nodes = scaled[0], (*scaled[1], gate, node)
        if graph.sole_consumer(gate.outputs[0]) is not node:
            return Refused(USED_ELSEWHERE, nodes)
        match = Match(nodes, build=lambda op: op.node("QuickGelu", (value,), {"alpha": alpha}, domain=DOMAIN))
        return on_ort(match, "QuickGelu", graph)


def _scaled(gate: ir.Node, value: ir.Value, graph: Facts) -> tuple[float, tuple[ir.Node, ...]] | None:
    """Return the factor of the value inside the gate, and the node that multiplies; otherwise None."""
    if gate.inputs[0] is value:
        return 1.0, ()
    times = operand_producer(gate, 0, ("Mul",))
    if times is None:
        return None
    for factor, other in (times.inputs, times.inputs[::-1]):
        alpha = graph.scalar(factor)
        if other is value and alpha is not None and graph.rank(factor) in (0, 1) and (graph.rank(value) or 0) > 0:
            return float(alpha), (times,)
    return None
