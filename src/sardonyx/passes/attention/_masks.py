"""Combine everything that masks the scores into one additive mask, in a shape that the runtime's Attention accepts.

Masks do not commute. With scores s, a sum gives s + m and a Where gives w where the condition fails. The combined mask
is built in the same order, a sum as an Add and a Where as a Where, so that every element holds what was added to the
score or what replaced it.

Two differences remain. The runtime's kernel returns zeros for a row that contains nothing above the lowest finite
number, while Softmax returns the mean; so that number, which exporters often use, is replaced by the next larger one.
-inf stays -inf. And sums are rounded in another order, which shows in rows with every key masked: cases that would
differ there are refused.

The kernel accepts masks of rank two to four whose last two axes are complete; it broadcasts over batch and heads
itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Dim, Facts
from sardonyx.passes._mask_values import Choice, MaskValues, above_lowest, lowest, shrinking, values_of
from sardonyx.passes.attention._axis_parts import Axes, Conversion, conversion, flat, refined, regroup, size
from sardonyx.passes.attention._operands import Layout
from sardonyx.passes.attention._scores import Mask, NearMiss, Scores


class Term(Struct, frozen=True, eq=False):
    """A mask, the conversion into the required shape, and what it may contain."""

    mask: Mask
    steps: Conversion
    values: MaskValues
    choice: Choice | None = None  # rebuilt without the lowest number if set


class Masks(Struct, frozen=True, eq=False):
    """The combined mask; the terms are in the order in which they mask the scores."""

    terms: tuple[Term, ...]
    shrinks: bool  # whether the lowest number is removed from the result instead of from the terms
    lengths: tuple[Dim, Dim]  # queries and keys
    whole_rows: bool  # whether it has a row for every query

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """Return the nodes whose work is taken over."""
        return tuple(node for term in self.terms if term.choice is not None for node in term.choice.nodes)

    def write(self, queries: ir.Value, op: Builder, dtype: ir.DataType) -> ir.Value | None:
        """Build the mask, or return None if there is none."""
        if not self.terms:
            return None
        total: ir.Value | None = None
        for term in self.terms:
            total = self._masked(total, term, op, dtype)
        assert total is not None
        if self.shrinks:
            total = op.Mul(total, op.constant(shrinking(dtype), "below_one"))
        return total if self.whole_rows else self._expanded(total, queries, op)

    def _expanded(self, mask: ir.Value, queries: ir.Value, op: Builder) -> ir.Value:
        """Expand the mask to one row per query; equal lengths are read from the mask, so layers share the nodes."""
        rows, columns = self.lengths
        if isinstance(rows, int):
            return op.Expand(mask, op.constant(np.array([rows, 1], np.int64), "rows"))
        count = op.Shape(mask, start=-1) if rows == columns else op.Shape(queries, start=-2, end=-1)
        return op.Expand(mask, op.Concat(count, op.constant(np.array([1], np.int64), "one"), axis=0))

    def _masked(self, total: ir.Value | None, term: Term, op: Builder, dtype: ir.DataType) -> ir.Value:
        """Apply one more term to the mask built so far: an Add, a Where, or the condition alone."""
        mask = term.mask
        if mask.keeps is None:
            value = mask.value if term.choice is None else term.choice.write(op)
            value = term.steps.write(value, op, dtype)
            return value if total is None else op.Add(total, value)
        condition = term.steps.write(mask.value, op, ir.DataType.BOOL)
        if len(self.terms) == 1 and mask.fill == -np.inf:
            return condition if mask.keeps else op.Not(condition)
        fill = np.array(mask.fill, dtype.numpy())
        hidden = op.constant(fill if self.shrinks else above_lowest(fill), "hidden")
        shown = total if total is not None else op.constant(np.zeros((), dtype.numpy()), "shown")
        return op.Where(condition, *((shown, hidden) if mask.keeps else (hidden, shown)))


def read_masks(scores: Scores, layout: Layout, dtype: ir.DataType, graph: Facts) -> Masks:
    """Return what masks the scores.

    Raises:
        NearMiss: a mask cannot be brought into a shape that Attention accepts, or the result of a fully masked row
            would change.
    """
    score_axes = _score_axes(scores, layout)
    masks = [(mask, _values(mask, dtype, graph)) for mask in scores.masks]
    terms = [Term(mask, _steps(mask, score_axes), values) for mask, values in masks if not values.is_zero]
    _check_hidden_rows(terms, dtype)
    parts = {part for term in terms for part in flat(term.mask.axes)}
    rows, columns = (parts.issuperset(refined(axis)) for axis in score_axes[-2:])
    if terms and not columns:
        raise NearMiss("its mask is the same for all keys")
    rank = max((len(_target(term.mask, score_axes)) for term in terms), default=2)
    shrinks = False
    if dtype == ir.DataType.FLOAT:  # in half precision no row consists of the lowest number alone
        terms, shrinks = _without_lowest(terms, dtype)
    return Masks(tuple(terms), shrinks, (size(score_axes[-2]), size(score_axes[-1])), rows and rank >= 2)


def _without_lowest(terms: list[Term], dtype: ir.DataType) -> tuple[list[Term], bool]:
    """Return the terms rebuilt without the lowest number, or the terms unchanged and True to shrink the sum instead.

    Either all of the terms that may contain the lowest number are rebuilt or none: two masks with equal numbers must
    stay equal and two with different numbers must stay different.
    """
    least = lowest(dtype.numpy())
    affected = [term for term in terms if term.values.may_hold(least)]
    rebuildable = all(term.mask.keeps is not None or term.values.choice is not None for term in affected)
    if affected and (not rebuildable or any(term.values.may_hold(above_lowest(least)) for term in terms)):
        return terms, True
    return [replace(term, choice=term.values.choice) if term in affected else term for term in terms], False


def _values(mask: Mask, dtype: ir.DataType, graph: Facts) -> MaskValues:
    """Return what is known about a mask, or about the number that a condition replaces scores by."""
    return values_of(mask.value, graph) if mask.keeps is None else MaskValues(np.array([mask.fill], dtype.numpy()))


def _check_hidden_rows(terms: Sequence[Term], dtype: ir.DataType) -> None:
    """Refuse masks under which a fully masked row would weight its keys differently.

    In single precision one sum is rounded as before, but several are not: (s + m) + n and s + (m + n) differ by a unit
    in the last place of m + n. That is negligible up to 1e4, makes all scores equal from 1e9 on, and matters in
    between. In half precision this holds even for a single sum: whether s - 65504 is rounded differs between machines.
    """
    if dtype == ir.DataType.FLOAT:
        if len(terms) > 1 and any(term.values.is_coarse for term in terms):
            raise NearMiss(
                "several masks would be added in another order, which changes the result of fully masked rows"
            )
        return
    masking = [term for term in terms if not term.values.is_bias]
    if all(term.values.hides_by_infinity for term in masking):
        return
    if len(masking) > 1 or not masking[0].values.shows_in_every_row:
        raise NearMiss("in half precision the result of a fully masked row would change")


def _score_axes(scores: Scores, layout: Layout) -> Axes:
    """Return the axes of the scores as [batch, heads, queries, keys]."""
    if len(scores.whole) == 4:
        return scores.whole
    batch, rows, columns = scores.whole
    if layout.heads is None:
        return [batch, [], rows, columns]
    front = regroup(refined(batch), (layout.batch, size(layout.heads)))
    if front is None:
        raise NearMiss("the heads of its mask cannot be separated from the batch")
    return [*front, rows, columns]


def _target(mask: Mask, score_axes: Axes) -> Axes:
    """Return the axes a mask should have: those it varies over, with no more leading axes than it has already."""
    own_parts = set(flat(mask.axes))
    target: Axes = []
    for axis in score_axes:
        inside = [part for part in refined(axis) if part in own_parts]
        if inside and len(inside) != len(refined(axis)):
            raise NearMiss("its mask varies over only a part of an axis of the scores")
        target.append(inside)
    while len(target) > max(1, len(mask.axes)) and not target[0]:
        target.pop(0)
    return target


def _steps(mask: Mask, score_axes: Axes) -> Conversion:
    steps = conversion(mask.axes, _target(mask, score_axes))
    if steps is None:
        raise NearMiss("its mask needs a Reshape whose target is not constant")
    return steps
