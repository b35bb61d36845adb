"""Attention(x Wq + bq, x Wk + bk, x Wv + bv, mask) => Attention(x, [Wq Wk Wv], [bq bk bv], mask), of ONNX Runtime.

The projections may already be one product that is split. Refuses projections of different states, weights that are not
constant or read elsewhere (packing would store them twice), grouped heads, a past, a softcap, a condition as mask, a
mask whose shape the kernel does not take, and one that may mask all keys of a row by -inf or the lowest number: the
standard operator returns 0 there, the runtime's NaN or a mean. Refuses batches known to be larger than one, such as
windows: the kernel projects each separately, which measured 4 to 12 % slower. Helps because nothing is moved between
the projections and the heads; for one sequence at a time it measured no slower than any other form.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Dim
from sardonyx.ir.scopes import operand
from sardonyx.ir.tensors import ConcatTensor, reshaped
from sardonyx.passes._mask_values import leaves_every_row
from sardonyx.passes._matching import consumer_of, is_used, operand_producer, producer_of
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, Refused, Replacement
from sardonyx.passes.ort._contrib import DOMAIN, OrtPass, biased, on_ort

BATCHES = "the batch is larger than one, and the kernel projects each element separately, which is slower"


class FusePackedAttention(OrtPass):
    """Attention with its projections."""

    name = "fuse-packed-attention"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Attention",)
    opset = 23
    example = Example(
        before="""
            agraph (float[N, S, 2] x, bool[N, 1, S, S] keep) => (float[N, S, 4] y)
            <float[2, 4] wq = {1, 2, 3, 4, -5, 6, 7, -8}, float[2, 4] wk = {0.1, 0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8},
             float[2, 4] wv = {3, 1, 4, 1, 5, -9, 2, 6}, float[4] bq = {1, 2, 3, 4}, float[4] bv = {5, 6, -7, 8},
             float zero = {0}, float hidden = {-3.0e38}> {
                mask = Where(keep, zero, hidden)
                q0 = MatMul(x, wq)  q = Add(q0, bq)  k = MatMul(x, wk)  v0 = MatMul(x, wv)  v = Add(bv, v0)
                y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v, mask)
            }
        """,
        after="""
            <ir_version: 11, opset_import: ["" : 23, "com.microsoft" : 1]>
            agraph (float[N, S, 2] x, bool[N, 1, S, S] keep) => (float[N, S, 4] y)
            <float[2, 12] w = {1, 2, 3, 4, 0.1, 0.2, 0.3, 0.4, 3, 1, 4, 1, -5, 6, 7, -8, 0.5, -0.6, 0.7, 0.8, 5, -9, 2,
             6},
             float[12] b = {1, 2, 3, 4, 0, 0, 0, 0, 5, 6, -7, 8}, float zero = {0}, float hidden = {-3.0e38}> {
                mask = Where(keep, zero, hidden)
                y = com.microsoft.Attention <num_heads = 2> (x, w, b, , , mask)
            }
        """,
        near_miss="""
            agraph (float[N, S, 2] x, float[N, S, 2] z) => (float[N, S, 4] y)
            <float[2, 4] wq = {1, 2, 3, 4, -5, 6, 7, -8}, float[2, 4] wk = {0.1, 0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8},
             float[2, 4] wv = {3, 1, 4, 1, 5, -9, 2, 6}> {
                q = MatMul(x, wq)  k = MatMul(z, wk)  v = MatMul(z, wv)
                y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)
            }
        """,
        refusal="projections of different states",
        opset=23,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Match the attention of projections of the same states."""
        heads = read_heads(node, graph)
        if heads is None or isinstance(heads, Refused):
            return heads
        projections = packed(heads.operands, heads.readers, graph)
        if projections is None:
            return None
        nodes = (*heads.before, node, *heads.after)
        if isinstance(projections, str):
            return Refused(projections, nodes)
        source = graph.shape(projections.source)
        if source is None or graph.dtype(projections.source) != ir.DataType.FLOAT:
            return None
        if isinstance(source[0], int) and source[0] > 1:
            return Refused(BATCHES, nodes)
        refusal = heads.mask_refusal(source[0], source[1], source[1], graph)
        if refusal is not None:
            return Refused(refusal, nodes)
        widths = projections.widths
        attributes = {
            "num_heads": heads.count,
            "scale": heads.scale,
            "unidirectional": 1 if heads.is_causal else None,
            "qkv_hidden_sizes": list(widths) if len(set(widths)) > 1 else None,
        }

        def build(op: Builder) -> Replacement:
            """Build the runtime's operator on the states and the packed projections."""
            mask = heads.runtime_mask(op, graph)
            weights = projections.weight(op, graph), projections.bias(op, graph)
            return op.node("Attention", (projections.source, *weights, None, None, mask), attributes, domain=DOMAIN)

        match = Match((*projections.nodes, *nodes), outputs=(nodes[-1].outputs[0],), build=build)
        return on_ort(match, "Attention", graph)


