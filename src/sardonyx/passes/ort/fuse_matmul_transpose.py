"""MatMul(x, Transpose(W)) => FusedMatMul(x, W), of ONNX Runtime, for a constant matrix W.

Only for weights that other nodes read in their original layout, such as an embedding that is also the last projection;
all others are stored transposed. Only for single precision, the only type with a kernel. Helps because the weight is
not stored in two layouts.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._matching import require
from sardonyx.passes.base import Accuracy, Example, Facts, Match, PairPass
from sardonyx.passes.ort._contrib import OrtPass, contrib


class FuseMatMulTranspose(OrtPass, PairPass):
    """The transpose of a shared weight before a product."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("MatMul",)
    inner, operand = ("Transpose",), 1
    example = Example(
        before="""
            (bool[N, S] b) => (float[N, S, 3] y) <float[3, 2] w = {1, 2, -3, 4, 5, -6}>
            { i = Cast <to = 7> (b)  x = Gather(w, i)  t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t) }
        """,
        after="{ i = Cast <to = 7> (b)  x = Gather(w, i)  y = com.microsoft.FusedMatMul <transB = 1> (x, w) }",
        near_miss="""
            (float[N, S, 2] x, float[3, 2] w) => (float[N, S, 3] y)
            { t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t) }
        """,
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        source, weight = node.inputs[0], inner.inputs[0]
        require(graph.tensor(weight) is not None and graph.rank(weight) == 2)
        require(tuple(inner.attributes.get_ints("perm", (1, 0))) == (1, 0) and (graph.rank(source) or 0) >= 2)
        return contrib("FusedMatMul", (inner, node), (source, weight), {"transB": 1}, graph)
