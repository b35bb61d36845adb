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
from sardonyx.passes._matching import consumer_of, is_used, operand_producer, producer_of, size_of
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement
from sardonyx.passes.ort._contrib import Biased, biased

_MASK, _PAST = 3, 4
_OPERANDS = 6  # queries, keys, values, mask, past keys and values; newer opsets have more


class _Queries(Struct, frozen=True, eq=False):
    """What computes the queries: a product with a constant, its bias and a rotation if there are any."""

    product: ir.Node
    biased: Biased | None
    rotary: ir.Node | None

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        add = self.biased and self.biased.node
        return tuple(node for node in (self.product, add, self.rotary) if node is not None)


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
        tensor = graph.tensor(value)
        assert tensor is not None
        return op.constant(self.regrouped(tensor, axis), "weight")


class GroupAttentionQueries(NodePass):
    """Queries that share a key head."""

    name = "group-attention-queries"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Attention",)
    opset = 23
    targets = ("ort",)
    example = Example(
        before="""
            agraph (float[B, 3, 2] x, float[B, 3, 2] k, float[B, 3, 2] v, float[B, 1, 3, 7] mask,
                    float[B, 2, 4, 1] past_k, float[B, 2, 4, 1] past_v)
                => (float[B, 3, 2] y, float[B, 2, 7, 1] all_k, float[B, 2, 7, 1] all_v)
            <float[2, 4] wq = {1, 2, -3, 4, -5, 6, 7, 8}, float[4, 2] wo = {1, -2, 3, 4, 5, 6, -7, 8}> {
                q = MatMul(x, wq)
                a, all_k, all_v = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v, mask, past_k, past_v)
                y = MatMul(a, wo)
            }
        """,
        after="""
            agraph (float[B, 3, 2] x, float[B, 3, 2] k, float[B, 3, 2] v, float[B, 1, 3, 7] mask,
                    float[B, 2, 4, 1] past_k, float[B, 2, 4, 1] past_v)
                => (float[B, 3, 2] y, float[B, 2, 7, 1] all_k, float[B, 2, 7, 1] all_v)
            <float[2, 4] wq = {1, -3, 2, 4, -5, 7, 6, 8}, float[4, 2] wo = {1, -2, 5, 6, 3, 4, -7, 8},
             int64[1] two = {2}, int64[1] three = {3}, int64[1] four = {4}, int64[4] repeats = {1, 1, 1, 2}> {
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
            agraph (float[B, 3, 2] x, float[B, 3, 2] k, float[B, 3, 2] v, float[B, 4, 3, 7] mask,
                    float[B, 2, 4, 1] past_k, float[B, 2, 4, 1] past_v)
                => (float[B, 3, 2] y, float[B, 2, 7, 1] all_k, float[B, 2, 7, 1] all_v)
            <float[2, 4] wq = {1, 2, -3, 4, -5, 6, 7, 8}, float[4, 2] wo = {1, -2, 3, 4, 5, 6, -7, 8}> {
                q = MatMul(x, wq)
                a, all_k, all_v = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v, mask, past_k, past_v)
                y = MatMul(a, wo)
            }
        """,
        refusal="differ between heads",
        opset=23,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        queries, keys = (node.attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads"))
        if not keys or queries <= keys or operand(node, _PAST) is None or graph.target not in self.targets:
            return None
        source, projection = _queries(node, graph), consumer_of(node.outputs[0], graph, ("MatMul",))
        if source is None or projection is None or graph.dtype(node.inputs[0]) != ir.DataType.FLOAT:
            return None
        shapes = (graph.shape(node.inputs[index]) or () for index in (0, 2))
        widths = [dim for shape in shapes for dim in shape[-1:] if isinstance(dim, int)]
        if len(widths) < 2 or not _is_weight(projection, node.outputs[0], graph):
            return None
        nodes = (*source.nodes, projection, node)  # keys and values may be read before the projection
        reason = _refusal(node, graph)
        if reason is not None:
            return Refused(reason, nodes)
        heads, (width, values) = _Heads(keys, queries // keys), widths

        def build(op: Builder) -> Replacement:
            """Build the products with reordered weights, and attention between two Reshapes."""
            batch, length = _sizes(source.product, op, graph)
            rows = op.Mul(length, _number(heads.group, op))
            split = op.Concat(batch, rows, _number(width // heads.group, op), axis=0)
            queries = op.Reshape(_regrouped(source, heads, op, graph), split)
            mask = operand(node, _MASK)
            mask = None if mask is None else _repeated(mask, rows, heads.group, op)
            inputs = (queries, *node.inputs[1:3], mask, *node.inputs[_PAST:])
            attributes = {**node.attributes, "q_num_heads": heads.keys}
            result, *appended = op.node("Attention", inputs, attributes, outputs=len(node.outputs[:3]))
            merged = op.Concat(batch, length, _number(values * heads.group, op), axis=0)
            weight = heads.weight(projection.inputs[1], 0, op, graph)
            return [op.MatMul(op.Reshape(result, merged), weight), *appended]

        return Match(nodes, outputs=(projection.outputs[0], *node.outputs[1:3]), build=build)


def _queries(node: ir.Node, graph: Facts) -> _Queries | None:
    """Return what computes the queries if nothing else reads a part of it, otherwise None."""
    rotary = operand_producer(node, 0, ("RotaryEmbedding",))
    if rotary is not None and graph.sole_consumer(rotary.outputs[0]) is not node:
        return None
    reader = rotary or node
    value = operand(reader, 0)
    add = biased(value, reader, graph)
    if add is not None:
        if graph.tensor(add.bias) is None or graph.sole_consumer(add.bias) is not add.node:
            return None
        value, reader = add.source, add.node
    product = producer_of(value, reader, ("MatMul",))
    if product is None or graph.sole_consumer(product.outputs[0]) is not reader:
        return None
    is_projection = graph.rank(product.inputs[0]) == 3 and _is_weight(product, product.inputs[0], graph)
    return _Queries(product, add, rotary) if is_projection else None


def _is_weight(product: ir.Node, states: ir.Value | None, graph: Facts) -> bool:
    """Return whether a product multiplies the states by a constant matrix that nothing else reads."""
    weight = operand(product, 1)
    if weight is None or product.inputs[0] is not states or graph.tensor(weight) is None:
        return False
    return graph.rank(weight) == 2 and graph.sole_consumer(weight) is product


def _refusal(node: ir.Node, graph: Facts) -> str | None:
    """Return why the rows of attention cannot be rearranged, or None if they can."""
    if node.attributes.get_int("is_causal", 0):
        return "is_causal would hide other keys from the rows of one position"
    if any(map(is_used, node.outputs[3:])) or any(value is not None for value in node.inputs[_OPERANDS:]):
        return "its scores are read, or it has an operand of a newer operator set"
    mask, queries = operand(node, _MASK), graph.shape(node.inputs[0])
    shape = graph.shape(mask)
    if mask is None:
        return None
    if shape is None or queries is None or len(shape) != 4 or shape[2] != queries[1]:
        return "its mask has no row for each query"
    return None if shape[1] == 1 else "its masks differ between heads"


def _sizes(product: ir.Node, op: Builder, graph: Facts) -> tuple[ir.Value, ir.Value]:
    """Return the batch and the length of the states, each as a tensor of shape [1]."""
    states = product.inputs[0]
    shape = graph.shape(states)
    assert states is not None
    assert shape is not None
    batch, length = (size_of(dim, (states,), op, graph) for dim in shape[:2])
    assert batch is not None
    assert length is not None
    return batch, length


def _number(number: int, op: Builder) -> ir.Value:
    return op.constant(np.array([number], np.int64), "size")


def _regrouped(source: _Queries, heads: _Heads, op: Builder, graph: Facts) -> ir.Value:
    """Build the queries in their new order."""
    queries = op.MatMul(source.product.inputs[0], heads.weight(source.product.inputs[1], 1, op, graph))
    if source.biased is not None:
        bias = source.biased.bias
        queries = op.Add(queries, heads.weight(bias, (graph.rank(bias) or 1) - 1, op, graph))
    return queries if source.rotary is None else op.like(source.rotary, (queries, *source.rotary.inputs[1:]))


def _repeated(mask: ir.Value, rows: ir.Value, group: int, op: Builder) -> ir.Value:
    """Build the mask with every row repeated for the queries of a group."""
    wide = op.Tile(mask, op.constant(np.array([1, 1, 1, group], np.int64), "repeats"))
    target = op.Concat(op.Shape(mask, start=0, end=2), rows, op.Shape(mask, start=3), axis=0)
    return op.Reshape(wide, target)
