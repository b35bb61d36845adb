"""MatMul(Attention(MatMul(x, V), k, v, past), W) => MatMul(Attention(rows(MatMul(x, V')), k, v, past), W').

For several queries a key head, which become rows of one head. The columns of V and the rows of W are reordered, so that
a Reshape makes rows of the queries of a position and another one undoes it. A bias and a rotary embedding may follow
the first product. Refuses is_causal, masks that differ between heads or that do not have a row for each query. Does not
apply to projections that are read elsewhere or are not constant. Helps because keys and values are read once for all
queries of a head: 0.97 of the time of a token after 512 positions in float32, 0.94 in int4, 0.91 after 1,000; 1.03 of
a prompt of 512.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.scopes import operand
from sardonyx.ir.tensors import reshaped, transposed
from sardonyx.passes._matching import (
    consumer_of,
    is_used,
    operand_producer,
    require,
    required,
    size_of,
    static,
)
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, NoMatch, Refused, Replacement
from sardonyx.passes.ort._contrib import Projection, projection

_MASK, _PAST = 3, 4
_OPERANDS = 6  # queries, keys, values, mask, past keys and values; newer opsets have more


class _Heads(Struct, frozen=True, eq=False):
    """The number of key heads, and of queries for each."""

    keys: int
    group: int

    def regrouped(self, tensor: ir.TensorProtocol, axis: int) -> ir.TensorProtocol:
        """Return a weight with the heads on an axis ordered by query first, then by key head."""
        shape = tensor.shape.numpy()
        width = shape[axis] // (self.keys * self.group)
        split = (*shape[:axis], self.keys, self.group, width, *shape[axis + 1 :])
        order = [*range(axis), axis + 1, axis, *range(axis + 2, len(split))]
        return reshaped(transposed(reshaped(tensor, split), order), shape)

    def weight(self, value: ir.Value | None, axis: int, op: Builder, graph: Facts) -> ir.Value:
        """Build the constant that replaces a weight or a bias."""
        return op.constant(self.regrouped(required(graph.tensor(value)), axis), "weight")


class GroupAttentionQueries(NodePass):
    """Queries that share a key head."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Attention",)
    opset = 23
    targets = ("ort",)
    example = Example(
        before="""
            (float[B, 3, 2] x, float[B, 3, 2] k, float[B, 3, 2] v, float[B, 1, 3, 7] mask, float[B, 2, 4, 1] past_k,
                    float[B, 2, 4, 1] past_v) => (float[B, 3, 2] y, float[B, 2, 7, 1] all_k, float[B, 2, 7, 1] all_v)
            <float[2, 4] wq = {1, 2, -3, 4, -5, 6, 7, 8}, float[4, 2] wo = {1, -2, 3, 4, 5, 6, -7, 8}> {
                q = MatMul(x, wq)
                a, all_k, all_v = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v, mask, past_k, past_v)
                y = MatMul(a, wo)
            }
        """,
        after="""
            <
                float[2, 4] wq = {1, -3, 2, 4, -5, 7, 6, 8}, float[4, 2] wo = {1, -2, 5, 6, 3, 4, -7, 8},
                int64[1] two = {2}, int64[1] three = {3}, int64[1] four = {4}, int64[4] repeats = {1, 1, 1, 2}
            > {
                q = MatMul(x, wq)
                batch = Shape <start = 0, end = 1> (x)  rows = Mul(three, two)
                split = Concat <axis = 0> (batch, rows, two)  r = Reshape(q, split)
                m = Tile(mask, repeats)  first = Shape <start = 0, end = 2> (mask)  last = Shape <start = 3> (mask)
                masked = Concat <axis = 0> (first, rows, last)  n = Reshape(m, masked)
                a, all_k, all_v = Attention <q_num_heads = 2, kv_num_heads = 2> (r, k, v, n, past_k, past_v)
                merge = Concat <axis = 0> (batch, three, four)  b = Reshape(a, merge)
                y = MatMul(b, wo)
            }
        """,
        near_miss="""
            (float[B, 3, 2] x, float[B, 3, 2] k, float[B, 3, 2] v, float[B, 4, 3, 7] mask, float[B, 2, 4, 1] past_k,
                    float[B, 2, 4, 1] past_v) => (float[B, 3, 2] y, float[B, 2, 7, 1] all_k, float[B, 2, 7, 1] all_v)
            <float[2, 4] wq = {1, 2, -3, 4, -5, 6, 7, 8}, float[4, 2] wo = {1, -2, 3, 4, 5, 6, -7, 8}> {
                q = MatMul(x, wq)
                a, all_k, all_v = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v, mask, past_k, past_v)
                y = MatMul(a, wo)
            }
        """,
        refusal="differ between heads",
        opset=23,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        group_heads, keys = (node.attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads"))
        require(0 < keys < group_heads and operand(node, _PAST) is not None and graph.target in self.targets)
        require(graph.dtype(node.inputs[0]) == ir.DataType.FLOAT)
        last = required(consumer_of(node.outputs[0], graph, ("MatMul",)))
        require(last.inputs[0] is node.outputs[0] and graph.rank(last.inputs[1]) == 2)
        require(graph.tensor(last.inputs[1]) is not None and graph.sole_consumer(required(last.inputs[1])) is last)
        rotary = operand_producer(node, 0, ("RotaryEmbedding",))
        require(rotary is None or graph.sole_consumer(rotary.outputs[0]) is node)
        queries = _queries(rotary or node, graph)
        width, value_width = (static((graph.shape(node.inputs[index]) or (None,))[-1]) for index in (0, 2))
        rotations = () if rotary is None else (rotary,)
        nodes = (*queries.nodes, *rotations, last, node)  # keys may be read before the projection
        _check_rows(node, nodes, graph)
        heads = _Heads(keys, group_heads // keys)

        def build(op: Builder) -> Replacement:
            states = queries.source
            sizes = required(graph.shape(states))[:2]
            batch, length = (required(size_of(dim, (states,), op, graph)) for dim in sizes)
            rows = op.Mul(length, _number(heads.group, op))
            split = op.Concat(batch, rows, _number(width // heads.group, op), axis=0)
            value = op.MatMul(states, heads.weight(queries.weight, 1, op, graph))
            if queries.bias is not None:
                bias = heads.weight(queries.bias, (graph.rank(queries.bias) or 1) - 1, op, graph)
                value = op.Add(value, bias)
            if rotary is not None:
                value = op.like(rotary, (value, *rotary.inputs[1:]))
            value = op.Reshape(value, split)
            mask = operand(node, _MASK)
            if mask is not None:  # with every row repeated for the queries of a group
                wide = op.Tile(mask, op.constant(np.array([1, 1, 1, heads.group], np.int64), "repeats"))
                masked = op.Concat(op.Shape(mask, start=0, end=2), rows, op.Shape(mask, start=3), axis=0)
                mask = op.Reshape(wide, masked)
            inputs = (value, *node.inputs[1:3], mask, *node.inputs[_PAST:])
            attributes = {**node.attributes, "q_num_heads": heads.keys}
            result, *appended = op.node("Attention", inputs, attributes, outputs=len(node.outputs[:3]))
            merged = op.Concat(batch, length, _number(value_width * heads.group, op), axis=0)
            weight = heads.weight(last.inputs[1], 0, op, graph)
            return [op.MatMul(op.Reshape(result, merged), weight), *appended]

        return Match(nodes, outputs=(last.outputs[0], *node.outputs[1:3]), build=build)


def _queries(reader: ir.Node, graph: Facts) -> Projection:
    """Return the projection that a node reads as queries; no match if its weight or bias is read elsewhere."""
    try:
        queries = projection(operand(reader, 0), reader, graph)
    except Refused:
        raise NoMatch from None
    own = [value for value in (queries.weight, queries.bias) if value is not None]
    require(graph.rank(queries.source) == 3 and all(graph.sole_consumer(value) is not None for value in own))
    return queries


def _check_rows(node: ir.Node, nodes: tuple[ir.Node, ...], graph: Facts) -> None:
    """Refuse attention whose rows cannot be rearranged."""
    is_causal = node.attributes.get_int("is_causal", 0) != 0
    require(not is_causal, "is_causal would hide other keys from the rows of one position", *nodes)
    is_newer = any(map(is_used, node.outputs[3:])) or any(value is not None for value in node.inputs[_OPERANDS:])
    require(not is_newer, "its scores are read, or it has an operand of a newer operator set", *nodes)
    mask, queries = operand(node, _MASK), graph.shape(node.inputs[0])
    if mask is not None:
        shape = graph.shape(mask)
        has_rows = shape is not None and queries is not None and len(shape) == 4 and shape[2] == queries[1]
        require(has_rows, "its mask has no row for each query", *nodes)
        require(shape is None or shape[1] == 1, "its masks differ between heads", *nodes)


def _number(number: int, op: Builder) -> ir.Value:
    return op.constant(np.array([number], np.int64), "size")