# The standard Attention as ONNX Runtime's own attention operator takes it: heads, scale, mask and projections.
#
# The runtime's operators take operands as [batch, length, heads * width]. If the standard node has split heads, the
# transposes on both sides belong to it. They add a mask [1 or batch, 1 or heads, queries, keys] and broadcast no other
# axis. Queries, keys and values are read as projections x * W + b of the states, so that the three can be packed.

SHARED_WEIGHT = "the weight of a projection is read elsewhere, so packing would store it twice"
NO_CONSTANT = "the weight or bias of a projection is not a constant"
READ_ELSEWHERE = "a projection is read elsewhere"

_MASK, _PAST = 3, 4
_SWAP = (0, 2, 1, 3)


class Heads(Struct, frozen=True, eq=False):
    """An Attention node, and the nodes between it and operands and result of rank three."""

    node: ir.Node
    operands: tuple[ir.Value, ...]
    readers: tuple[ir.Node, ...]  # the consumer of each operand
    before: tuple[ir.Node, ...]
    after: tuple[ir.Node, ...]
    count: int
    scale: float | None
    is_causal: bool
    mask: ir.Value | None

    def mask_refusal(self, batch: Dim, queries: Dim, keys: Dim, graph: Facts) -> str | None:
        """Return why the kernels cannot take the mask, or None if they can."""
        if self.is_causal and queries != keys:
            return "queries and keys may have different lengths, for which causal is ambiguous"
        if self.mask is None:
            return None
        shape = graph.shape(self.mask)
        if graph.dtype(self.mask) != ir.DataType.FLOAT:
            return "its mask is not an additive mask in single precision"
        if shape is None or not 2 <= len(shape) <= 4:
            return "the shape of its mask is unknown"
        expected = (batch, self.count, queries, keys)[-len(shape) :]
        broadcast = [dim == 1 for dim in shape[:-2]]
        fits = [dim == size for dim, size in zip(shape, expected, strict=True)]
        if not all(fits[-2:]) or not all(is_one or fit for is_one, fit in zip(broadcast, fits, strict=False)):
            return "its mask may not have a row for every query and a column for every key"
        if not leaves_every_row(self.mask, graph, causal=self.is_causal):
            return "its mask may mask all keys of a row, for which the kernels differ"
        return None

    def runtime_mask(self, op: Builder, graph: Facts) -> ir.Value | None:
        """Return the mask with rank four."""
        missing = 0 if self.mask is None else 4 - (graph.rank(self.mask) or 4)
        if self.mask is None or not missing:
            return self.mask
        return op.Unsqueeze(self.mask, op.constant(np.arange(missing, dtype=np.int64), "axes"))


