"""x * cos + rotate_half(x) * sin => RotaryEmbedding(x, cos, sin).

A pair (a, b) of elements becomes (a * cos - b * sin, b * cos + a * sin). The two are half a head apart or adjacent, and
the rotation covers all of each head or its first part. Refuses if cosines or sines may differ within a pair, if there
may not be one row of them per position, and if an inner value is read elsewhere. Helps because seven passes over the
queries and keys become one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.ir.facts import Dim, Shape
from sardonyx.ir.scopes import is_used_outside, operand
from sardonyx.passes._matching import (
    consumer_of,
    first_size,
    ints,
    merged_last,
    normal_axes,
    operand_producer,
    other_operand,
    split_last,
)
from sardonyx.passes._parts import halves, is_last, pair_of, piece_of, repeated, width
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement

_KERNELS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class Rotation(Struct, frozen=True):
    """What is rotated, by which angles, and by which nodes."""

    states: ir.Value
    cos: ir.Value
    sin: ir.Value
    interleaved: bool
    doubled: bool  # the tables are as wide as the states and contain every angle twice
    nodes: tuple[ir.Node, ...]
    rotated: int | None = None  # how many elements of each head are rotated, if not all


class FuseRotaryEmbedding(NodePass):
    """Decomposed rotary position embeddings."""

    name = "fuse-rotary-embedding"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Add", "Concat", "Reshape")
    needs = 23
    example = Example(
        before="""
            agraph (float[B, 2, S, 8] x, float[B, S, 4] angle) => (float[B, 2, S, 8] y)
            <int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {8}, int64[1] last = {3}, int64[1] one = {1}> {
                c = Cos(angle)  cc = Concat <axis = -1> (c, c)  cos = Unsqueeze(cc, one)
                s = Sin(angle)  ss = Concat <axis = -1> (s, s)  sin = Unsqueeze(ss, one)
                left = Slice(x, zero, half, last)  right = Slice(x, half, end, last)
                minus = Neg(right)  turned = Concat <axis = -1> (minus, left)
                a = Mul(x, cos)  b = Mul(turned, sin)  y = Add(a, b)
            }
        """,
        after="""
            agraph (float[B, 2, S, 8] x, float[B, S, 4] angle) => (float[B, 2, S, 8] y)
            <int64[1] one = {1}> {
                c = Cos(angle)  cc = Concat <axis = -1> (c, c)  cos = Unsqueeze(cc, one)
                s = Sin(angle)  ss = Concat <axis = -1> (s, s)  sin = Unsqueeze(ss, one)
                y = RotaryEmbedding(x, c, s)
            }
        """,
        near_miss="""
            agraph (float[B, 2, S, 8] x, float[B, S, 8] angle) => (float[B, 2, S, 8] y)
            <int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {8}, int64[1] last = {3}, int64[1] one = {1}> {
                c = Cos(angle)  cos = Unsqueeze(c, one)  s = Sin(angle)  sin = Unsqueeze(s, one)
                left = Slice(x, zero, half, last)  right = Slice(x, half, end, last)
                minus = Neg(right)  turned = Concat <axis = -1> (minus, left)
                a = Mul(x, cos)  b = Mul(turned, sin)  y = Add(a, b)
            }
        """,
        refusal="may differ between the two elements of a pair",
        opset=23,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        rotation = _full_width(node, graph) if node.op_type == "Add" else _half_width(node, graph)
        if rotation is None:
            return None
        inner = [member for member in rotation.nodes if member.op_type not in ("Slice", "Split")]
        if any(is_used_outside(output, rotation.nodes) for member in inner[:-1] for output in member.outputs):
            return Refused("a value inside the rotation is read elsewhere", rotation.nodes)
        if graph.dtype(rotation.states) not in _KERNELS:
            return Refused("RotaryEmbedding does not support its type", rotation.nodes)
        shape = graph.shape(rotation.states)
        if shape is None or len(shape) != RANK:
            return Refused("the rotated value is not [batch, heads, length, size]", rotation.nodes)
        heads = head_axis(shape, graph.shape(rotation.cos))
        if heads is None or heads != head_axis(shape, graph.shape(rotation.sin)):
            return Refused("there may not be one row of angles per position", rotation.nodes)
        pairs = (width(rotation.states, graph) or 0) // 2
        found = [
            table_of(factor, doubled=rotation.doubled, interleaved=rotation.interleaved, heads=heads, graph=graph)
            for factor in (rotation.cos, rotation.sin)
        ]
        tables = [table for table in found if table is not None and table.shape[-1] == pairs]
        if len(tables) < 2:
            return Refused("the angles may differ between the two elements of a pair", rotation.nodes)
        if heads == 2 and not isinstance(shape[2], int):
            return Refused("the number of heads is unknown", rotation.nodes)
        whole = _partial(rotation, graph) or rotation

        def build(op: Builder) -> Replacement:
            """Build one operator, between Reshapes to [batch, length, heads * size] and back if heads are on axis 2."""
            cos, sin = built(tables, whole.states, heads, op, graph)
            options = {"interleaved": 1 if whole.interleaved else None, "rotary_embedding_dim": whole.rotated}
            if heads == 1:
                return op.RotaryEmbedding(whole.states, cos, sin, **options)
            flat = merged_last(whole.states, op, graph)
            rotated = op.RotaryEmbedding(flat, cos, sin, num_heads=shape[2], **options)
            return split_last(rotated, whole.nodes[-1].outputs[0], op, graph)

        return Match(whole.nodes, build=build)


def _full_width(node: ir.Node, graph: Facts) -> Rotation | None:
    """Match x * cos + r * sin, where r is x with the elements of each pair exchanged and one of them negated."""
    for straight, crossed in ((0, 1), (1, 0)):
        by_cos, by_sin = operand_producer(node, straight, ("Mul",)), operand_producer(node, crossed, ("Mul",))
        if by_cos is None or by_sin is None or by_cos is by_sin:
            continue
        for side, sin_side in ((0, 1), (1, 0)):
            exchanged = _exchanged(operand(by_sin, side), graph)
            if exchanged is None:
                continue
            source, interleaved, nodes = exchanged
            sin, cos = operand(by_sin, sin_side), other_operand(by_cos, source)
            if sin is not None and cos is not None:
                return Rotation(source, cos, sin, interleaved, True, (*nodes, by_cos, by_sin, node))
    return None


def _exchanged(value: ir.Value | None, graph: Facts) -> tuple[ir.Value, bool, tuple[ir.Node, ...]] | None:
    """Match (-b, a) where x = (a, b); return x and the layout of its pairs."""
    pair = pair_of(value, graph)
    negation = None if pair is None else pair.first.producer()
    if pair is None or negation is None or negation.op_type != "Neg" or negation.domain:
        return None
    split = halves(pair.second, negation.inputs[0], graph)
    if split is None or split[1].interleaved != pair.interleaved:
        return None
    source, inner = split
    return source, pair.interleaved, (*inner.nodes, negation, *pair.nodes)


def _half_width(node: ir.Node, graph: Facts) -> Rotation | None:
    """Match (a * cos - b * sin, b * cos + a * sin) where x = (a, b)."""
    pair = pair_of(node.outputs[0], graph)
    if pair is None:
        return None
    minus, plus = pair.first.producer(), pair.second.producer()
    if minus is None or plus is None or (minus.op_type, plus.op_type) != ("Sub", "Add") or minus.domain or plus.domain:
        return None
    products = [operand_producer(total, index, ("Mul",)) for total in (minus, plus) for index in (0, 1)]
    if None in products:
        return None
    a_cos, b_sin, plus_left, plus_right = (product for product in products if product is not None)
    for b_cos, a_sin in ((plus_left, plus_right), (plus_right, plus_left)):
        for a, cos in ((0, 1), (1, 0)):
            for b, sin in ((0, 1), (1, 0)):
                split = halves(operand(a_cos, a), operand(b_sin, b), graph)
                if split is None or split[1].interleaved != pair.interleaved:
                    continue
                states, inner = split
                by_cos, by_sin = operand(a_cos, cos), operand(b_sin, sin)
                same = other_operand(b_cos, inner.second) is by_cos and other_operand(a_sin, inner.first) is by_sin
                if same and by_cos is not None and by_sin is not None:
                    nodes = (*inner.nodes, a_cos, b_sin, plus_left, plus_right, minus, plus, *pair.nodes)
                    return Rotation(states, by_cos, by_sin, pair.interleaved, False, nodes)
    return None


def _partial(rotation: Rotation, graph: Facts) -> Rotation | None:
    """Return the rotation extended by the Concat that appends the rest of each head, which is not rotated."""
    piece = piece_of(rotation.states, graph)
    user = consumer_of(rotation.nodes[-1].outputs[0], graph, ("Concat",))
    if piece is None or user is None or len(user.inputs) != 2:
        return None
    rest, total = piece_of(operand(user, 1), graph), width(piece.source, graph)
    if rest is None or rest.source is not piece.source:
        return None
    whole = (piece.start, piece.stop, rest.stop) == (0, rest.start, total) and piece.step == rest.step == 1
    if not whole or not is_last(user.attributes.get_int("axis", 0), user.outputs[0], graph):
        return None
    nodes = (*dict.fromkeys((piece.node, rest.node)), *rotation.nodes, user)
    return replace(rotation, states=piece.source, nodes=nodes, rotated=piece.stop)


# The cosines and sines of a rotation as RotaryEmbedding takes them: [batch, length, pairs], one per pair of elements.
#
# Models store them at twice that width, with an axis of size one for the heads, and for a batch of one; the functions
# here find the table of half width behind that.

RANK = 4  # [batch, heads, length, size] or [batch, length, heads, size]


class Table(Struct, frozen=True):
    """Cosines or sines of half width; `bare` if the axis of the heads has been removed."""

    half: ir.Value | np.ndarray
    shape: Shape
    bare: bool

    @property
    def batch(self) -> Dim:
        """Return the batch size of the table."""
        return self.shape[0] if len(self.shape) == (RANK - 1 if self.bare else RANK) else 1


def head_axis(states: Shape, angles: Shape | None) -> int | None:
    """Return the head axis of states [batch, ?, ?, size]: the axis along which the angles do not vary.

    Returns None if it is uncertain that the angles have one row per position.
    """
    if angles is None or not 2 <= len(angles) <= RANK or len(states) != RANK or None in (*states, *angles):
        return None
    padded = (1,) * (RANK - len(angles)) + angles
    for heads, length in ((1, 2), (2, 1)):
        if padded[heads] == 1 and padded[length] == states[length] and padded[0] in (1, states[0]):
            return heads
    return None


def table_of(value: ir.Value, *, doubled: bool, interleaved: bool, heads: int, graph: Facts) -> Table | None:
    """Return the table of half width behind a factor of the states, or None if its halves may differ."""
    value, bare = _without_heads(value, heads, graph)
    half = repeated(value, interleaved, graph) if doubled else value
    if isinstance(half, ir.Value):
        if not bare:
            half, bare = _without_heads(half, heads, graph)
        numbers = graph.array(half)
        half = half if numbers is None else numbers
    if half is None:
        return None
    shape = half.shape if isinstance(half, np.ndarray) else graph.shape(half)
    return None if shape is None else Table(half, shape, bare)


def built(tables: Sequence[Table], states: ir.Value, heads: int, op: Builder, graph: Facts) -> list[ir.Value]:
    """Build the tables as [batch, length, pairs] with the batch size of the states."""
    shape = graph.shape(states)
    assert shape is not None
    batch = shape[0]
    target = _expand_target(states, batch, op, graph) if any(table.batch != batch for table in tables) else None
    return [_built(table, batch, heads, target, op) for table in tables]


def _expand_target(states: ir.Value, batch: Dim, op: Builder, graph: Facts) -> ir.Value:
    """Build the target of an Expand that repeats a table over the batch, which the operator requires."""
    if isinstance(batch, int):
        return op.constant(np.array([batch, 1, 1], np.int64), "target")
    return op.Concat(first_size(states, op, graph), op.constant(np.array([1, 1], np.int64), "ones"), axis=0)


def _built(table: Table, batch: Dim, heads: int, target: ir.Value | None, op: Builder) -> ir.Value:
    if isinstance(table.half, np.ndarray):
        constant = op.constant(_bare(table.half, None if table.bare else heads), "table")
        return constant if table.batch == batch else op.Expand(constant, target)
    value, rank = table.half, len(table.shape)
    if not table.bare and rank == RANK:
        value = op.Squeeze(value, op.constant(np.array([heads], np.int64), "axes"))
    elif not table.bare and rank == RANK - 1 and heads == 2:  # [length, 1, pairs]
        value = op.Transpose(value, perm=[1, 0, 2])
    if table.batch != batch:
        return op.Expand(value, target)
    return value if rank >= RANK - 1 else op.Unsqueeze(value, op.constant(np.array([0], np.int64), "axes"))


def _bare(half: np.ndarray, heads: int | None) -> np.ndarray:
    """Return the numbers as [batch or 1, length, pairs]."""
    rank = RANK - 1 if heads is None else RANK
    half = half.reshape((1,) * (rank - half.ndim) + half.shape)
    return np.ascontiguousarray(half if heads is None else half.squeeze(axis=heads))


def _without_heads(value: ir.Value, heads: int, graph: Facts) -> tuple[ir.Value, bool]:
    """Return the value before an Unsqueeze inserted the head axis, and whether there was one."""
    node = value.producer()
    if node is None or node.op_type != "Unsqueeze" or node.domain or graph.rank(value) != RANK:
        return value, False
    axes = normal_axes(ints(node, "axes", 1, graph) or (), RANK)
    source = operand(node, 0)
    return (source, True) if source is not None and axes in ((heads,), (0, heads)) else (value, False)
