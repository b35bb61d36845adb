"""Identity(x) => x.

Also Dropout outside training. Refuses if the node connects an input or constant of a graph to its output, since the
output would lose its name (the driver checks that). Helps because exporters wrap shared weights in Identity, which
hides them from every other pass.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import is_used
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, require, required


class EliminateIdentity(NodePass):
    """Identity, and Dropout at inference."""

    accuracy = Accuracy.EXACT
    roots = ("Identity", "Dropout")
    example = Example(
        before="(float[N, 4] x) => (float[N, 4] y) { a = Relu(x)  b = Identity(a)  y = Neg(b) }",
        after="{ a = Relu(x)  y = Neg(a) }",
        near_miss="{ y = Identity(x) }",
        refusal="output would lose its name",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        source = required(node.inputs[0])
        if node.op_type == "Dropout":
            require(not any(map(is_used, node.outputs[1:])), "the mask of the Dropout is read")
            flag, is_test = operand(node, 2), node.attributes.get_int("is_test", 0)
            runs = flag is None or graph.scalar(flag) is False if graph.opset(node) >= 7 else is_test != 0
            require(runs, "it may run in training mode")
        return Match((node,), outputs=(node.outputs[0],), build=lambda _: source)
