"""Attention(q, Concat(past_k, k), Concat(past_v, v), mask) => Attention(q, k, v, mask, past_k, past_v).

The operator appends the new keys and values to the past ones itself and returns both, as the cache of the next step.
Refuses if only the keys or only the values are appended, if more than two pieces are, if the appended values are read
before the attention, and with is_causal: without a past, query i sees the keys up to i; with a past of length p, those
up to p + i. Helps because the heads of the new keys and values need not be split off first, and because each is copied
once, where it is read.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import is_used, operand_producer, require, required
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Replacement

_KEYS, _VALUES, _PAST = 1, 2, 4
_LENGTH = 2  # the axis of [batch, heads, length, width]


class FuseAttentionCache(NodePass):
    """Past keys and values concatenated before Attention."""

    accuracy = Accuracy.EXACT
    roots = ("Attention",)
    opset = 23
    needs = 23
    example = Example(
        before="""
            (float[B, 4, S, 8] q, float[B, 2, S, 8] k, float[B, 2, S, 8] v, float[B, 2, P, 8] past_k,
                    float[B, 2, P, 8] past_v) => (float[B, 4, S, 8] y, float[B, 2, T, 8] all_k, float[B, 2, T, 8] all_v)
            {
                all_k = Concat <axis = 2> (past_k, k)  all_v = Concat <axis = -2> (past_v, v)
                y = Attention(q, all_k, all_v)
            }
        """,
        after="{ y, all_k, all_v = Attention(q, k, v, , past_k, past_v) }",
        near_miss="""
            (float[B, 4, S, 8] q, float[B, 2, S, 8] k, float[B, 2, S, 8] v, float[B, 2, P, 8] past_k,
                    float[B, 2, P, 8] past_v) => (float[B, 4, S, 8] y, float[B, 2, T, 8] all_k)
            <float zero = {0}> {
                all_k = Concat <axis = 2> (past_k, k)  all_v = Concat <axis = 2> (past_v, v)
                size = Shape <start = 2, end = 3> (all_v)  mask = Expand(zero, size)
                y = Attention(q, all_k, all_v, mask)
            }
        """,
        refusal="read before the attention",
        opset=23,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        require(all(graph.rank(operand(node, index)) == 4 for index in (_KEYS, _VALUES)))
        require(all(value is None for value in node.inputs[_PAST:]))
        concats = [operand_producer(node, index, ("Concat",)) for index in (_KEYS, _VALUES)]
        along = [each for each in concats if each is not None and each.attributes.get_int("axis", 0) % 4 == _LENGTH]
        require(len(along) > 0)
        require(len(along) == 2, "only its keys or only its values are appended")
        keys, values = along
        nodes = (*dict.fromkeys((keys, values)), node)
        is_causal = node.attributes.get_int("is_causal", 0) != 0
        require(not is_causal, "is_causal would select other keys with a past", *nodes)
        are_pairs = all(len(concat.inputs) == 2 for concat in nodes[:-1])
        require(are_pairs, "its keys or values are concatenated from more than two pieces", *nodes)
        is_free = keys is not values and not any(map(is_used, node.outputs[1:]))
        require(is_free, "its keys and values are outputs already, or are the same value", *nodes)
        early = _readers_before(node, (keys, values), graph)
        early = required(early, "the appended keys or values are read before the attention", *nodes)
        ends = tuple(replaced.outputs[0] for replaced in (node, keys, values, *early))

        def build(op: Builder) -> Replacement:
            """Build the Attention with its past, then the nodes that read the appended keys and values before it."""
            new = (node.inputs[0], keys.inputs[1], values.inputs[1], operand(node, 3), keys.inputs[0], values.inputs[0])
            result, *appended = op.node("Attention", new, dict(node.attributes), outputs=3)
            replaced = dict[ir.Value | None, ir.Value](zip((keys.outputs[0], values.outputs[0]), appended, strict=True))
            parts = [op.like(reader, tuple(replaced.get(value, value) for value in reader.inputs)) for reader in early]
            return [result, *appended, *parts]

        return Match((keys, values, *early, node), outputs=ends, build=build)


def _readers_before(node: ir.Node, appended: tuple[ir.Node, ...], graph: Facts) -> tuple[ir.Node, ...] | None:
    """Return the consumers before the attention, or None if another node depends on one, such as the mask."""
    uses = [use for concat in appended for use in concat.outputs[0].uses()]
    readers = dict.fromkeys(use.node for use in uses if use.node is not node)
    if any(use.node.graph is not node.graph or (use.node is node and use.idx not in (_KEYS, _VALUES)) for use in uses):
        return None  # a query or a mask would be what the attention itself returns
    early = tuple(reader for reader in readers if graph.first((reader, node)) is reader)
    unread = all(len(reader.outputs) == 1 and not reader.outputs[0].uses() for reader in early)
    return early if unread else None
