"""Identity(x) => x.

Also Dropout outside training. Refuses where the node connects a graph's input or constant to its output, since the
output would lose its name (the driver sees to that). Helps because exporters wrap shared weights in Identity, which
hides them from every other pass.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes.base import Example, NodePass
from sardonyx.records.run import Accuracy


class EliminateIdentity(NodePass):
    """Identity and inference-time Dropout."""

    name = "eliminate-identity"
    accuracy = Accuracy.EXACT
    roots = ("Identity", "Dropout")
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) { a = Relu(x)  b = Identity(a)  y = Neg(b) }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) { a = Relu(x)  y = Neg(a) }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) { y = Identity(x) }
        """,
        refusal="output would lose its name",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """An Identity, or a Dropout that drops nothing and whose mask nobody reads."""
        if node.inputs[0] is None:
            return None
        if node.op_type == "Dropout":
            if refusal := _drops(node, graph):
                return Refused(refusal, (node,))
            return Match((node,), outputs=(node.outputs[0],))
        return Match((node,))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The input itself."""
        source = match.root.inputs[0]
        assert source is not None
        return source


def _drops(node: ir.Node, graph: Facts) -> str | None:
    """Why a Dropout is more than an identity; None where it is not."""
    if any(mask.uses() or mask.is_graph_output() for mask in node.outputs[1:]):
        return "its mask is read"
    if graph.opset(node) < 7:
        training = node.attributes.get_int("is_test", 0) == 0
    else:
        flag = node.inputs[2] if len(node.inputs) > 2 else None
        training = flag is not None and graph.scalar(flag) is not False
    return "it may run in training mode" if training else None
