"""MatMul(Softmax(scale * MatMul(Q, K^T) + mask), V) => Attention(Q, K, V, mask).

The scale may be split over Q, K and the product. There may be a softcap, several masks or a condition, and heads of K
and V that are repeated for groups of queries; the repetition is removed. Refuses if scores or weights are read
elsewhere or cast to a type that does not hold them, if the scale is not a constant, if a mask could enlarge the scores,
if the result of a fully masked row would change, and for types without a kernel in the runtime. A row masked entirely
by -inf becomes zero, as the standard defines, instead of NaN; one masked by the lowest finite number stays the mean of
the values, for which the mask is kept above that number. Helps because the scores are no longer scaled and masked by
separate nodes, and because heads then need no transpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.ir.facts import Dim
from sardonyx.ir.scopes import has_references, is_used_outside
from sardonyx.ir.support import ATTENTION_WIDTH
from sardonyx.passes._layout import Axes, Conversion, conversion, convert, flat, refined, regroup, restricted, size
from sardonyx.passes._mask_values import Choice, MaskValues, above_lowest, lowest, shrinking, values_of
from sardonyx.passes._matching import operand_producer, require, required
from sardonyx.passes._numbers import preserves_values
from sardonyx.passes.attention._decomposed import Layout, Mask, Scores, read_layout, read_scores
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement

TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
SCALE_TOLERANCE = 1e-6  # relative; a scale this close to the default is the default
_ANOTHER_ORDER = "several masks would be added in another order, which changes the result of fully masked rows"
_SCALES = (float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max))
_SOFTMAX_OF_ONE_AXIS = 13  # before, Softmax flattened its input, which is the same for the last axis


class FuseAttention(NodePass):
    """Decomposed scaled dot-product attention."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Softmax",)
    opset = 7  # before, sums and products broadcast only with an attribute
    needs = 23
    example = Example(
        before="""
            (float[2, 2, 5, 4] q, float[2, 2, 3, 4] k, float[2, 2, 3, 4] v, float[2, 1, 5, 3] m)
                => (float[2, 2, 5, 4] y)
            <float c = {0.3}> {
                kt = Transpose <perm = [0, 1, 3, 2]> (k)
                qc = Mul(q, c)
                s = MatMul(qc, kt)
                a = Add(m, s)
                p = Softmax <axis = -1> (a)
                y = MatMul(p, v)
            }
        """,
        after="<float below_one = {0.99999994}> { b = Mul(m, below_one)  y = Attention <scale = 0.3> (q, k, v, b) }",
        near_miss="""
            (float[2, 2, 5, 4] q, float[2, 2, 3, 4] k, float[2, 2, 3, 4] v)
                => (float[2, 2, 5, 4] y, float[2, 2, 5, 3] p)
            {
                kt = Transpose <perm = [0, 1, 3, 2]> (k)
                s = MatMul(q, kt)
                p = Softmax <axis = -1> (s)
                y = MatMul(p, v)
            }
        """,
        refusal="weights are read elsewhere",
        opset=23,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        rank = required(graph.rank(node.inputs[0]))
        require(rank in (3, 4) and not has_references(node))
        axis = node.attributes.get_int("axis", -1 if graph.opset(node) >= _SOFTMAX_OF_ONE_AXIS else 1)
        path = required(_to_product(node, graph) if axis in (-1, rank - 1) else None)
        nodes: tuple[ir.Node, ...] = (node, path[-1])
        try:
            scores = read_scores(node, graph)
            nodes = (*reversed(scores.nodes), node, path[-1])
            return _matched((node, *path), scores, graph)
        except Refused as refused:
            raise Refused(refused.reason, nodes) from None


def _to_product(softmax: ir.Node, graph: Facts) -> tuple[ir.Node, ...] | None:
    """Return the nodes after a Softmax up to the product with the values: Casts and Where(IsNaN(w), 0, w) before it."""
    pending = [(softmax.outputs[0], tuple[ir.Node, ...]())]
    while pending:
        weights, path = pending.pop()
        for user, index in weights.uses():
            if user.domain or user.graph is not softmax.graph:
                continue
            if user.op_type == "MatMul" and index == 0:
                return (*path, user)
            test = operand_producer(user, 0, ("IsNaN",)) if user.op_type == "Where" and index == 2 else None
            is_guard = test is not None and test.inputs[0] is weights and graph.scalar(user.inputs[1]) == 0
            if test is not None and is_guard and graph.same_shape(weights, user.outputs[0]):
                pending.append((user.outputs[0], (*path, test, user)))
            elif user.op_type == "Cast":
                pending.append((user.outputs[0], (*path, user)))
    return None


def _matched(path: tuple[ir.Node, ...], scores: Scores, graph: Facts) -> Match:
    *weighting, product = path
    queries, keys, values = *scores.product.inputs[:2], product.inputs[1]
    weights = [node.outputs[0] for node in weighting]
    is_closed = values not in weights and not any(is_used_outside(value, path) for value in weights)
    require(is_closed, "its weights are read elsewhere")
    dtype = graph.dtype(values)
    dtype = required(dtype if dtype in TYPES else None, "the runtime has no kernel of Attention for this type")
    require(graph.dtype(queries) == graph.dtype(keys) == dtype, "its operands have different types")
    for cast in weighting[1:]:  # a cast may change the weights only back from the precision of the Softmax
        source, to = graph.dtype(cast.inputs[0]), cast.attributes.get_int("to", 0)
        keeps = cast.op_type != "Cast" or preserves_values(source, to) or (source, to) == (scores.precision, dtype)
        require(keeps, "its weights are cast to a type that does not hold them")
    layout = read_layout(queries, keys, values, scores.product, product, graph)
    operands = layout.operands
    columns = layout.shape[-1]
    is_right = not ATTENTION_WIDTH.concerns("Attention", dtype) or (isinstance(columns, int) and columns % 8 != 4)
    require(is_right, ATTENTION_WIDTH.fact)
    scale = scores.scale * operands[0].stage.factor * operands[1].stage.factor
    require(_SCALES[0] <= scale <= _SCALES[1], "its scale is not a positive number in single precision")
    masks = read_masks(scores, layout, dtype, graph)
    taken_over = [*masks.nodes, *(node for operand in operands for node in operand.nodes)]
    nodes = [*taken_over, *reversed(scores.nodes), *path]
    is_default = isinstance(layout.width, int) and abs(scale * math.sqrt(layout.width) - 1) < SCALE_TOLERANCE
    attributes: dict[str, Any] = {
        **layout.attributes,
        "scale": None if is_default else float(scale),
        "softcap": scores.softcap or None,
        "softmax_precision": None if scores.precision is None else int(scores.precision),
    }

    def build(op: Builder) -> Replacement:
        q, k, v = (convert(operand.stage.value, operand.steps, op, dtype) for operand in operands)
        with op.separate():
            mask = masks.write(q, op, dtype)
        value = op.learn(op.Attention(q, k, v, mask, **attributes), dtype, layout.shape)
        return convert(value, layout.back, op, dtype)

    return Match(tuple(dict.fromkeys(nodes)), separate=frozenset(masks.nodes), build=build)


# Combine everything that masks the scores into one additive mask, in a shape that the runtime's Attention accepts.
#
# Masks do not commute. With scores s, a sum gives s + m and a Where gives w where the condition fails. The combined
# mask is built in the same order, a sum as an Add and a Where as a Where, so that every element holds what was added to
# the score or what replaced it.
#
# Two differences remain. One is `ATTENTION_LOWEST`: the lowest finite number, which exporters often use, is replaced by
# the next larger one. -inf stays -inf. And sums are rounded in another order, which shows in rows with every key
# masked: cases that would differ there are refused.
#
# The kernel accepts masks of rank two to four whose last two axes are complete; it broadcasts over batch and heads
# itself.


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
        total: ir.Value | None = None
        for term in self.terms:
            total = self._masked(total, term, op, dtype)
        if total is not None and self.shrinks:
            total = op.Mul(total, op.constant(shrinking(dtype), "below_one"))
        if total is None or self.whole_rows:
            return total
        rows, columns = self.lengths  # expand it to one row per query
        if isinstance(rows, int):
            return op.Expand(total, op.constant(np.array([rows, 1], np.int64), "rows"))
        # Equal lengths are read from the mask, so that layers share the nodes.
        count = op.Shape(total, start=-1) if rows == columns else op.Shape(queries, start=-2, end=-1)
        return op.Expand(total, op.Concat(count, op.constant(np.array([1], np.int64), "one"), axis=0))

    def _masked(self, total: ir.Value | None, term: Term, op: Builder, dtype: ir.DataType) -> ir.Value:
        """Apply one more term to the mask built so far: an Add, a Where, or the condition alone."""
        mask = term.mask
        if mask.keeps is None:
            value = mask.value if term.choice is None else term.choice.write(op)
            value = convert(value, term.steps, op, dtype)
            return value if total is None else op.Add(total, value)
        condition = convert(mask.value, term.steps, op, ir.DataType.BOOL)
        if len(self.terms) == 1 and mask.fill == -np.inf:
            return condition if mask.keeps else op.Not(condition)
        fill = np.array(mask.fill, dtype.numpy())
        hidden = op.constant(fill if self.shrinks else above_lowest(fill), "hidden")
        shown = total if total is not None else op.constant(np.zeros((), dtype.numpy()), "shown")
        return op.Where(condition, *((shown, hidden) if mask.keeps else (hidden, shown)))


def read_masks(scores: Scores, layout: Layout, dtype: ir.DataType, graph: Facts) -> Masks:
    """Return what masks the scores.

    A near miss if a mask cannot be brought into a shape that Attention accepts, or if the result of a fully masked row
    would change.
    """
    score_axes, is_single = _score_axes(scores, layout), dtype == ir.DataType.FLOAT
    terms: list[Term] = []
    for mask in scores.masks:
        fills = MaskValues(np.array([mask.fill], dtype.numpy()))  # what a condition replaces scores by
        values = values_of(mask.value, graph) if mask.keeps is None else fills
        if not values.is_zero:
            steps = conversion(mask.axes, _target(mask, score_axes))
            terms.append(Term(mask, required(steps, "its mask needs a Reshape whose target is not constant"), values))
    _check_hidden_rows(terms, is_single)
    parts = {part for term in terms for part in flat(term.mask.axes)}
    rows, columns = (parts.issuperset(refined(axis)) for axis in score_axes[-2:])
    require(columns or not terms, "its mask is the same for all keys")
    rank = max((len(_target(term.mask, score_axes)) for term in terms), default=2)
    shrinks = False
    if is_single:  # in half precision no row consists of the lowest number alone
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


def _check_hidden_rows(terms: Sequence[Term], is_single: bool) -> None:
    """Refuse masks under which a fully masked row would weight its keys differently.

    In single precision one sum is rounded as before, but several are not: (s + m) + n and s + (m + n) differ by a unit
    in the last place of m + n. That is negligible up to 1e4, makes all scores equal from 1e9 on, and matters in
    between. In half precision this holds even for a single sum: whether s - 65504 is rounded differs between machines.
    """
    if is_single:
        is_coarse = len(terms) > 1 and any(term.values.is_coarse for term in terms)
        require(not is_coarse, _ANOTHER_ORDER)
        return
    masking = [term.values for term in terms if not term.values.is_bias]
    by_infinity = all(values.hides_by_infinity for values in masking)
    shows = by_infinity or (len(masking) == 1 and masking[0].shows_in_every_row)
    require(shows, "in half precision the result of a fully masked row would change")


def _score_axes(scores: Scores, layout: Layout) -> Axes:
    """Return the axes of the scores as [batch, heads, queries, keys]."""
    if len(scores.whole) == 4:
        return scores.whole
    batch, rows, columns = scores.whole
    if layout.heads is None:
        return [batch, [], rows, columns]
    front = regroup(refined(batch), (layout.batch, size(layout.heads)))
    return [*required(front, "the heads of its mask cannot be separated from the batch"), rows, columns]


def _target(mask: Mask, score_axes: Axes) -> Axes:
    """Return the axes a mask should have: those it varies over, with no more leading axes than it has already."""
    refusal = "its mask varies over only a part of an axis of the scores"
    target = required(restricted(score_axes, flat(mask.axes)), refusal)
    while len(target) > max(1, len(mask.axes)) and not target[0]:
        target.pop(0)
    return target
