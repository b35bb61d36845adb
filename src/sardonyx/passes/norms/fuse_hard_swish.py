"""x * HardSigmoid(x) => HardSwish(x).

For slope 1/6 and offset 1/2. Refuses other ones, if the sigmoid is read elsewhere, and types other than float, for
which ONNX Runtime has no kernel. Helps readability more than speed: the runtime decomposes it into the same two
operators.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._matching import consumer_of, other_operand
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, Refused
from sardonyx.passes.norms._arithmetic import near


class FuseHardSwish(NodePass):
    """A value times its hard sigmoid."""

    name = "fuse-hard-swish"
    accuracy = Accuracy.REASSOCIATES
    roots = ("HardSigmoid",)
    opset = 7  # before, operands broadcast only with an attribute
    needs = 14
    example = Example(
        before="agraph (float[N, 4] x) => (float[N, 4] y) { a = HardSigmoid <alpha = 0.16666667> (x)  y = Mul(a, x) }",
        after="agraph (float[N, 4] x) => (float[N, 4] y) { y = HardSwish(x) }",
        near_miss="agraph (float[N, 4] x) => (float[N, 4] y) { a = HardSigmoid(x)  y = Mul(a, x) }",
        refusal="another slope",
        opset=14,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        user = consumer_of(node.outputs[0], graph, ("Mul",))
        if user is None or other_operand(user, node.outputs[0]) is not node.inputs[0]:
            return None
        slope, offset = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
        if not near(slope, 1 / 6, ir.DataType.FLOAT) or not near(offset, 0.5, ir.DataType.FLOAT):
            return Refused("the hard sigmoid has another slope or offset", (node, user))
        if graph.dtype(node.inputs[0]) != ir.DataType.FLOAT:
            return Refused("the runtime has a kernel for float only", (node, user))
        return Match((node, user), build=lambda op: op.HardSwish(node.inputs[0]))
