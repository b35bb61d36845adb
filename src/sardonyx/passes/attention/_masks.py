"""Makes of everything that masks the scores one mask to add to them, in a shape that the runtime's Attention takes.

Masks do not commute: the mask is built in the order in which the scores were masked, a sum as a sum and a Where as a
Where, so that it holds at every place what the scores were overwritten with or raised by. Two things remain. The
runtime's kernel makes zeros of a row that holds nothing above the lowest number, where Softmax makes a mean of it; so
that number, which exporters like, is replaced by the next larger one, and -inf stays -inf. And sums are rounded in
another order, which is felt where every key of a row is hidden: what cannot be equal there is refused.

The kernel wants two to four axes, the last two of them whole; batch and heads it repeats by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Dim, Facts
from sardonyx.passes._mask_values import Choice, MaskValues, above_lowest, lowest, shrinking, values_of
from sardonyx.passes.attention._heads import Axes, fine, flat, regroup, size
from sardonyx.passes.attention._layouts import Steps, way
from sardonyx.passes.attention._operands import Layout
from sardonyx.passes.attention._scores import Mask, NearMiss, Scores


@dataclass(frozen=True, eq=False)
class Term:
    """A mask, the way into shape, and what it may hold."""

    mask: Mask
    steps: Steps
    values: MaskValues
    choice: Choice | None = None  # between constants, to be made anew without the lowest number


@dataclass(frozen=True, eq=False)
class Masks:
    """What to write as a mask; the terms stand in the order in which they mask the scores."""

    terms: tuple[Term, ...]
    shrinks: bool  # whether the lowest number is taken out of the whole rather than of the terms
    lengths: tuple[Dim, Dim]  # of queries and keys
    whole_rows: bool  # whether it has a row for every query

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """Whose work is taken over."""
        return tuple(node for term in self.terms if term.choice is not None for node in term.choice.nodes)

    def write(self, queries: ir.Value, op: Builder, dtype: ir.DataType) -> ir.Value | None:
        """The mask; None where there is none."""
        if not self.terms:
            return None
        total: ir.Value | None = None
        for term in self.terms:
            total = self._masked(total, term, op, dtype)
        assert total is not None
        if self.shrinks:
            total = op.Mul(total, op.constant(shrinking(dtype), "below_one"))
        return total if self.whole_rows else self._spread(total, queries, op)

    def _spread(self, mask: ir.Value, queries: ir.Value, op: Builder) -> ir.Value:
        """One row for every query. The length is asked of the mask where it knows it, so that layers share that."""
        rows, columns = self.lengths
        if isinstance(rows, int):
            return op.Expand(mask, op.constant(np.array([rows, 1], np.int64), "rows"))
        count = op.Shape(mask, start=-1) if rows == columns else op.Shape(queries, start=-2, end=-1)
        return op.Expand(mask, op.Concat(count, op.constant(np.array([1], np.int64), "one"), axis=0))

    def _masked(self, so_far: ir.Value | None, term: Term, op: Builder, dtype: ir.DataType) -> ir.Value:
        """What is masked so far, masked once more: by a sum, by a choice, or by the condition alone."""
        mask = term.mask
        if mask.keeps is None:
            value = mask.value if term.choice is None else term.choice.write(op)
            value = term.steps.write(value, op, dtype)
            return value if so_far is None else op.Add(so_far, value)
        condition = term.steps.write(mask.value, op, ir.DataType.BOOL)
        if len(self.terms) == 1 and mask.fill == -np.inf:
            return condition if mask.keeps else op.Not(condition)
        fill = np.array(mask.fill, dtype.numpy())
        hidden = op.constant(fill if self.shrinks else above_lowest(fill), "hidden")
        shown = so_far if so_far is not None else op.constant(np.zeros((), dtype.numpy()), "shown")
        return op.Where(condition, *((shown, hidden) if mask.keeps else (hidden, shown)))


def read_masks(scores: Scores, layout: Layout, dtype: ir.DataType, graph: Facts) -> Masks:
    """What masks the scores.

    Raises:
        NearMiss: where a mask cannot be brought into a shape that Attention takes, or where a row that it hides whole
            would come out otherwise.
    """
    wanted = _as_attention_sees(scores, layout)
    given = [(mask, _values(mask, dtype, graph)) for mask in scores.masks]
    terms = [Term(mask, _steps(mask, wanted), values) for mask, values in given if not values.is_zero]
    _check_hidden_rows(terms, dtype)
    parts = {part for term in terms for part in flat(term.mask.axes)}
    rows, columns = (parts.issuperset(fine(axis)) for axis in wanted[-2:])
    if terms and not columns:
        raise NearMiss("its mask is the same for all keys")
    rank = max((len(_target(term.mask, wanted)) for term in terms), default=2)
    shrinks = False
    if dtype == ir.DataType.FLOAT:  # half precision comes here only where no row can hold the lowest number alone
        terms, shrinks = _without_lowest(terms, dtype)
    return Masks(tuple(terms), shrinks, (size(wanted[-2]), size(wanted[-1])), rows and rank >= 2)


def _without_lowest(terms: list[Term], dtype: ir.DataType) -> tuple[list[Term], bool]:
    """The terms that hold the lowest number made anew without it, or all as they are and the whole to be shrunk.

    Either all of them or none: two that hide alike must do so afterwards, and two that do not must not.
    """
    least = lowest(dtype.numpy())
    holding = [term for term in terms if term.values.may_hold(least)]
    made_of_constants = all(term.mask.keeps is not None or term.values.choice is not None for term in holding)
    if holding and (not made_of_constants or any(term.values.may_hold(above_lowest(least)) for term in terms)):
        return terms, True
    return [replace(term, choice=term.values.choice) if term in holding else term for term in terms], False


def _values(mask: Mask, dtype: ir.DataType, graph: Facts) -> MaskValues:
    """What is known of a mask, or of what a condition puts in the place of scores."""
    return values_of(mask.value, graph) if mask.keeps is None else MaskValues(np.array([mask.fill], dtype.numpy()))


def _check_hidden_rows(terms: Sequence[Term], dtype: ir.DataType) -> None:
    """Refuse masks that do not weight the keys as before where all of a row are hidden.

    In single precision one sum is rounded as before, several are not: (s + m) + n and s + (m + n) differ by a unit in
    the last place of m + n, which is small up to 1e4, makes all scores equal from 1e9 on, and matters in between.
    In half precision that is so for a single one too: whether s - 65504 is rounded at all differs between machines.
    """
    if dtype == ir.DataType.FLOAT:
        if len(terms) > 1 and any(term.values.is_coarse for term in terms):
            raise NearMiss("several masks would be rounded in another order, which rows that are hidden whole show")
        return
    hiding = [term for term in terms if not term.values.is_bias]
    if all(term.values.hides_by_infinity for term in hiding):
        return
    if len(hiding) > 1 or not hiding[0].values.shows_in_every_row:
        raise NearMiss("in half precision a row that its mask hides whole would come out otherwise")


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
