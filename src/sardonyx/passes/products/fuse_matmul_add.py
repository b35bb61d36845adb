"""MatMul(x, W) + b => Gemm(x, W, b), for matrices.

Also a Gemm without its third operand. Refuses if x or W may not have rank two, if b could enlarge the result, and if
the product is read elsewhere. Helps because the sum is computed while the product is written.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.ops import MATRIX_PRODUCTS
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import operand_producer, require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, OperandPass

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
_BFLOAT16_SINCE = 13


class FuseMatMulAdd(OperandPass):
    """A product of matrices plus a bias."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Add",)
    opset = 7  # before, Add and Gemm broadcast only with an attribute
    example = Example(
        before="""
            (float[N, 2] x) => (float[N, 3] y)
            <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9}> { a = MatMul(x, w)  y = Add(b, a) }
        """,
        after="{ y = Gemm(x, w, b) }",
        near_miss="""
            (float[N, M, 2] x) => (float[N, M, 3] y)
            <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9}> { a = MatMul(x, w)  y = Add(b, a) }
        """,
        refusal="two axes",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match:
        product, bias = required(operand_producer(node, index, MATRIX_PRODUCTS)), required(node.inputs[1 - index])
        require(operand(product, 2) is None)
        nodes, value = (product, node), product.outputs[0]
        first, second, shape = (required(graph.shape(each)) for each in (*product.inputs[:2], bias))
        refusal = "" if graph.tensor(bias) is None else "an operand of the product does not have two axes"
        require(len(first) == len(second) == 2, refusal, *nodes)
        dtype = graph.dtype(value) or graph.dtype(bias)
        has_kernel = dtype in _FLOATS or (dtype == ir.DataType.BFLOAT16 and graph.opset(node) >= _BFLOAT16_SINCE)
        require(has_kernel and 0 not in (*first, *second))
        rows = first[product.attributes.get_int("transA", 0)]
        columns = second[1 - product.attributes.get_int("transB", 0)]
        trailing = zip(reversed(shape), (columns, rows), strict=False)
        fits = len(shape) <= 2 and all(dim in (1, size) for dim, size in trailing)
        require(fits, "the bias could enlarge the product", *nodes)
        require(graph.sole_consumer(value) is node, "the product is read elsewhere", *nodes)
        inputs = (*product.inputs[:2], bias)
        if product.op_type == "Gemm":
            return Match(nodes, build=lambda op: op.like(product, inputs, beta=None))
        return Match(nodes, build=lambda op: op.Gemm(*inputs))