def read_heads(node: ir.Node, graph: Facts) -> Heads | Refused | None:
    """Return what an Attention node computes if the runtime's own operators can do it, or a refusal for a near miss."""
    attributes = node.attributes
    if graph.dtype(node.inputs[0]) != ir.DataType.FLOAT or len(node.inputs) < 3:
        return None
    if attributes.get_float("softcap", 0.0) or attributes.get_int("softmax_precision", 1) != 1:
        return Refused("it has a softcap or another internal precision", (node,))
    if any(value is not None for value in node.inputs[_PAST:]) or any(map(is_used, node.outputs[1:])):
        return Refused("it has a past", (node,))
    rank = graph.rank(node.inputs[0])
    operand_forms = _merged(node) if rank == 3 else _apart(node, graph) if rank == 4 else None
    if operand_forms is None:
        return None
    operands, readers, before, after, counts = operand_forms
    if len(set(counts)) != 1:
        return Refused("queries and keys have different numbers of heads", (node,))
    scale = attributes.get_float("scale", 0.0) or None
    causal = attributes.get_int("is_causal", 0) == 1
    return Heads(node, operands, readers, before, after, counts[0], scale, causal, operand(node, _MASK))


_OperandForms = tuple[
    tuple[ir.Value, ...], tuple[ir.Node, ...], tuple[ir.Node, ...], tuple[ir.Node, ...], tuple[int, ...]
]


def _merged(node: ir.Node) -> _OperandForms | None:
    """Return operands that already have rank three."""
    operands = tuple(value for value in node.inputs[:3] if value is not None)
    counts = node.attributes.get_int("q_num_heads", 0), node.attributes.get_int("kv_num_heads", 0)
    return None if len(operands) < 3 or 0 in counts else (operands, (node,) * 3, (), (), counts)


def _apart(node: ir.Node, graph: Facts) -> _OperandForms | None:
    """Return operands whose heads are split off and transposed, and the nodes that merge the result again."""
    operands: list[ir.Value] = []
    readers: list[ir.Node] = []
    before: list[ir.Node] = []
    counts: list[int] = []
    for index in range(3):
        transpose = operand_producer(node, index, ("Transpose",))
        reshape = None if transpose is None else operand_producer(transpose, 0, ("Reshape",))
        source = None if reshape is None else reshape.inputs[0]
        if transpose is None or reshape is None or source is None or not _swaps_heads(transpose):
            return None
        if (
            graph.sole_consumer(transpose.outputs[0]) is not node
            or graph.sole_consumer(reshape.outputs[0]) is not transpose
        ):
            return None
        whole, split = graph.shape(source), graph.shape(reshape.outputs[0])
        if whole is None or split is None or len(whole) != 3 or len(split) != 4 or whole[:2] != split[:2]:
            return None
        if not isinstance(split[2], int):
            return None
        operands.append(source)
        readers.append(reshape)
        before += [reshape, transpose]
        counts.append(split[2])
    after = _merging(node, graph)
    return None if after is None else (tuple(operands), tuple(readers), tuple(before), after, tuple(counts))


def _merging(node: ir.Node, graph: Facts) -> tuple[ir.Node, ...] | None:
    """Return the Transpose and the Reshape that merge the heads of the result, otherwise None."""
    transpose = consumer_of(node.outputs[0], graph, ("Transpose",))
    if transpose is None or not _swaps_heads(transpose):
        return None
    reshape = consumer_of(transpose.outputs[0], graph, ("Reshape",))
    if reshape is None or reshape.inputs[0] is not transpose.outputs[0]:
        return None
    split, whole = graph.shape(transpose.outputs[0]), graph.shape(reshape.outputs[0])
    if split is None or whole is None or len(whole) != 3 or whole[:2] != split[:2]:
        return None
    return transpose, reshape


def _swaps_heads(transpose: ir.Node) -> bool:
    return tuple(transpose.attributes.get_ints("perm", ())) == _SWAP


