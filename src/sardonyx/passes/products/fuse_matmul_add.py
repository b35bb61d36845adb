"""MatMul(x, W) + b => Gemm(x, W, b), for matrices.

Also a Gemm without its third operand. Refuses if x or W may not have rank two, if b could enlarge the result, and if
the product is read elsewhere. Helps because the sum is computed while the product is written.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.facts import Dim, Shape
from sardonyx.ir.ops import MATRIX_PRODUCTS
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import operand_producer
from sardonyx.passes.base import Accuracy, Example, Facts, Match, OperandPass, Refused

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
_BFLOAT16_SINCE = 13


class FuseMatMulAdd(OperandPass):
    """A product of matrices plus a bias."""

    name = "fuse-matmul-add"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Add",)
    opset = 7  # before, Add and Gemm broadcast only with an attribute
    example = Example(
        before="""
            agraph (float[N, 2] x) => (float[N, 3] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9}> {
                a = MatMul(x, w)  y = Add(b, a)
            }
        """,
        after="""
            agraph (float[N, 2] x) => (float[N, 3] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9}> {
                y = Gemm(x, w, b)
            }
        """,
        near_miss="""
            agraph (float[N, M, 2] x) => (float[N, M, 3] y)
            <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9}> {
                a = MatMul(x, w)  y = Add(b, a)
            }
        """,
        refusal="two axes",
    )

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match | Refused | None:
        product, bias = operand_producer(node, index, MATRIX_PRODUCTS), node.inputs[1 - index]
        if product is None or bias is None or operand(product, 2) is not None:
            return None
        value = product.outputs[0]
        nodes = (product, node)
        first, second = graph.shape(product.inputs[0]), graph.shape(product.inputs[1])
        if first is None or second is None or graph.shape(bias) is None:
            return None
        if len(first) != 2 or len(second) != 2:
            reason = "an operand of the product does not have two axes"
            return Refused(reason, nodes) if graph.tensor(bias) is not None else None
        dtype = graph.dtype(value) or graph.dtype(bias)
        has_kernel = dtype in _FLOATS or (dtype == ir.DataType.BFLOAT16 and graph.opset(node) >= _BFLOAT16_SINCE)
        if not has_kernel or 0 in (*first, *second):
            return None
        rows = first[product.attributes.get_int("transA", 0)]
        columns = second[1 - product.attributes.get_int("transB", 0)]
        if not _broadcasts(graph.shape(bias) or (), rows, columns):
            return Refused("the bias could enlarge the product", nodes)
        if graph.sole_consumer(value) is not node:
            return Refused("the product is read elsewhere", nodes)
        inputs = (*product.inputs[:2], bias)
        if product.op_type == "Gemm":
            return Match(nodes, build=lambda op: op.like(product, inputs, beta=None))
        return Match(nodes, build=lambda op: op.Gemm(*inputs))


def _broadcasts(bias: Shape, rows: Dim, columns: Dim) -> bool:
    """Return whether the bias certainly broadcasts to the product and not the other way round."""
    if len(bias) > 2:
        return False
    trailing = (rows, columns)[2 - len(bias) :]
    return all(dim in (1, size) for dim, size in zip(bias, trailing, strict=True))
