"""Conv(x, W, b) * s + t => Conv(x, s * W, s * b + t).

For Mul, Add, Sub and Div after a Conv or ConvTranspose, with a constant that has at most one number per output channel
and does not enlarge the result. Not before a convolution, since its padding would have to be shifted too. Refuses if
the value in between is used elsewhere, or the constant varies within a channel. Helps because the arithmetic then costs
nothing at run time.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.expressions import Expression, known, literal
from sardonyx.ir.facts import SMALL
from sardonyx.ir.ops import ARITHMETIC, CONVOLUTIONS
from sardonyx.passes._channels import Linear, linear_before, rebuilt
from sardonyx.passes._numbers import may_flip
from sardonyx.passes.base import Accuracy, Example, Facts, Match, OperandPass, Refused


class FuseConvAffine(OperandPass):
    """Arithmetic with constants after a convolution."""

    name = "fuse-conv-affine"
    accuracy = Accuracy.REASSOCIATES
    roots = tuple(sorted(ARITHMETIC))
    opset = 7  # before, operands broadcast only with an attribute
    example = Example(
        before="""
            agraph (float[N, 1, 4, 4] x) => (float[N, 2, 4, 4] y) <
                float[2, 1, 1, 1] w = {1.0, 2.0}, float[2, 1, 1] s = {2.0, 4.0}, float[1, 2, 1, 1] t = {1.0, -1.0}
            > { a = Conv(x, w)  b = Mul(s, a)  y = Sub(b, t) }
        """,
        after="""
            agraph (float[N, 1, 4, 4] x) => (float[N, 2, 4, 4] y)
            <float[2, 1, 1, 1] w = {2.0, 8.0}, float[2] b = {-1.0, 1.0}> { y = Conv(x, w, b) }
        """,
        near_miss="""
            agraph (float[N, 1, 4, 2] x) => (float[N, 2, 4, 2] y)
            <float[2, 1, 1, 1] w = {1.0, 2.0}, float[2] s = {2.0, 4.0}> { a = Conv(x, w)  y = Mul(a, s) }
        """,
        refusal="varies within a channel",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match | Refused | None:
        constant = graph.tensor(node.inputs[1 - index])
        if constant is None or constant.nbytes > SMALL:
            return None
        linear = linear_before(node.inputs[index], node, graph, CONVOLUTIONS)
        if isinstance(linear, str):
            return Refused(linear, (node,))
        return None if linear is None else _matched(node, linear, constant, graph, constant_first=index == 1)


def _matched(
    node: ir.Node, linear: Linear, constant: ir.TensorProtocol, graph: Facts, *, constant_first: bool
) -> Match | Refused | None:
    nodes = (linear.node, node)
    numbers = _per_channel(constant, linear)
    if numbers is None:
        return Refused("the constant varies within a channel", nodes)
    one, zero = literal(1.0), literal(0.0)
    match node.op_type, constant_first:
        case "Mul", _:
            scale, shift = numbers, zero
        case "Add", _:
            scale, shift = one, numbers
        case "Sub", False:
            scale, shift = one, -numbers
        case "Sub", True:
            scale, shift = -one, numbers
        case "Div", False:
            scale, shift = one / numbers, zero
        case _:
            return None
    if not (np.isfinite(scale.numpy()).all() and np.isfinite(shift.numpy()).all()):
        return Refused("the constant gives no finite scale", nodes)
    if may_flip(scale.numpy(), shift.numpy(), node.outputs[0], graph):
        return Refused("the sign of a zero may be visible", nodes)
    return Match(nodes, build=lambda op: rebuilt(linear, scale, shift, op))


def _per_channel(constant: ir.TensorProtocol, linear: Linear) -> Expression | None:
    """Return a constant with one number for each output channel or for all; None if it varies more or enlarges."""
    rank, sizes = len(linear.weight.shape), constant.shape.numpy()
    shape = (*(1,) * (rank - len(sizes)), *sizes)
    if len(shape) > rank or any(dim != 1 for axis, dim in enumerate(shape) if axis != 1):
        return None
    return known(constant).reshaped([-1]) if shape[1] in (1, linear.channels) else None
