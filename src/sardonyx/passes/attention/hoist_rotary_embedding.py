"""RotaryEmbedding(Transpose(Reshape(x))) => Transpose(Reshape(RotaryEmbedding(x))).

The operator also accepts [batch, length, heads * size], so heads need not be split off before it. States whose heads
are already split (such as after a norm of each head) are merged for it, but only if attention reads the result, which
then takes them merged. Refuses if the number of heads or their size is unknown. Helps because attention can take over
the split after it, and because rotating contiguous rows is three to ten times as fast.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import merged_last, operand_producer, split_last
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement

_SWAP = (0, 2, 1, 3)


class HoistRotaryEmbedding(NodePass):
    """Rotary embeddings after the split into heads."""

    name = "hoist-rotary-embedding"
    accuracy = Accuracy.EXACT
    roots = ("RotaryEmbedding",)
    opset = 23
    needs = 23
    example = Example(
        before="""
            agraph (float[B, S, 16] x, float[B, S, 4] c, float[B, S, 4] s) => (float[B, 2, S, 8] y)
            <int64[4] heads = {0, 0, 2, 8}> {
                a = Tanh(x)  b = Reshape(a, heads)  d = Transpose <perm = [0, 2, 1, 3]> (b)
                y = RotaryEmbedding(d, c, s)
            }
        """,
        after="""
            agraph (float[B, S, 16] x, float[B, S, 4] c, float[B, S, 4] s) => (float[B, 2, S, 8] y)
            <int64[4] heads = {0, 0, 2, 8}> {
                a = Tanh(x)  b = RotaryEmbedding <num_heads = 2> (a, c, s)
                d = Reshape(b, heads)  y = Transpose <perm = [0, 2, 1, 3]> (d)
            }
        """,
        near_miss="""
            agraph (float[B, S, 16] x, float[B, S, 4] c, float[B, S, 4] s) => (float[B, 2, S, 8] y, float[B, 2, S, 8] d)
            <int64[4] heads = {0, 0, 2, 8}> {
                a = Tanh(x)  b = Reshape(a, heads)  d = Transpose <perm = [0, 2, 1, 3]> (b)
                y = RotaryEmbedding(d, c, s)
            }
        """,
        refusal="the split into heads is read elsewhere",
        opset=23,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        swap = operand_producer(node, 0, ("Transpose",))
        if swap is None or tuple(swap.attributes.get_ints("perm") or ()) != _SWAP:
            return None
        if graph.sole_consumer(swap.outputs[0]) is not node:
            return Refused("the split into heads is read elsewhere", (swap, node))
        states = operand(swap, 0)
        shape = graph.shape(states)
        if states is None or shape is None:
            return None
        heads, size = shape[2], shape[3]
        if not isinstance(heads, int) or not isinstance(size, int):
            return Refused("the number of heads or their size is unknown", (swap, node))

        def build(op: Builder, merged: ir.Value | None = None) -> Replacement:
            """Rotate, then split."""
            whole = merged_last(states, op, graph) if merged is None else merged
            rotated = op.like(node, (whole, *node.inputs[1:]), num_heads=heads)
            op.learn(rotated, graph.dtype(states), graph.shape(whole))
            split = op.learn(split_last(rotated, states, op, graph), graph.dtype(states), shape)
            return op.Transpose(split, perm=list(_SWAP))

        split = operand_producer(swap, 0, ("Reshape",))
        merged = None if split is None else operand(split, 0)
        if split is not None and graph.shape(merged) == (*shape[:2], heads * size):
            if graph.sole_consumer(states) is not swap:
                return Refused("the split into heads is read elsewhere", (split, swap, node))
            return Match((split, swap, node), build=lambda op: build(op, merged))
        reader = graph.sole_consumer(node.outputs[0])
        return Match((swap, node), build=build) if reader is not None and _takes_merged(reader, node) else None


def _takes_merged(reader: ir.Node, node: ir.Node) -> bool:
    """Return whether the reader is attention whose values have their heads split off here too."""
    if reader.op_type != "Attention" or reader.domain or node.outputs[0] not in reader.inputs[:2]:
        return False
    swap = operand_producer(reader, 2, ("Transpose",))
    return swap is not None and tuple(swap.attributes.get_ints("perm") or ()) == _SWAP
