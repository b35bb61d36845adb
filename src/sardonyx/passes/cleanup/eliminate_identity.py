"""Identity(x) => x.

Also Dropout outside training. Refuses if the node connects an input or constant of a graph to its output, since the
output would lose its name (the driver checks that). Helps because exporters wrap shared weights in Identity, which
hides them from every other pass.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._matching import is_used
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, Refused


class EliminateIdentity(NodePass):
    """Identity, and Dropout at inference."""

    name = "eliminate-identity"
    accuracy = Accuracy.EXACT
    roots = ("Identity", "Dropout")
    example = Example(
        before="agraph (float[N, 4] x) => (float[N, 4] y) { a = Relu(x)  b = Identity(a)  y = Neg(b) }",
        after="agraph (float[N, 4] x) => (float[N, 4] y) { a = Relu(x)  y = Neg(a) }",
        near_miss="agraph (float[N, 4] x) => (float[N, 4] y) { y = Identity(x) }",
        refusal="output would lose its name",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        source = node.inputs[0]
        if source is None:
            return None
        if node.op_type == "Dropout" and (refusal := _dropout_refusal(node, graph)):
            return Refused(refusal, (node,))
        return Match((node,), outputs=(node.outputs[0],), build=lambda _: source)


def _dropout_refusal(node: ir.Node, graph: Facts) -> str | None:
    """Return why a Dropout is not an identity, or None if it is one."""
    if any(map(is_used, node.outputs[1:])):
        return "the mask of the Dropout is read"
    if graph.opset(node) < 7:
        training = node.attributes.get_int("is_test", 0) == 0
    else:
        flag = node.inputs[2] if len(node.inputs) > 2 else None
        training = flag is not None and graph.scalar(flag) is not False
    return "it may run in training mode" if training else None
