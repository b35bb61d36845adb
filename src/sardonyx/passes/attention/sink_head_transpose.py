"""RMSNormalization(Transpose(x), scale) => Transpose(RMSNormalization(x, scale)).

For norms of each head; also LayerNormalization. Refuses if the transpose moves the last axis, which is the normalised
one, and if something else reads it. Applies only if attention or its rotation reads the norm: they take over the split
into heads together with the transpose once it is right before them.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes._matching import consumer_of, is_used, require, required
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, PairPass, Replacement

_READERS = ("RotaryEmbedding", "Attention")


class SinkHeadTranspose(PairPass):
    """Norms of heads after a transpose of heads and length."""

    accuracy = Accuracy.EXACT
    roots = ("RMSNormalization", "LayerNormalization")
    inner, operand = ("Transpose",), 0
    read_elsewhere = "the transpose is read elsewhere"
    opset = 23
    needs = 23
    example = Example(
        before="""
            (float[B, S, 2, 8] x, float[B, S, 4] c, float[B, S, 4] s) => (float[B, 2, S, 8] y) <
                float[8] scale = {1, 2, 3, 4, 5, 6, 7, 8}
            > { t = Transpose <perm = [0, 2, 1, 3]> (x)  n = RMSNormalization(t, scale)  y = RotaryEmbedding(n, c, s) }
        """,
        after="""
            { n = RMSNormalization(x, scale)  t = Transpose <perm = [0, 2, 1, 3]> (n)  y = RotaryEmbedding(t, c, s) }
        """,
        near_miss="""
            (float[B, S, 8, 2] x, float[B, S, 4] c, float[B, S, 4] s) => (float[B, 2, S, 8] y) <
                float[8] scale = {1, 2, 3, 4, 5, 6, 7, 8}
            > { t = Transpose <perm = [0, 3, 1, 2]> (x)  n = RMSNormalization(t, scale)  y = RotaryEmbedding(n, c, s) }
        """,
        refusal="moves the axis that is normalised",
        opset=23,
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        required(consumer_of(node.outputs[0], graph, _READERS))
        perm, unused = inner.attributes.get_ints("perm") or (), node.outputs[1:]
        keeps_last = bool(perm) and perm[-1] == len(perm) - 1
        require(keeps_last, "the transpose moves the axis that is normalised")
        is_last = node.attributes.get_int("axis", -1) in (-1, len(perm) - 1)
        vectors = all(graph.rank(value) == 1 for value in node.inputs[1:] if value is not None)
        require(is_last and vectors, "it does not normalise each head separately")
        require(not any(map(is_used, unused)), "its mean or deviation output is read")

        def build(op: Builder) -> Replacement:
            normalised = op.node(node.op_type, (inner.inputs[0], *node.inputs[1:]), dict(node.attributes))
            return [op.like(inner, normalised), *(None for _ in unused)]

        return Match((inner, node), build=build)
