"""Makes of everything that masks the scores one mask in a shape that the runtime's Attention takes.

Its kernel wants two to four axes, the last two of them whole; batch and heads it repeats by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.facts import Dim, Facts
from sardonyx.passes.attention.fuse_attention_layout import Layout
from sardonyx.passes.attention.fuse_attention_scores import Mask, NearMiss, Scores
from sardonyx.passes.shared.heads import Axes, fine, flat, regroup, size
from sardonyx.passes.shared.layouts import Steps, way

LARGE_CONSTANT = 1 << 24  # bytes of a constant mask that is looked at


@dataclass(frozen=True, eq=False)
class Masks:
    """What to write as a mask."""

    terms: tuple[tuple[Mask, Steps], ...]
    lengths: tuple[Dim, Dim]  # of queries and keys
    whole_rows: bool  # whether it has a row for every query

    def write(self, queries: ir.Value, op: Builder, dtype: ir.DataType) -> ir.Value | None:
        """The mask; None where there is none."""
        if not self.terms:
            return None
        values = [_term(mask, steps, op, dtype, alone=len(self.terms) == 1) for mask, steps in self.terms]
        total = values[0]
        for value in values[1:]:
            total = op.Add(total, value)
        return total if self.whole_rows else self._spread(total, queries, op)

    def _spread(self, mask: ir.Value, queries: ir.Value, op: Builder) -> ir.Value:
        """One row for every query. The length is asked of the mask where it knows it, so that layers share that."""
        rows, columns = self.lengths
        if isinstance(rows, int):
            return op.Expand(mask, op.constant(np.array([rows, 1], np.int64), "rows"))
        count = op.Shape(mask, start=-1) if rows == columns else op.Shape(queries, start=-2, end=-1)
        return op.Expand(mask, op.Concat(count, op.constant(np.array([1], np.int64), "one"), axis=0))


def read_masks(scores: Scores, layout: Layout, graph: Facts) -> Masks:
    """What masks the scores.

    Raises:
        NearMiss: where a mask cannot be brought into a shape that Attention takes.
    """
    wanted = _as_attention_sees(scores, layout)
    given = [mask for mask in scores.masks if not _is_zero(mask, graph)]
    terms = tuple((mask, _steps(mask, wanted)) for mask in given)
    parts = {part for mask in given for part in flat(mask.axes)}
    rows, columns = (parts.issuperset(fine(axis)) for axis in wanted[-2:])
    if terms and not columns:
        raise NearMiss("its mask is the same for all keys")
    rank = max((len(_target(mask, wanted)) for mask in given), default=2)
    return Masks(terms, (size(wanted[-2]), size(wanted[-1])), rows and rank >= 2)


def _as_attention_sees(scores: Scores, layout: Layout) -> Axes:
    """The scores as [batch, heads, queries, keys]."""
    if len(scores.whole) == 4:
        return scores.whole
    batch, rows, columns = scores.whole
    if layout.heads is None:
        return [batch, [], rows, columns]
    front = regroup(fine(batch), (layout.batch, size(layout.heads)))
    if front is None:
        raise NearMiss("the heads of its mask cannot be told apart")
    return [*front, rows, columns]


def _target(mask: Mask, wanted: Axes) -> Axes:
    """The axes a mask should have: those it varies over, and no more in front than it has already."""
    have = set(flat(mask.axes))
    target: Axes = []
    for axis in wanted:
        inside = [part for part in fine(axis) if part in have]
        if inside and len(inside) != len(fine(axis)):
            raise NearMiss("its mask is repeated along an axis of the scores")
        target.append(inside)
    while len(target) > max(1, len(mask.axes)) and not target[0]:
        target.pop(0)
    return target


def _steps(mask: Mask, wanted: Axes) -> Steps:
    found = way(mask.axes, _target(mask, wanted))
    if found is None:
        raise NearMiss("the shape of its mask cannot be written down")
    return found


def _is_zero(mask: Mask, graph: Facts) -> bool:
    """Whether a constant mask changes nothing."""
    if mask.keeps is not None:
        return False
    array = graph.array(mask.value, LARGE_CONSTANT)
    return array is not None and not array.any()


def _term(mask: Mask, steps: Steps, op: Builder, dtype: ir.DataType, *, alone: bool) -> ir.Value:
    """One mask as something to add, or as the condition itself where nothing else masks."""
    if mask.keeps is None:
        return steps.write(mask.value, op, dtype)
    condition = steps.write(mask.value, op, ir.DataType.BOOL)
    if alone and mask.fill == -np.inf:
        return condition if mask.keeps else op.Not(condition)
    zero, fill = (op.constant(np.array(number, dtype.numpy()), "mask") for number in (0, mask.fill))
    return op.Where(condition, *((zero, fill) if mask.keeps else (fill, zero)))
