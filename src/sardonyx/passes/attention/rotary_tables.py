"""The cosines and sines of a rotation, as RotaryEmbedding wants them: one a pair of elements, [batch, length, pairs].

Models keep them twice as wide, with an axis of size one for the heads, and for one batch: this finds what is behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.facts import Dim, Facts, Shape
from sardonyx.passes.shared.matching import ints, operand
from sardonyx.passes.shared.pieces import repeated
from sardonyx.passes.shared.views import normal_axes

RANK = 4  # [batch, heads, length, size] or [batch, length, heads, size]


@dataclass(frozen=True, slots=True)
class Table:
    """Cosines or sines of half width, whose dims are `shape`, heads still among them where its rank says so."""

    half: ir.Value | np.ndarray
    shape: Shape


def head_axis(states: Shape, angles: Shape | None) -> int | None:
    """Which axis of the states [batch, ?, ?, size] is the heads': the one along which the angles do not change.

    None where the angles do not certainly have one row a position.
    """
    if angles is None or len(angles) > RANK or len(states) != RANK or None in (*states, *angles):
        return None
    padded = (1,) * (RANK - len(angles)) + angles
    for heads, length in ((1, 2), (2, 1)):
        if padded[heads] == 1 and padded[length] == states[length] and padded[0] in (1, states[0]):
            return heads
    return None


def table_of(value: ir.Value, *, doubled: bool, interleaved: bool, heads: int, graph: Facts) -> Table | None:
    """The half-width table behind a value that the states are multiplied with; None where its halves may differ."""
    value = _without_heads(value, heads, graph)
    half = repeated(value, interleaved, graph) if doubled else value
    if half is None:
        return None
    if isinstance(half, np.ndarray):
        return Table(half, half.shape)
    if doubled:
        half = _without_heads(half, heads, graph)
    if (numbers := graph.array(half)) is not None:
        return Table(numbers, numbers.shape)
    shape = graph.shape(half)
    return None if shape is None else Table(half, shape)


def built(table: Table, batch: Dim, heads: int, count: ir.Value | None, op: Builder) -> ir.Value:
    """The table as [batch, length, pairs]; `count` holds the batch size where it is not a number."""
    if isinstance(table.half, np.ndarray):
        return _constant(table.half, batch, count, heads, op)
    value, rank = table.half, len(table.shape)
    if rank == RANK:
        value = op.Squeeze(value, op.constant(np.array([heads], np.int64), "axes"))
    elif rank == RANK - 1 and heads == 2:  # [length, 1, pairs]
        value = op.Transpose(value, perm=[1, 0, 2])
    if _batch(table.shape, heads) != batch:
        return op.Expand(value, _batched(batch, count, op))
    return value if rank >= RANK - 1 else op.Unsqueeze(value, op.constant(np.array([0], np.int64), "axes"))


def needs_count(tables: tuple[Table, ...], batch: Dim, heads: int) -> bool:
    """Whether the batch size has to be had at run time to repeat the tables."""
    return not isinstance(batch, int) and any(_batch(each.shape, heads) != batch for each in tables)


def _batch(shape: Shape, heads: int) -> Dim:
    """For how many members of the batch a table speaks."""
    return shape[0] if len(shape) == RANK or (len(shape) == RANK - 1 and heads == 1) else 1


def _constant(half: np.ndarray, batch: Dim, count: ir.Value | None, heads: int, op: Builder) -> ir.Value:
    half = half.reshape((1,) * (RANK - half.ndim) + half.shape).squeeze(axis=heads)
    if isinstance(batch, int) and batch != half.shape[0]:
        half = np.repeat(half, batch, axis=0)
    constant = op.constant(np.ascontiguousarray(half), "table")
    return constant if isinstance(batch, int) else op.Expand(constant, _batched(batch, count, op))


def _batched(batch: Dim, count: ir.Value | None, op: Builder) -> ir.Value:
    """The target of an Expand that repeats a table for every member of the batch."""
    if isinstance(batch, int):
        return op.constant(np.array([batch, 1, 1], np.int64), "target")
    assert count is not None
    return op.Concat(count, op.constant(np.array([1, 1], np.int64), "ones"), axis=0)


def _without_heads(value: ir.Value, heads: int, graph: Facts) -> ir.Value:
    """The value before an Unsqueeze made the heads' axis, and where it made that alone."""
    node = value.producer()
    if node is None or node.op_type != "Unsqueeze" or node.domain or graph.rank(value) != RANK:
        return value
    axes = normal_axes(ints(node, "axes", 1, graph) or (), RANK)
    source = operand(node, 0)
    return source if source is not None and axes in ((heads,), (0, heads)) else value
