"""Attention(x Wq + bq, x Wk + bk, x Wv + bv, mask) => Attention(x, [Wq Wk Wv], [bq bk bv], mask), of ONNX Runtime.

The projections may already be one product that is split. Refuses projections of different states, weights that are not
constant or read elsewhere (packing would store them twice), grouped heads, a past, a softcap, a condition as mask, a
mask whose shape the kernel does not take, and one that may mask all keys of a row by -inf or the lowest number: the
standard operator returns 0 there, the runtime's NaN or a mean. Refuses batches known to be larger than one, such as
windows: the kernel projects each separately, which measured 4 to 12 % slower. Helps because nothing is moved between
the projections and the heads; for one sequence at a time it measured no slower than any other form.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Shape
from sardonyx.ir.scopes import operand
from sardonyx.ir.tensors import ConcatTensor, reshaped
from sardonyx.passes._mask_values import leaves_every_row
from sardonyx.passes._matching import is_used, operand_producer, require, required, static
from sardonyx.passes._parts import is_last
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, Replacement
from sardonyx.passes.ort._contrib import DOMAIN, OrtPass, Projection, on_ort, projection

BATCHES = "the batch is larger than one, and the kernel projects each element separately, which is slower"


class FusePackedAttention(OrtPass):
    """Attention with its projections."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Attention",)
    opset = 23
    example = Example(
        before="""
            (float[N, S, 2] x, bool[N, 1, S, S] keep) => (float[N, S, 4] y) <
                float[2, 4] wq = {1, 2, 3, 4, -5, 6, 7, -8}, float[2, 4] wk = {0.1, 0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8},
                float[2, 4] wv = {3, 1, 4, 1, 5, -9, 2, 6}, float[4] bq = {1, 2, 3, 4}, float[4] bv = {5, 6, -7, 8},
                float zero = {0}, float hidden = {-3.0e38}
            > {
                mask = Where(keep, zero, hidden)
                q0 = MatMul(x, wq)  q = Add(q0, bq)  k = MatMul(x, wk)  v0 = MatMul(x, wv)  v = Add(bv, v0)
                y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v, mask)
            }
        """,
        after="""
            <
                float[2, 12] w = {1, 2, 3, 4, 0.1, 0.2, 0.3, 0.4, 3, 1, 4, 1, -5, 6, 7, -8, 0.5, -0.6, 0.7, 0.8, 5, -9,
                2, 6}, float[12] b = {1, 2, 3, 4, 0, 0, 0, 0, 5, 6, -7, 8}, float zero = {0}, float hidden = {-3.0e38}
            > { mask = Where(keep, zero, hidden)  y = com.microsoft.Attention <num_heads = 2> (x, w, b, , , mask) }
        """,
        near_miss="""
            (float[N, S, 2] x, float[N, S, 2] z) => (float[N, S, 4] y) <
                float[2, 4] wq = {1, 2, 3, 4, -5, 6, 7, -8}, float[2, 4] wk = {0.1, 0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8},
                float[2, 4] wv = {3, 1, 4, 1, 5, -9, 2, 6}
            > {
                q = MatMul(x, wq)  k = MatMul(z, wk)  v = MatMul(z, wv)
                y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)
            }
        """,
        refusal="projections of different states",
        opset=23,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        attributes, mask = node.attributes, operand(node, _MASK)
        require(graph.dtype(node.inputs[0]) == ir.DataType.FLOAT and len(node.inputs) >= 3)
        is_plain = not attributes.get_float("softcap", 0.0) and attributes.get_int("softmax_precision", 1) == 1
        require(is_plain, "it has a softcap or another internal precision")
        has_past = any(value is not None for value in node.inputs[_PAST:]) or any(map(is_used, node.outputs[1:]))
        require(not has_past, "it has a past")
        heads, key_heads = (attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads"))
        require(graph.rank(node.inputs[0]) == 3 and 0 not in (heads, key_heads))
        require(heads == key_heads, "queries and keys have different numbers of heads")
        packed = _packed(node, graph)
        batch, length, *_ = required(graph.shape(packed.source))
        require(graph.dtype(packed.source) == ir.DataType.FLOAT)
        require(not isinstance(batch, int) or batch <= 1, BATCHES)
        is_causal = attributes.get_int("is_causal", 0) == 1
        if mask is not None:
            _check_mask(mask, (batch, heads, length, length), is_causal, graph)
        options = {
            "num_heads": heads,
            "scale": attributes.get_float("scale", 0.0) or None,
            "unidirectional": 1 if is_causal else None,
            "qkv_hidden_sizes": list(packed.widths) if len(set(packed.widths)) > 1 else None,
        }

        def build(op: Builder) -> Replacement:
            """Build the runtime's operator on the states and the packed projections, with a mask of four axes."""
            missing = 0 if mask is None else 4 - (graph.rank(mask) or 4)
            bias = op.Unsqueeze(mask, op.constant(np.arange(missing, dtype=np.int64), "axes")) if missing else mask
            weights = packed.weight(op, graph), packed.bias(op, graph)
            return op.node("Attention", (packed.source, *weights, None, None, bias), options, domain=DOMAIN)

        match = Match((*packed.nodes, node), outputs=(node.outputs[0],), build=build)
        return on_ort(match, "Attention", graph)


SHARED_WEIGHT = "the weight of a projection is read elsewhere, so packing would store it twice"

_MASK, _PAST = 3, 4


def _check_mask(mask: ir.Value, scores: Shape, is_causal: bool, graph: Facts) -> None:
    """Refuse a mask that the kernel cannot add to scores of that shape; it broadcasts only batch and heads."""
    is_additive = graph.dtype(mask) == ir.DataType.FLOAT
    require(is_additive, "its mask is not an additive mask in single precision")
    shape = graph.shape(mask) or ()
    require(2 <= len(shape) <= 4, "the shape of its mask is unknown")
    fits = [dim == size for dim, size in zip(shape, scores[-len(shape) :], strict=True)]
    broadcasts = all(dim == 1 or fit for dim, fit in zip(shape[:-2], fits, strict=False))
    is_whole = all(fits[-2:]) and broadcasts
    require(is_whole, "its mask may not have a row for every query and a column for every key")
    shows = leaves_every_row(mask, graph, causal=is_causal)
    require(shows, "its mask may mask all keys of a row, for which the kernels differ")


class Packed(Struct, frozen=True, eq=False):
    """Projections of one source side by side; `widths` are those of queries, keys and values."""

    source: ir.Value
    parts: tuple[Projection, ...]
    widths: tuple[int, ...]
    nodes: tuple[ir.Node, ...]

    def weight(self, op: Builder, graph: Facts) -> ir.Value:
        """Return one matrix for all projections, concatenated when it is written."""
        if len(self.parts) == 1:
            return self.parts[0].weight
        return op.constant(ConcatTensor([required(graph.tensor(part.weight)) for part in self.parts]), "weight")

    def bias(self, op: Builder, graph: Facts) -> ir.Value:
        """Return one vector for all projections, zero for those without a bias."""
        only = self.parts[0].bias if len(self.parts) == 1 else None
        if only is not None and graph.rank(only) == 1:
            return only
        return op.constant(ConcatTensor([_vector(part, graph) for part in self.parts]), "bias")


def _vector(part: Projection, graph: Facts) -> ir.TensorProtocol:
    """Return the bias of a projection, zero if it has none."""
    bias = graph.tensor(part.bias)
    if bias is None:
        return ir.Tensor(np.zeros(part.width, np.float32))
    return bias if len(bias.shape) == 1 else reshaped(bias, (part.width,))


def _packed(node: ir.Node, graph: Facts) -> Packed:
    """Return queries, keys and values as projections of one source; anything else is no match or a near miss."""
    split = operand_producer(node, 0, ("Split",))  # of one product, along the last axis
    if (
        split is not None
        and tuple(split.outputs) == node.inputs[:3]
        and is_last(split.attributes.get_int("axis", 0), split.inputs[0], graph)
        and all(graph.sole_consumer(value) is node for value in split.outputs)
    ):
        whole = projection(split.inputs[0], split, graph)
        widths = tuple(static(required(graph.shape(value) or None)[-1]) for value in split.outputs)
        return Packed(whole.source, (whole,), widths, (*whole.nodes, split))
    parts = tuple(projection(value, node, graph) for value in node.inputs[:3])
    is_same = all(part.source is parts[0].source for part in parts)
    require(is_same, "queries, keys and values are projections of different states")
    require(all(graph.sole_consumer(part.weight) is not None for part in parts), SHARED_WEIGHT)
    nodes = tuple(node for part in parts for node in part.nodes)
    return Packed(parts[0].source, parts, tuple(part.width for part in parts), nodes)
