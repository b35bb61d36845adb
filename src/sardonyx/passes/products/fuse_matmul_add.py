"""MatMul(x, W) + b => Gemm(x, W, b), for matrices.

Also a Gemm without its third operand. Refuses if x or W may not have rank two, if b could enlarge the result, and if
the product is read elsewhere. Helps because the sum is computed while the product is written.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.ops import MATRIX_PRODUCTS
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
_BFLOAT16_SINCE = 13


class FuseMatMulAdd(PairPass):
    """A product of matrices plus a bias."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Add",)
    inner = MATRIX_PRODUCTS
    read_elsewhere = "the product is read elsewhere"
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

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        nodes, bias = (inner, node), required(node.inputs[1 - index])
        require(operand(inner, 2) is None)
        first, second, shape = (required(graph.shape(each)) for each in (*inner.inputs[:2], bias))
        refusal = "" if graph.tensor(bias) is None else "an operand of the product does not have two axes"
        require(len(first) == len(second) == 2, refusal)
        dtype = graph.dtype(inner.outputs[0]) or graph.dtype(bias)
        has_kernel = dtype in _FLOATS or (dtype == ir.DataType.BFLOAT16 and graph.opset(node) >= _BFLOAT16_SINCE)
        require(has_kernel and 0 not in (*first, *second))
        rows = first[inner.attributes.get_int("transA", 0)]
        columns = second[1 - inner.attributes.get_int("transB", 0)]
        trailing = zip(reversed(shape), (columns, rows), strict=False)
        fits = len(shape) <= 2 and all(dim in (1, size) for dim, size in trailing)
        require(fits, "the bias could enlarge the product")
        inputs = (*inner.inputs[:2], bias)
        if inner.op_type == "Gemm":
            return Match(nodes, build=lambda op: op.like(inner, inputs, beta=None))
        return Match(nodes, build=lambda op: op.Gemm(*inputs))
