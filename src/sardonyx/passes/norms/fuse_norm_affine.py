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
from sardonyx.passes._matching import consumer_of, is_used, other_operand
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement
from sardonyx.passes.norms._arithmetic import broadcast_constant
from sardonyx.passes.norms._normalisation import Weight, fitting, sizes, weight


class FuseNormAffine(NodePass):
    """A scale or bias after a normalisation."""

    name = "fuse-norm-affine"
    accuracy = Accuracy.REASSOCIATES
    roots = ("LayerNormalization", "RMSNormalization")
    opset = 17
    example = Example(
        before="""
            agraph (float[N, 3] x) => (float[N, 3] y) <
                float[3] ones = {1, 1, 1}, float[1, 3] gamma = {1, 2, -3}, float[3] beta = {4, 5, 6}, float half = {0.5}
            > { a = LayerNormalization(x, ones)  b = Mul(gamma, a)  c = Add(b, beta)  y = Mul(c, half) }
        """,
        after="""
            agraph (float[N, 3] x) => (float[N, 3] y) <float[3] gamma = {0.5, 1, -1.5}, float[3] beta = {2, 2.5, 3}> {
                y = LayerNormalization(x, gamma, beta)
            }
        """,
        near_miss="""
            agraph (float[N, 3] x, float[3] gamma) => (float[N, 3] y) <float[3] scale = {1, 2, 3}> {
                a = LayerNormalization(x, scale)  y = Mul(a, gamma)
            }
        """,
        refusal="not both constant",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        value, source = node.outputs[0], node.inputs[0]
        user = consumer_of(value, graph, ("Mul", *(("Add",) if node.op_type == "LayerNormalization" else ())))
        other = None if user is None else other_operand(user, value)
        if user is None or other is None or other is value or source is None:
            return None
        rank, axis = graph.rank(source), node.attributes.get_int("axis", -1)
        extent = None if rank is None else sizes(source, -axis if axis < 0 else rank - axis, graph)
        fits = None if extent is None else fitting(other, extent, rank, graph)
        if extent is None or fits is None:
            return None
        if any(map(is_used, node.outputs[1:])):
            return Refused("statistics of the normalisation are read", (node, user))
        try:
            weights = _merged(user.op_type, operand(node, 1), operand(node, 2), fits, extent, graph)
        except Impossible as error:
            return Refused(str(error), (node, user))
        if weights is None:
            return Refused("its scale or bias and what is applied to it are not both constant", (node, user))
        scale, bias = weights

        def build(op: Builder) -> Replacement:
            inputs = (source, weight(scale, op, "scale"), weight(bias, op, "bias"))
            return op.node(node.op_type, inputs, dict(node.attributes))

        return Match((node, user), build=build)


def _merged(
    op_type: str, scale: ir.Value | None, bias: ir.Value | None, other: Weight, extent: Sequence[int], graph: Facts
) -> tuple[Weight | None, Weight | None] | None:
    """Return scale and bias after multiplication by `other` or addition of it, or None if they are not constant.

    Raises:
        Impossible: a product or sum does not fit the type it is stored in.
    """
    number, dtype = _numbers(other, extent, graph), graph.dtype(scale)
    if op_type == "Add":
        if bias is None:
            return scale, other
        total = _numbers(bias, extent, graph)
        if total is None or number is None or dtype is None:
            return None
        return scale, rounded(total + number, dtype)
    factor = None if scale is None else _numbers(scale, extent, graph)
    if bias is None and factor is not None and (factor.numpy() == 1).all():
        return other, None
    shift = None if bias is None else _numbers(bias, extent, graph)
    if factor is None or number is None or dtype is None or (bias is not None and shift is None):
        return None
    return rounded(factor * number, dtype), None if shift is None else rounded(shift * number, dtype)


def _numbers(value: Weight, extent: Sequence[int], graph: Facts) -> Expression | None:
    """Return a constant weight, broadcast and in double precision."""
    tensor = graph.tensor(value) if isinstance(value, ir.Value) else value
    fits = None if tensor is None else broadcast_constant(tensor, extent)
    return None if fits is None else known(fits)
