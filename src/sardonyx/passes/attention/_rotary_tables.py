"""The cosines and sines of a rotation as RotaryEmbedding takes them: [batch, length, pairs], one per pair of elements.

Models store them at twice that width, with an axis of size one for the heads, and for a batch of one; the functions
here find the table of half width behind that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Dim, Facts, Shape
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import ints
from sardonyx.passes._parts import repeated
from sardonyx.passes._shapes import first_size, normal_axes

RANK = 4  # [batch, heads, length, size] or [batch, length, heads, size]


@dataclass(frozen=True, slots=True)
class Table:
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
