"""Conv(x, W, b) * s + t => Conv(x, s * W, s * b + t).

For Mul, Add, Sub and Div after a Conv or ConvTranspose, with a constant that has at most one number per output channel
and does not enlarge the result. Not before a convolution, since its padding would have to be shifted too. Refuses if
the value in between is used elsewhere, or the constant varies within a channel. Helps because the arithmetic then costs
nothing at run time.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.ir.facts import SMALL_CONSTANT_BYTES
from sardonyx.ir.ops import ARITHMETIC, CONVOLUTIONS
from sardonyx.passes._channels import applied, linear_before, rebuilt
from sardonyx.passes._matching import require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, OperandPass


class FuseConvAffine(OperandPass):
    """Arithmetic with constants after a convolution."""

    accuracy = Accuracy.REASSOCIATES
    roots = tuple(sorted(ARITHMETIC))
    opset = 7  # before, operands broadcast only with an attribute
    example = Example(
        before="""
            (float[N, 1, 4, 4] x) => (float[N, 2, 4, 4] y) <
                float[2, 1, 1, 1] w = {1.0, 2.0}, float[2, 1, 1] s = {2.0, 4.0}, float[1, 2, 1, 1] t = {1.0, -1.0}
            > { a = Conv(x, w)  b = Mul(s, a)  y = Sub(b, t) }
        """,
        after="<float[2, 1, 1, 1] w = {2.0, 8.0}, float[2] b = {-1.0, 1.0}> { y = Conv(x, w, b) }",
        near_miss="""
            (float[N, 1, 4, 2] x) => (float[N, 2, 4, 2] y)
            <float[2, 1, 1, 1] w = {1.0, 2.0}, float[2] s = {2.0, 4.0}> { a = Conv(x, w)  y = Mul(a, s) }
        """,
        refusal="varies within a channel",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match:
        constant = required(graph.tensor(node.inputs[1 - index]))
        require(constant.nbytes <= SMALL_CONSTANT_BYTES)
        linear = required(linear_before(node.inputs[index], node, graph, CONVOLUTIONS))
        nodes, sizes, rank = (linear.node, node), constant.shape.numpy(), len(linear.weight.shape)
        shape = (*(1,) * (rank - len(sizes)), *sizes)
        is_vector = len(shape) == rank and shape[1] in (1, linear.channels) and math.prod(shape) == shape[1]
        require(is_vector, "the constant varies within a channel", *nodes)
        scale, shift = applied(node, index, constant, graph, *nodes)
        return Match(nodes, build=lambda op: rebuilt(linear, scale, shift, op))
