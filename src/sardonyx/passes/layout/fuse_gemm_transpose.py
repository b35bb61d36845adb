"""Gemm(Transpose(A), B) => Gemm(A, B, transA=1).

For both operands. Refuses nothing: a Gemm reads matrices only, so the Transpose can only swap their two axes; if it has
other consumers it stays for them. Helps because the multiplication reads either layout, and a tied weight is then
stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import onnx_ir as ir

from sardonyx.passes._matching import operand_producer
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement

_FLAGS = ("transA", "transB")


class FuseGemmTranspose(NodePass):
    """Transposes that a Gemm can do itself."""

    name = "fuse-gemm-transpose"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Gemm",)
    opset = 7  # before, Gemm broadcast only with an attribute
    example = Example(
        before="agraph (float[4, N] x, float[4, 3] w) => (float[N, 3] y) { a = Transpose(x)  y = Gemm(a, w) }",
        after="agraph (float[4, N] x, float[4, 3] w) => (float[N, 3] y) { y = Gemm <transA = 1> (x, w) }",
        near_miss="""
            agraph (float[N, 4] x, float[4, 3] w) => (float[N, 3] y) {
                a = Transpose <perm = [0, 1]> (x)  y = Gemm(a, w)
            }
        """,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        swaps = [_swap(node, index) for index in (0, 1)]
        transposes = tuple(dict.fromkeys(swap for swap in swaps if swap is not None))
        return Match((*transposes, node), build=partial(_flagged, node, swaps)) if transposes else None


def _flagged(node: ir.Node, swaps: Sequence[ir.Node | None], op: Builder) -> Replacement:
    """Build the Gemm on the untransposed operands."""
    inputs = list(node.inputs)
    flags: dict[str, Any] = {}
    for index, (swap, flag) in enumerate(zip(swaps, _FLAGS, strict=True)):
        if swap is not None:
            inputs[index] = swap.inputs[0]
            flags[flag] = 0 if node.attributes.get_int(flag, 0) else 1
    return op.like(node, tuple(inputs), **{flag: value or None for flag, value in flags.items()})


def _swap(node: ir.Node, index: int) -> ir.Node | None:
    """Return the Transpose that swaps the two axes of an operand."""
    transpose = operand_producer(node, index, ("Transpose",))
    return (
        transpose if transpose is not None and tuple(transpose.attributes.get_ints("perm", (1, 0))) == (1, 0) else None
    )
