"""x * cos + rotate_half(x) * sin => RotaryEmbedding(x, cos, sin).

A pair (a, b) of elements becomes (a * cos - b * sin, b * cos + a * sin). The two are half a head apart or adjacent, and
the rotation covers all of each head or its first part. Refuses if cosines or sines may differ within a pair, if there
may not be one row of them per position, and if an inner value is read elsewhere. Helps because seven passes over the
queries and keys become one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.ir.facts import Dim, Shape
from sardonyx.ir.scopes import is_used_outside, operator
from sardonyx.passes._matching import (
    axes_of,
    consumer_of,
    operand_producer,
    optional,
    other_operand,
    producer_of,
    require,
    required,
    size_of,
    static,
    with_last,
)
from sardonyx.passes._parts import halves, is_last, pair_of, piece_of, repeated, width
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, NoMatch, Replacement

_KERNELS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_NOT_HEADS = "the rotated value is not [batch, heads, length, size]"
_UNEVEN_ROWS = "there may not be one row of angles per position"
_UNEVEN_PAIRS = "the angles may differ between the two elements of a pair"


class Rotation(Struct, frozen=True):
    """What is rotated, by which angles, and by which nodes."""

    states: ir.Value
    cos: ir.Value
    sin: ir.Value
    interleaved: bool
    doubled: bool  # the tables are as wide as the states and contain every angle twice
    nodes: tuple[ir.Node, ...]
    rotated: int | None = None  # how many elements of each head are rotated, if not all

    @property
    def factors(self) -> tuple[ir.Value, ir.Value]:
        return self.cos, self.sin


class FuseRotaryEmbedding(NodePass):
    """Decomposed rotary position embeddings."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Add", "Concat", "Reshape")
    needs = 23
    example = Example(
        before="""
            (float[B, 2, S, 8] x, float[B, S, 4] angle) => (float[B, 2, S, 8] y)
            <int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {8}, int64[1] last = {3}, int64[1] one = {1}> {
                c = Cos(angle)  cc = Concat <axis = -1> (c, c)  cos = Unsqueeze(cc, one)
                s = Sin(angle)  ss = Concat <axis = -1> (s, s)  sin = Unsqueeze(ss, one)
                left = Slice(x, zero, half, last)  right = Slice(x, half, end, last)
                minus = Neg(right)  turned = Concat <axis = -1> (minus, left)
                a = Mul(x, cos)  b = Mul(turned, sin)  y = Add(a, b)
            }
        """,
        after="""{
            c = Cos(angle)  cc = Concat <axis = -1> (c, c)  cos = Unsqueeze(cc, one)
            s = Sin(angle)  ss = Concat <axis = -1> (s, s)  sin = Unsqueeze(ss, one)
            y = RotaryEmbedding(x, c, s)
        }""",
        near_miss="""
            (float[B, 2, S, 8] x, float[B, S, 8] angle) => (float[B, 2, S, 8] y)
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

    def match(self, node: ir.Node, graph: Facts) -> Match:
        rotation = _full_width(node, graph) if node.op_type == "Add" else _half_width(node, graph)
        rotation = required(rotation)
        nodes, states = rotation.nodes, rotation.states
        inner = [member for member in nodes if member.op_type not in ("Slice", "Split")]
        escapes = any(is_used_outside(output, nodes) for member in inner[:-1] for output in member.outputs)
        require(not escapes, "a value inside the rotation is read elsewhere", *nodes)
        require(graph.dtype(states) in _KERNELS, "RotaryEmbedding does not support its type", *nodes)
        shape = required(graph.shape(states), _NOT_HEADS, *nodes)
        require(len(shape) == OPERAND_RANK, _NOT_HEADS, *nodes)
        axes = {head_axis(shape, graph.shape(factor)) for factor in (rotation.cos, rotation.sin)}
        heads = required(axes.pop() if len(axes) == 1 else None, _UNEVEN_ROWS, *nodes)
        tables = [
            required(_table_of(factor, rotation, heads, graph), _UNEVEN_PAIRS, *nodes) for factor in rotation.factors
        ]
        count = 0 if heads == 1 else static(shape[2], "the number of heads is unknown", *nodes)
        whole = _partial(rotation, graph) or rotation

        def build(op: Builder) -> Replacement:
            """Build one operator, between Reshapes to [batch, length, heads * size] and back if heads are on axis 2."""
            cos, sin = _built(tables, whole.states, heads, op, graph)
            options = {"interleaved": 1 if whole.interleaved else None, "rotary_embedding_dim": whole.rotated}
            if heads == 1:
                return op.RotaryEmbedding(whole.states, cos, sin, **options)
            dtype, result = graph.dtype(whole.states), required(graph.shape(whole.states))
            merged = with_last(whole.states, (*result[:2], count * static(result[3])), dtype, op)
            rotated = op.RotaryEmbedding(merged, cos, sin, num_heads=count, **options)
            return with_last(rotated, result, dtype, op)

        return Match(whole.nodes, build=build)


def _full_width(node: ir.Node, graph: Facts) -> Rotation | None:
    """Match x * cos + r * sin, where r is x with the elements of each pair exchanged and one of them negated."""
    products = [operand_producer(node, index, ("Mul",)) for index in (0, 1)]
    for by_cos, by_sin in (products, products[::-1]):
        if by_cos is None or by_sin is None or by_cos is by_sin:
            continue
        for exchanged, sin in (by_sin.inputs, by_sin.inputs[::-1]):
            pair = pair_of(exchanged, graph)
            negation = None if pair is None else producer_of(pair.first, node, ("Neg",))
            split = None if pair is None or negation is None else halves(pair.second, negation.inputs[0], graph)
            if pair is None or negation is None or split is None or split[1].interleaved != pair.interleaved:
                continue
            source, inner = split  # r = (-b, a), where x = (a, b)
            cos, nodes = other_operand(by_cos, source), (*inner.nodes, negation, *pair.nodes, by_cos, by_sin, node)
            if sin is not None and cos is not None:
                return Rotation(source, cos, sin, pair.interleaved, True, nodes)
    return None


@optional
def _half_width(node: ir.Node, graph: Facts) -> Rotation:
    """Match (a * cos - b * sin, b * cos + a * sin) where x = (a, b)."""
    pair = required(pair_of(node.outputs[0], graph))
    minus = required(producer_of(pair.first, node, ("Sub",)))
    plus = required(producer_of(pair.second, node, ("Add",)))
    products = [required(operand_producer(total, index, ("Mul",))) for total in (minus, plus) for index in (0, 1)]
    a_cos, b_sin, *crossed = products
    for a, b in itertools.product(a_cos.inputs, b_sin.inputs):
        split = halves(a, b, graph)
        if split is None or split[1].interleaved != pair.interleaved:
            continue
        states, inner = split
        cos, sin = required(other_operand(a_cos, inner.first)), required(other_operand(b_sin, inner.second))
        for b_cos, a_sin in (crossed, crossed[::-1]):
            if other_operand(b_cos, inner.second) is cos and other_operand(a_sin, inner.first) is sin:
                nodes = (*inner.nodes, *products, minus, plus, *pair.nodes)
                return Rotation(states, cos, sin, pair.interleaved, False, nodes)
    raise NoMatch


@optional
def _partial(rotation: Rotation, graph: Facts) -> Rotation:
    """Return the rotation extended by the Concat that appends the rest of each head, which is not rotated."""
    piece = required(piece_of(rotation.states, graph))
    user = required(consumer_of(rotation.nodes[-1].outputs[0], graph, ("Concat",)))
    require(len(user.inputs) == 2)
    rest = required(piece_of(user.inputs[1], graph))
    count, axis = len(piece.positions), user.attributes.get_int("axis", 0)
    require(rest.source is piece.source and is_last(piece.axis, piece.source, graph) and rest.axis == piece.axis)
    require(piece.positions == range(count) and rest.positions == range(count, piece.size))
    require(is_last(axis, user.outputs[0], graph))
    nodes = (*dict.fromkeys((piece.node, rest.node)), *rotation.nodes, user)
    return replace(rotation, states=piece.source, nodes=nodes, rotated=count)


# The cosines and sines of a rotation as RotaryEmbedding takes them: [batch, length, pairs], one per pair of elements.
#
# Models store them at twice that width, with an axis of size one for the heads, and for a batch of one; the functions
# here find the table of half width behind that.

OPERAND_RANK = 4  # [batch, heads, length, size] or [batch, length, heads, size]


class Table(Struct, frozen=True):
    """Cosines or sines of half width; `bare` if the axis of the heads has been removed."""

    half: ir.Value | np.ndarray
    shape: Shape
    bare: bool

    @property
    def batch(self) -> Dim:
        """Return the batch size of the table."""
        return self.shape[0] if len(self.shape) == (OPERAND_RANK - 1 if self.bare else OPERAND_RANK) else 1


def head_axis(states: Shape, angles: Shape | None) -> int | None:
    """Return the head axis of states [batch, ?, ?, size]: the axis along which the angles do not vary.

    Returns None if it is uncertain that the angles have one row per position.
    """
    if angles is None or not 2 <= len(angles) <= OPERAND_RANK:
        return None
    padded = (1,) * (OPERAND_RANK - len(angles)) + angles
    for heads, length in ((1, 2), (2, 1)):
        if padded[heads] == 1 and padded[length] == states[length] and padded[0] in (1, states[0]):
            return heads
    return None


@optional
def _table_of(factor: ir.Value, rotation: Rotation, heads: int, graph: Facts) -> Table:
    """Return the table of half width behind a factor of the states; its halves may not differ."""
    value, bare = _without_heads(factor, heads, graph)
    half = required(repeated(value, rotation.interleaved, graph) if rotation.doubled else value)
    if isinstance(half, ir.Value):
        half, bare = (half, bare) if bare else _without_heads(half, heads, graph)
        numbers = graph.array(half)
        half = half if numbers is None else numbers
    shape = half.shape if isinstance(half, np.ndarray) else required(graph.shape(half))
    require(shape[-1] == (width(rotation.states, graph) or 0) // 2)
    return Table(half, shape, bare)


def _built(tables: Sequence[Table], states: ir.Value, heads: int, op: Builder, graph: Facts) -> Iterator[ir.Value]:
    """Build the tables as [batch, length, pairs] with the batch size of the states."""
    batch, target = required(graph.shape(states))[0], None
    if any(table.batch != batch for table in tables):  # the operator requires that they are repeated over the batch
        if isinstance(batch, int):
            target = op.constant(np.array([batch, 1, 1], np.int64), "target")
        else:
            ones = size_of(batch, (states,), op, graph), op.constant(np.array([1, 1], np.int64), "ones")
            target = op.Concat(*ones, axis=0)
    for table in tables:
        value, rank, has_heads = table.half, len(table.shape), not table.bare
        if isinstance(value, np.ndarray):
            rank = OPERAND_RANK if has_heads else OPERAND_RANK - 1
            numbers = value.reshape((1,) * (rank - value.ndim) + value.shape)
            numbers = numbers.squeeze(axis=heads) if has_heads else numbers
            value, rank = op.constant(np.ascontiguousarray(numbers), "table"), OPERAND_RANK - 1
        elif has_heads and rank == OPERAND_RANK:
            value = op.Squeeze(value, op.constant(np.array([heads], np.int64), "axes"))
        elif has_heads and rank == OPERAND_RANK - 1 and heads == 2:  # [length, 1, pairs]
            value = op.Transpose(value, perm=[1, 0, 2])
        if table.batch != batch:
            value = op.Expand(value, target)
        elif rank < OPERAND_RANK - 1:
            value = op.Unsqueeze(value, op.constant(np.array([0], np.int64), "axes"))
        yield value


def _without_heads(value: ir.Value, heads: int, graph: Facts) -> tuple[ir.Value, bool]:
    """Return the value before an Unsqueeze inserted the head axis, and whether there was one."""
    node = value.producer()
    if node is None or operator(node) != "Unsqueeze" or graph.rank(value) != OPERAND_RANK:
        return value, False
    source = node.inputs[0]
    return (source, True) if source is not None and axes_of(node, graph) in ((heads,), (0, heads)) else (value, False)
