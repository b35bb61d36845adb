"""(MatMul(x, W) + b) * s => MatMul(x, s * W) + s * b.

For Mul by a constant with one number per column or a single number, and for Div by one; also of a Gemm, of a product
without a bias, and with a Transpose in between. Refuses if W or b is not a constant or is shared, if a value in between
is read elsewhere, and if the constant varies within a column. Helps because a scale over every activation becomes part
of the weight.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.expressions import Expression, known, literal
from sardonyx.ir.facts import SMALL
from sardonyx.ir.ops import MATRIX_PRODUCTS
from sardonyx.ir.scopes import operand
from sardonyx.passes._channels import USED_ELSEWHERE, Linear
from sardonyx.passes._matching import operand_producer, permutation
from sardonyx.passes._numbers import FLOATS, may_flip
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, OperandPass, Refused, Replacement


class _Scaled(Struct, frozen=True, eq=False):
    """A product, the Add of its bias and a Transpose if there are any, and the scale."""

    linear: Linear
    add: ir.Node | None
    move: ir.Node | None
    node: ir.Node

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return tuple(node for node in (self.linear.node, self.add, self.move, self.node) if node is not None)


class FuseProductScale(OperandPass):
    """A scale after a product with a constant weight."""

    name = "fuse-product-scale"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Mul", "Div")
    opset = 7  # before, operands broadcast only with an attribute
    example = Example(
        before="""
            agraph (float[N, M, 2] x) => (float[N, 3, M] y) <
                float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9}, float[3, 1] s = {2, 3, 4}
            > { a = MatMul(x, w)  c = Add(b, a)  d = Transpose <perm = [0, 2, 1]> (c)  y = Mul(s, d) }
        """,
        after="""
            agraph (float[N, M, 2] x) => (float[N, 3, M] y) <
                float[2, 3] w = {2, 6, 12, 8, 15, 24}, float[3] b = {14, 24, 36}
            > { a = MatMul(x, w)  c = Add(a, b)  y = Transpose <perm = [0, 2, 1]> (c) }
        """,
        near_miss="""
            agraph (float[N, 3, 2] x) => (float[N, 3, 3] y) <
                float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3, 1] s = {2, 3, 4}
            > { a = MatMul(x, w)  y = Mul(a, s) }
        """,
        refusal="varies within a column",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match | Refused | None:
        constant = graph.tensor(node.inputs[1 - index])
        if constant is None or constant.nbytes > SMALL or (node.op_type == "Div" and index == 1):
            return None
        scaled = _scaled(node, index, graph)
        return _matched(scaled, constant, graph) if isinstance(scaled, _Scaled) else scaled


def _scaled(node: ir.Node, place: int, graph: Facts) -> _Scaled | Refused | None:
    """Return what the constant scales if it is a product, otherwise None."""
    move = operand_producer(node, place, ("Transpose",))
    consumer, index = (node, place) if move is None else (move, 0)
    add = operand_producer(consumer, index, ("Add",))
    if add is None:
        return _checked(operand_producer(consumer, index, MATRIX_PRODUCTS), None, None, move, node, graph)
    for side in (0, 1):
        product, bias = operand_producer(add, side, ("MatMul",)), add.inputs[1 - side]
        if product is not None and graph.tensor(bias) is not None:
            return _checked(product, bias, add, move, node, graph)
    return None


def _checked(
    product: ir.Node | None,
    bias: ir.Value | None,
    add: ir.Node | None,
    move: ir.Node | None,
    node: ir.Node,
    graph: Facts,
) -> _Scaled | Refused | None:
    if product is None:
        return None
    weight = graph.tensor(product.inputs[1])
    bias = operand(product, 2) if product.op_type == "Gemm" else bias
    shift = graph.tensor(bias)
    if weight is None or weight.dtype not in FLOATS or len(weight.shape) != 2:
        return None
    scaled = _Scaled(Linear(product, weight, shift), add, move, node)
    if bias is not None and (shift is None or shift.shape.numpy() not in ((), (scaled.linear.channels,))):
        return Refused("the bias before it does not have one number per column", scaled.nodes)
    if any(graph.sole_consumer(inner.outputs[0]) is None for inner in scaled.nodes[:-1]):
        return Refused(USED_ELSEWHERE, scaled.nodes)
    if any(value is not None and graph.sole_consumer(value) is None for value in (product.inputs[1], bias)):
        return Refused("the weight before it is shared", scaled.nodes)
    return scaled


def _matched(scaled: _Scaled, constant: ir.TensorProtocol, graph: Facts) -> Match | Refused | None:
    shape = constant.shape.numpy()
    if scaled.move is not None:
        perm = permutation(scaled.move, graph)
        if perm is None or len(shape) > len(perm):
            return None
        sizes = (*(1,) * (len(perm) - len(shape)), *shape)
        shape = tuple(sizes[perm.index(axis)] for axis in range(len(perm)))
    rank, columns = graph.rank(scaled.linear.node.outputs[0]), scaled.linear.channels
    if rank is None or len(shape) > rank:
        return None
    if constant.size != 1 and (constant.size != shape[-1] or constant.size != columns):
        return Refused("the constant varies within a column", scaled.nodes)
    numbers = known(constant).reshaped([-1])  # all along one axis, so a Transpose leaves them in order
    scale = literal(1.0) / numbers if scaled.node.op_type == "Div" else numbers
    if not np.isfinite(scale.numpy()).all():
        return Refused("the constant gives no finite scale", scaled.nodes)
    if may_flip(scale.numpy(), np.zeros(columns), scaled.node.outputs[0], graph):
        return Refused("the sign of a zero may be visible", scaled.nodes)
    return Match(scaled.nodes, build=partial(_rescaled, scaled, scale))


def _rescaled(scaled: _Scaled, scale: Expression, op: Builder) -> Replacement:
    """Build the product with the scale in its weight and bias."""
    node = scaled.linear.node
    weight = op.constant(scaled.linear.scaled_weight(scale), "weight")
    bias = None
    if scaled.linear.bias is not None:
        bias = op.constant(scaled.linear.changed_bias(scale, literal(0.0)), "bias")
    if node.op_type == "Gemm":
        value = op.like(node, (node.inputs[0], weight, bias), beta=None)
    else:
        value = op.MatMul(node.inputs[0], weight)
        value = value if bias is None else op.Add(value, bias)
    return value if scaled.move is None else op.like(scaled.move, (value,))
