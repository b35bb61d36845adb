"""x * HardSigmoid(x) => HardSwish(x).

For the slope 1/6 and the offset 1/2. Refuses for others, where the sigmoid is read elsewhere, and for types other than
float, for which ONNX Runtime has no kernel. Helps readers more than the clock: the runtime takes it apart into the two
operators it came from, at the same speed.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.norms._arithmetic import near, partner, reader
from sardonyx.records.run import Accuracy


class FuseHardSwish(NodePass):
    """A value times its hard sigmoid."""

    name = "fuse-hard-swish"
    accuracy = Accuracy.REASSOCIATES
    roots = ("HardSigmoid",)
    opset = 7  # before, operands were broadcast by an attribute
    needs = 14
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 14]>
            agraph (float[N, 4] x) => (float[N, 4] y) { a = HardSigmoid <alpha = 0.16666667> (x)  y = Mul(a, x) }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 14]>
            agraph (float[N, 4] x) => (float[N, 4] y) { y = HardSwish(x) }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 14]>
            agraph (float[N, 4] x) => (float[N, 4] y) { a = HardSigmoid(x)  y = Mul(a, x) }
        """,
        refusal="another slope",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """A hard sigmoid that is only multiplied with what it is of."""
        user = reader(node.outputs[0], graph, "Mul")
        if user is None or partner(user, node.outputs[0]) is not node.inputs[0]:
            return None
        slope, offset = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
        if not near(slope, 1 / 6, ir.DataType.FLOAT) or not near(offset, 0.5, ir.DataType.FLOAT):
            return Refused("the hard sigmoid has another slope or offset", (node, user))
        if graph.dtype(node.inputs[0]) != ir.DataType.FLOAT:
            return Refused("the runtime has a kernel for float only", (node, user))
        return Match((node, user))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """One operator."""
        return op.HardSwish(match.nodes[0].inputs[0])
