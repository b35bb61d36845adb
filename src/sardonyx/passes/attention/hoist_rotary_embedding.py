"""RotaryEmbedding(Transpose(Reshape(x))) => Transpose(Reshape(RotaryEmbedding(x))).

The operator also accepts [batch, length, heads * size], so heads need not be split off before it. States whose heads
are already split (such as after a norm of each head) are merged for it, but only if attention reads the result, which
then takes them merged. Refuses if the number of heads or their size is unknown. Helps because attention can take over
the split after it, and because rotating contiguous rows is three to ten times as fast.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import (
    consumer_of,
    operand_producer,
    permutation,
    require,
    require_sole,
    required,
    static,
    with_last,
)
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, PairPass, Replacement

_SWAP = (0, 2, 1, 3)


class HoistRotaryEmbedding(PairPass):
    """Rotary embeddings after the split into heads."""

    accuracy = Accuracy.EXACT
    roots = ("RotaryEmbedding",)
    inner, operand = ("Transpose",), 0
    read_elsewhere = "the split into heads is read elsewhere"
    opset = 23
    needs = 23
    example = Example(
        before="""
            (float[B, S, 16] x, float[B, S, 4] c, float[B, S, 4] s) => (float[B, 2, S, 8] y)
            <int64[4] heads = {0, 0, 2, 8}> {
                a = Tanh(x)  b = Reshape(a, heads)  d = Transpose <perm = [0, 2, 1, 3]> (b)
                y = RotaryEmbedding(d, c, s)
            }
        """,
        after="""{
            a = Tanh(x)  b = RotaryEmbedding <num_heads = 2> (a, c, s)
            d = Reshape(b, heads)  y = Transpose <perm = [0, 2, 1, 3]> (d)
        }""",
        near_miss="""
            (float[B, S, 16] x, float[B, S, 4] c, float[B, S, 4] s) => (float[B, 2, S, 8] y, float[B, 2, S, 8] d)
            <int64[4] heads = {0, 0, 2, 8}> {
                a = Tanh(x)  b = Reshape(a, heads)  d = Transpose <perm = [0, 2, 1, 3]> (b)
                y = RotaryEmbedding(d, c, s)
            }
        """,
        refusal="the split into heads is read elsewhere",
        opset=23,
    )

    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match:
        states = required(inner.inputs[0])
        require(permutation(inner, graph) == _SWAP)
        batch, length, *sizes = required(graph.shape(states))
        heads, width = (static(dim, "the number of heads or their size is unknown") for dim in sizes)
        dtype = graph.dtype(states)
        shape, merged_shape = (batch, length, heads, width), (batch, length, heads * width)

        def build(op: Builder, merged: ir.Value | None = None) -> Replacement:
            whole = with_last(states, merged_shape, dtype, op) if merged is None else merged
            rotated = op.learn(op.like(node, (whole, *node.inputs[1:]), num_heads=heads), dtype, merged_shape)
            return op.Transpose(with_last(rotated, shape, dtype, op), perm=list(_SWAP))

        split = operand_producer(inner, 0, ("Reshape",))
        merged = None if split is None else operand(split, 0)
        if split is not None and graph.shape(merged) == merged_shape:
            require_sole(inner, split, graph, self.read_elsewhere, split, inner, node)
            return Match((split, inner, node), build=lambda op: build(op, merged))
        # Only attention takes the heads merged; those of its values are split off here too.
        reader = required(consumer_of(node.outputs[0], graph, ("Attention",)))
        values = required(operand_producer(reader, 2, self.inner))
        require(node.outputs[0] in reader.inputs[:2] and permutation(values, graph) == _SWAP)
        return Match((inner, node), build=build)
