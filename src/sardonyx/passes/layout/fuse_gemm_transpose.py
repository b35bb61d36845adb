"""Gemm(Transpose(A), B) => Gemm(A, B, transA=1).

For both operands. Refuses nothing: a Gemm reads matrices only, so the Transpose can only swap their two axes; if it has
other consumers it stays for them. Helps because the multiplication reads either layout, and a tied weight is then
stored once.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._matching import operand_producer, require
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass

_FLAGS = ("transA", "transB")


class FuseGemmTranspose(NodePass):
    """Transposes that a Gemm can do itself."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Gemm",)
    opset = 7  # before, Gemm broadcast only with an attribute
    example = Example(
        before="(float[4, N] x, float[4, 3] w) => (float[N, 3] y) { a = Transpose(x)  y = Gemm(a, w) }",
        after="{ y = Gemm <transA = 1> (x, w) }",
        near_miss="""
            (float[N, 4] x, float[4, 3] w) => (float[N, 3] y) { a = Transpose <perm = [0, 1]> (x)  y = Gemm(a, w) }
        """,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        swaps = [operand_producer(node, index, ("Transpose",)) for index in (0, 1)]
        inputs, flags, nodes = list(node.inputs), dict[str, int | None](), dict[ir.Node, None]()
        for index, (swap, flag) in enumerate(zip(swaps, _FLAGS, strict=True)):
            if swap is not None and tuple(swap.attributes.get_ints("perm", (1, 0))) == (1, 0):
                inputs[index], nodes[swap] = swap.inputs[0], None
                flags[flag] = None if node.attributes.get_int(flag, 0) else 1
        require(len(nodes) > 0)
        return Match((*nodes, node), build=lambda op: op.like(node, tuple(inputs), **flags))