class Projection(Struct, frozen=True, eq=False):
    """x * W + b with a constant matrix and, if there is one, a constant vector."""

    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    width: int
    nodes: tuple[ir.Node, ...]


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
        return op.constant(ConcatTensor([_tensor(part.weight, graph) for part in self.parts]), "weight")

    def bias(self, op: Builder, graph: Facts) -> ir.Value:
        """Return one vector for all projections, zero for those without a bias."""
        only = self.parts[0].bias if len(self.parts) == 1 else None
        if only is not None and graph.rank(only) == 1:
            return only
        pieces = [_vector(part, graph) for part in self.parts]
        return op.constant(ConcatTensor(pieces), "bias")


def _vector(part: Projection, graph: Facts) -> ir.TensorProtocol:
    """Return the bias of a projection, zero if it has none."""
    if part.bias is None:
        return ir.Tensor(np.zeros(part.width, np.float32))
    bias = _tensor(part.bias, graph)
    return bias if len(bias.shape) == 1 else reshaped(bias, (part.width,))


def packed(values: Sequence[ir.Value], user: ir.Node | Sequence[ir.Node], graph: Facts) -> Packed | str | None:
    """Return the values as projections of one source, or the reason why they cannot be packed.

    `user` is the only consumer of all of them, or one for each. Returns None if they are not projections.
    """
    users = [user] * len(values) if isinstance(user, ir.Node) else user
    split = _split(values, users, graph)
    if split is not None:
        node, widths = split
        whole = projection(node.inputs[0], node, graph)
        if whole is None or isinstance(whole, str):
            return whole
        return Packed(whole.source, (whole,), widths, (*whole.nodes, node))
    parts: list[Projection] = []
    for value, reader in zip(values, users, strict=True):
        part = projection(value, reader, graph)
        if part is None or isinstance(part, str):
            return part
        parts.append(part)
    if any(part.source is not parts[0].source for part in parts):
        return "queries, keys and values are projections of different states"
    if any(graph.sole_consumer(part.weight) is None for part in parts):
        return SHARED_WEIGHT
    nodes = tuple(node for part in parts for node in part.nodes)
    return Packed(parts[0].source, tuple(parts), tuple(part.width for part in parts), nodes)


def projection(value: ir.Value | None, user: ir.Node, graph: Facts) -> Projection | str | None:
    """Return a value as a product with a matrix and maybe a bias, the reason why it is not one, or None."""
    if value is None:
        return None
    added = biased(value, user, graph)
    product = value if added is None else added.source
    reader = user if added is None else added.node
    node = producer_of(product, user, ("MatMul",))
    if node is None:
        return None
    if graph.sole_consumer(product) is not reader:
        return READ_ELSEWHERE
    source, weight = node.inputs
    shape = graph.static_shape(weight)
    if source is None or weight is None or shape is None or len(shape) != 2 or graph.rank(source) != 3:
        return None
    bias = None if added is None else added.bias
    if graph.tensor(weight) is None or (bias is not None and graph.tensor(bias) is None):
        return NO_CONSTANT
    return Projection(source, weight, bias, shape[1], (node,) if added is None else (node, added.node))


def _split(
    values: Sequence[ir.Value], users: Sequence[ir.Node], graph: Facts
) -> tuple[ir.Node, tuple[int, ...]] | None:
    """Return the Split whose parts, in order, are the values, and the widths of the parts; otherwise None."""
    node = producer_of(values[0], users[0], ("Split",))
    if node is None or list(node.outputs) != list(values):
        return None
    source = operand(node, 0)
    rank = graph.rank(source)
    if rank is None or node.attributes.get_int("axis", 0) not in (-1, rank - 1):
        return None
    if any(graph.sole_consumer(value) is not user for value, user in zip(values, users, strict=True)):
        return None
    shapes = [graph.shape(value) or (None,) for value in values]
    widths = tuple(shape[-1] for shape in shapes if isinstance(shape[-1], int))
    return (node, widths) if len(widths) == len(values) else None


def _tensor(value: ir.Value, graph: Facts) -> ir.TensorProtocol:
    tensor = graph.tensor(value)
    assert tensor is not None
    return tensor
