"""x * HardSigmoid(x) => HardSwish(x).

For slope 1/6 and offset 1/2. Refuses other ones, if the sigmoid is read elsewhere, and types other than float, for
which ONNX Runtime has no kernel. Helps readability more than speed: the runtime decomposes it into the same two
operators.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.support import HARD_SIGMOID
from sardonyx.passes._matching import consumer_of, other_operand, require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass
from sardonyx.passes.norms._arithmetic import near


class FuseHardSwish(NodePass):
    """A value times its hard sigmoid."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("HardSigmoid",)
    opset = 7  # before, operands broadcast only with an attribute
    needs = 14
    example = Example(
        before="(float[N, 4] x) => (float[N, 4] y) { a = HardSigmoid <alpha = 0.16666667> (x)  y = Mul(a, x) }",
        after="{ y = HardSwish(x) }",
        near_miss="{ a = HardSigmoid(x)  y = Mul(a, x) }",
        refusal="another slope",
        opset=14,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        user = required(consumer_of(node.outputs[0], graph, ("Mul",)))
        require(other_operand(user, node.outputs[0]) is node.inputs[0])
        slope, offset = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
        is_swish = near(slope, 1 / 6, ir.DataType.FLOAT) and near(offset, 0.5, ir.DataType.FLOAT)
        require(is_swish, "the hard sigmoid has another slope or offset", node, user)
        require(graph.dtype(node.inputs[0]) == ir.DataType.FLOAT, HARD_SIGMOID.fact, node, user)
        return Match((node, user), build=lambda op: op.HardSwish(node.inputs[0]))
