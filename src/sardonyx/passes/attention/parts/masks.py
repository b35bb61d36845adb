"""Makes of everything that masks the scores one mask in a shape that the runtime's Attention takes.

Its kernel wants two to four axes, the last two of them whole; batch and heads it repeats by itself. A row masked as a
whole by the lowest number there is comes out of it as zeros, though all its scores are equal; so that number, which
exporters like, is replaced by the next larger ones (`LEAST`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.facts import Dim, Facts
from sardonyx.passes.attention.parts.heads import Axes, fine, flat, regroup, size
from sardonyx.passes.attention.parts.layouts import Steps, way
from sardonyx.passes.attention.parts.operands import Layout
from sardonyx.passes.attention.parts.scores import Mask, NearMiss, Scores
from sardonyx.passes.shared.views import VIEWS

LARGE_CONSTANT = 1 << 24  # bytes of a constant mask that is looked at


LEAST = {ir.DataType.FLOAT: -3.4e38, ir.DataType.FLOAT16: -65472.0}
_MOVES = (*VIEWS, "Transpose", "Expand", "Slice", "Gather", "Identity")


@dataclass(frozen=True, eq=False)
class Term:
    """A mask, the way into shape, and whether it may hold the lowest number."""

    mask: Mask
    steps: Steps
    may_be_lowest: bool = False
    chosen: tuple[float, float] | None = None  # what a Where makes it of
    makers: tuple[ir.Node, ...] = ()  # that Where, and the views that follow


@dataclass(frozen=True, eq=False)
class Masks:
    """What to write as a mask."""

    terms: tuple[Term, ...]
    guarded: bool  # whether rows of -inf are zero, and must stay so
    lengths: tuple[Dim, Dim]  # of queries and keys
    whole_rows: bool  # whether it has a row for every query

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """Whose work is taken over."""
        return tuple(node for term in self.terms for node in term.makers)

    def write(self, queries: ir.Value, op: Builder, dtype: ir.DataType) -> ir.Value | None:
        """The mask; None where there is none."""
        if not self.terms:
            return None
        values = [self._term(term, op, dtype) for term in self.terms]
        total = values[0]
        for value in values[1:]:
            total = op.Add(total, value)
        if any(term.may_be_lowest for term in self.terms):
            total = self._bounded(total, op, dtype)
        return total if self.whole_rows else self._spread(total, queries, op)

    def _spread(self, mask: ir.Value, queries: ir.Value, op: Builder) -> ir.Value:
        """One row for every query. The length is asked of the mask where it knows it, so that layers share that."""
        rows, columns = self.lengths
        if isinstance(rows, int):
            return op.Expand(mask, op.constant(np.array([rows, 1], np.int64), "rows"))
        count = op.Shape(mask, start=-1) if rows == columns else op.Shape(queries, start=-2, end=-1)
        return op.Expand(mask, op.Concat(count, op.constant(np.array([1], np.int64), "one"), axis=0))

    def _term(self, term: Term, op: Builder, dtype: ir.DataType) -> ir.Value:
        """One mask as something to add, or as the condition itself where nothing else masks."""
        mask = term.mask
        if term.chosen is not None:
            return term.steps.write(_remade(term.makers, term.chosen, op, dtype), op, dtype)
        if mask.keeps is None:
            return term.steps.write(mask.value, op, dtype)
        condition = term.steps.write(mask.value, op, ir.DataType.BOOL)
        if len(self.terms) == 1 and mask.fill == -np.inf:
            return condition if mask.keeps else op.Not(condition)
        return _choice(condition, *((0.0, mask.fill) if mask.keeps else (mask.fill, 0.0)), op, dtype)

    def _bounded(self, total: ir.Value, op: Builder, dtype: ir.DataType) -> ir.Value:
        """The mask without the lowest number."""
        least = op.constant(np.array(LEAST[dtype], dtype.numpy()), "least")
        if not self.guarded:
            return op.Max(total, least)
        lowest = op.constant(np.array(_lowest(dtype), dtype.numpy()), "lowest")
        return op.Where(op.Equal(total, lowest), least, total)


def _remade(makers: Sequence[ir.Node], chosen: tuple[float, float], op: Builder, dtype: ir.DataType) -> ir.Value:
    """What a Where and views of it made, without the lowest number."""
    choice, *views = makers
    condition = choice.inputs[0]
    assert condition is not None
    value = _choice(condition, *chosen, op, dtype)
    for view in views:
        value = op.like(view, (value, *view.inputs[1:]))
    return value


def _choice(condition: ir.Value, first: float, second: float, op: Builder, dtype: ir.DataType) -> ir.Value:
    """Where(condition, first, second), neither being the lowest number."""
    numbers = [LEAST[dtype] if number == _lowest(dtype) else number for number in (first, second)]
    return op.Where(condition, *(op.constant(np.array(number, dtype.numpy()), "mask") for number in numbers))


def _lowest(dtype: ir.DataType) -> float:
    return float(np.finfo(dtype.numpy()).min)


def read_masks(scores: Scores, layout: Layout, graph: Facts, *, guarded: bool) -> Masks:
    """What masks the scores.

    Raises:
        NearMiss: where a mask cannot be brought into a shape that Attention takes.
    """
    wanted = _as_attention_sees(scores, layout)
    given = [mask for mask in scores.masks if not _is_zero(mask, graph)]
    terms = tuple(_read_term(mask, wanted, graph) for mask in given)
    parts = {part for mask in given for part in flat(mask.axes)}
    rows, columns = (parts.issuperset(fine(axis)) for axis in wanted[-2:])
    if terms and not columns:
        raise NearMiss("its mask is the same for all keys")
    rank = max((len(_target(mask, wanted)) for mask in given), default=2)
    return Masks(terms, guarded, (size(wanted[-2]), size(wanted[-1])), rows and rank >= 2)


def _read_term(mask: Mask, wanted: Axes, graph: Facts) -> Term:
    steps = _steps(mask, wanted)
    if mask.keeps is not None:
        return Term(mask, steps)
    dtype, made = graph.dtype(mask.value), mask.value.producer()
    makers: list[ir.Node] = []
    while made is not None and not made.domain and made.op_type in _MOVES and made.inputs[0] is not None:
        makers.insert(0, made)
        made = made.inputs[0].producer()
    if dtype is not None and made is not None and made.op_type == "Where" and not made.domain:
        first, second = (graph.scalar(value) for value in made.inputs[1:3])
        if first is not None and second is not None:
            if _lowest(dtype) not in (first, second):
                return Term(mask, steps)
            return Term(mask, steps, chosen=(float(first), float(second)), makers=(made, *makers))
    return Term(mask, steps, may_be_lowest=not _is_bounded(mask.value, graph))


def _is_bounded(value: ir.Value | None, graph: Facts) -> bool:
    """Whether a mask is certain not to hold the lowest number: constants, however moved and picked from."""
    while value is not None:
        array = graph.array(value, LARGE_CONSTANT)
        if array is not None:
            return array.dtype.kind == "f" and not (array == np.finfo(array.dtype).min).any()
        made = value.producer()
        if made is None or made.domain or made.op_type not in _MOVES:
            return False
        value = made.inputs[0]
    return False


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
