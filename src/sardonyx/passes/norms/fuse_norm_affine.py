"""LayerNormalization(x, a, b) * c => LayerNormalization(x, a * c, b * c), and likewise + c; also RMSNormalization.

For c with one number per normalised element, if the products and sums can be computed ahead of time: of constants, or
with a scale of one and no bias. Refuses if they cannot, if one of them would overflow or lose precision, and if
statistics of the normalisation are read as well. Helps because some exporters scale by ones and leave the actual scale
to a multiplication: without it the whole takes two thirds of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.ir.expressions import Expression, known
from sardonyx.ir.precision import Impossible, rounded
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import consumer_of, is_used, optional, other_operand, require, required
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement
from sardonyx.passes.norms._arithmetic import broadcast_constant
from sardonyx.passes.norms._normalisation import Weight, fitting, sizes, weight


class FuseNormAffine(NodePass):
    """A scale or bias after a normalisation."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("LayerNormalization", "RMSNormalization")
    opset = 17
    example = Example(
        before="""
            (float[N, 3] x) => (float[N, 3] y) <
                float[3] ones = {1, 1, 1}, float[1, 3] gamma = {1, 2, -3}, float[3] beta = {4, 5, 6}, float half = {0.5}
            > { a = LayerNormalization(x, ones)  b = Mul(gamma, a)  c = Add(b, beta)  y = Mul(c, half) }
        """,
        after="""
            <float[3] gamma = {0.5, 1, -1.5}, float[3] beta = {2, 2.5, 3}> { y = LayerNormalization(x, gamma, beta) }
        """,
        near_miss="""
            (float[N, 3] x, float[3] gamma) => (float[N, 3] y)
            <float[3] scale = {1, 2, 3}> { a = LayerNormalization(x, scale)  y = Mul(a, gamma) }
        """,
        refusal="not both constant",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        value, source = node.outputs[0], required(node.inputs[0])
        applied = ("Mul", "Add") if node.op_type == "LayerNormalization" else ("Mul",)
        user = required(consumer_of(value, graph, applied))
        other = required(other_operand(user, value))
        rank, axis = required(graph.rank(source)), node.attributes.get_int("axis", -1)
        extent = required(sizes(source, -axis if axis < 0 else rank - axis, graph))
        fits = required(fitting(other, extent, rank, graph) if other is not value else None)
        is_read = any(map(is_used, node.outputs[1:]))
        require(not is_read, "statistics of the normalisation are read", node, user)
        try:
            weights = _merged(user.op_type, operand(node, 1), operand(node, 2), fits, extent, graph)
        except Impossible as error:
            raise Refused(str(error), (node, user)) from None
        refusal = "its scale or bias and what is applied to it are not both constant"
        scale, bias = required(weights, refusal, node, user)

        def build(op: Builder) -> Replacement:
            inputs = (source, weight(scale, op, "scale"), weight(bias, op, "bias"))
            return op.node(node.op_type, inputs, dict(node.attributes))

        return Match((node, user), build=build)


@optional
def _merged(
    op_type: str, scale: ir.Value | None, bias: ir.Value | None, other: Weight, extent: Sequence[int], graph: Facts
) -> tuple[Weight | None, Weight | None]:
    """Return scale and bias after multiplication by `other` or addition of it, or None if they are not constant.

    Raises:
        Impossible: a product or sum does not fit the type it is stored in.
    """
    if op_type == "Add" and bias is None:
        return scale, other
    dtype = graph.dtype(scale)
    if op_type == "Add":
        total = _numbers(bias, extent, graph) + _numbers(other, extent, graph)
        return scale, rounded(total, required(dtype))
    factor = _numbers(scale, extent, graph)
    if bias is None and (factor.numpy() == 1).all():
        return other, None
    number = _numbers(other, extent, graph)
    shift = None if bias is None else _numbers(bias, extent, graph) * number
    dtype = required(dtype)
    return rounded(factor * number, dtype), None if shift is None else rounded(shift, dtype)


def _numbers(value: Weight | None, extent: Sequence[int], graph: Facts) -> Expression:
    """Return a constant weight, broadcast and in double precision; another value is no match."""
    tensor = required(graph.tensor(value) if isinstance(value, ir.Value) else value)
    return known(required(broadcast_constant(tensor, extent)))
