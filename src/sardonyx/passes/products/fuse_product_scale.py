"""(MatMul(x, W) + b) * s => MatMul(x, s * W) + s * b.

For Mul by a constant with one number per column or a single number, and for Div by one; also of a Gemm, of a product
without a bias, and with a Transpose in between. Refuses if W or b is not a constant or is shared, if a value in between
is read elsewhere, and if the constant varies within a column. Helps because a scale over every activation becomes part
of the weight.
"""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from sardonyx.ir.expressions import Expression, literal
from sardonyx.ir.facts import SMALL_CONSTANT_BYTES
from sardonyx.ir.ops import MATRIX_PRODUCTS
from sardonyx.ir.scopes import operand
from sardonyx.passes._channels import USED_ELSEWHERE, Linear, applied, biased_product
from sardonyx.passes._matching import operand_producer, permutation, require, required
from sardonyx.passes._numbers import FLOATS
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, OperandPass, Replacement


class FuseProductScale(OperandPass):
    """A scale after a product with a constant weight."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Mul", "Div")
    opset = 7  # before, operands broadcast only with an attribute
    example = Example(
        before="""
            (float[N, M, 2] x) => (float[N, 3, M] y) <
                float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9}, float[3, 1] s = {2, 3, 4}
            > { a = MatMul(x, w)  c = Add(b, a)  d = Transpose <perm = [0, 2, 1]> (c)  y = Mul(s, d) }
        """,
        after="""
            <float[2, 3] w = {2, 6, 12, 8, 15, 24}, float[3] b = {14, 24, 36}> {
                a = MatMul(x, w)  c = Add(a, b)  y = Transpose <perm = [0, 2, 1]> (c)
            }
        """,
        near_miss="""
            (float[N, 3, 2] x) => (float[N, 3, 3] y)
            <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3, 1] s = {2, 3, 4}> { a = MatMul(x, w)  y = Mul(a, s) }
        """,
        refusal="varies within a column",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match:
        constant = required(graph.tensor(node.inputs[1 - index]))
        require(constant.nbytes <= SMALL_CONSTANT_BYTES and (node.op_type, index) != ("Div", 1))
        move = operand_producer(node, index, ("Transpose",))
        reader, place = (node, index) if move is None else (move, 0)
        add = operand_producer(reader, place, ("Add",))
        if add is None:
            product = required(operand_producer(reader, place, MATRIX_PRODUCTS))
            bias = operand(product, 2)
        else:
            product, bias = required(biased_product(add, graph))
        nodes = tuple(each for each in (product, add, move, node) if each is not None)
        weight, shift = required(graph.tensor(product.inputs[1])), graph.tensor(bias)
        require(weight.dtype in FLOATS and len(weight.shape) == 2)
        linear = Linear(product, weight, shift)
        columns = linear.channels
        is_vector = bias is None or (shift is not None and shift.shape.numpy() in ((), (columns,)))
        require(is_vector, "the bias before it does not have one number per column", *nodes)
        is_sole = all(graph.sole_consumer(inner.outputs[0]) is not None for inner in nodes[:-1])
        require(is_sole, USED_ELSEWHERE, *nodes)
        own = all(value is None or graph.sole_consumer(value) is not None for value in (product.inputs[1], bias))
        require(own, "the weight before it is shared", *nodes)
        shape = constant.shape.numpy()
        if move is not None:
            perm = required(permutation(move, graph))
            require(len(shape) <= len(perm))
            sizes = (*(1,) * (len(perm) - len(shape)), *shape)
            shape = tuple(sizes[perm.index(axis)] for axis in range(len(perm)))
        require(len(shape) <= required(graph.rank(product.outputs[0])))
        is_row = constant.size == 1 or constant.size == shape[-1] == columns
        require(is_row, "the constant varies within a column", *nodes)
        scale, _ = applied(node, index, constant, graph, *nodes)  # along one axis, so a Transpose keeps their order
        return Match(nodes, build=partial(_rescaled, linear, move, scale))


def _rescaled(linear: Linear, move: ir.Node | None, scale: Expression, op: Builder) -> Replacement:
    """Build the product with the scale in its weight and bias."""
    source = linear.node.inputs[0]
    weight = op.constant(linear.scaled_weight(scale), "weight")
    bias = None if linear.bias is None else op.constant(linear.changed_bias(scale, literal(0.0)), "bias")
    if linear.node.op_type == "Gemm":
        value = op.like(linear.node, (source, weight, bias), beta=None)
    else:
        value = op.MatMul(source, weight) if bias is None else op.Add(op.MatMul(source, weight), bias)
    return value if move is None else op.like(move, (value,))
