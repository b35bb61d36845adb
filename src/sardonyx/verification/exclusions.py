"""Differences that are no error: the order of equal scores, padding that attends to no key, rounding errors.

A decoder padded on the left has queries before the first real token: the causal mask hides all later keys and the
attention mask all earlier ones. Kernels return zeros, a mean, or NaN for such a row. A position is left out of the
comparison if all of these hold:

- a mask among the inputs hides it,
- the live module's output there depends on rows that attend to no key: it changes when these rows hold other numbers,
- no position that the mask keeps changes with them, in the same output.

An output without positions may be pooled at such a position: a text encoder that pools at the end token pools at the
first position where there is none. There the same holds with "item of the batch" in place of "position": the mask
hides a position of every item that changes.

Only the live module and the inputs decide this, not the graph under test, so that no error in the graph can exclude a
position.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.inputs.values import hides
from sardonyx.ir.ops import CASTS, KEEPS_ORDER
from sardonyx.records.run import Accuracy
from sardonyx.runtime import Array, Choice, Feeds, Value
from sardonyx.runtime.observe import Observed
from sardonyx.verification.tolerance import as_parts, beyond_rounding

if TYPE_CHECKING:
    from sardonyx.frontend.tracing.engine import TorchEngine

_CHOOSES = {"TopK": (1, -1), "ArgMax": (0, 0), "ArgMin": (0, 0)}  # which output holds indices, and the default axis
_MOVES = KEEPS_ORDER | CASTS  # indices are compared in their stored order


class Ties(Struct, frozen=True):
    """What was chosen by score in one trial; evaluated only if outputs differ."""

    reference: Callable[[], Sequence[Choice]] = tuple  # choices of the reference
    candidate: Callable[[], Sequence[Choice]] = tuple  # choices of the other model
    shuffled: Callable[[], Sequence[Sequence[Value]]] = tuple  # the reference's outputs, equal scores in other orders

    def same_score(self, expected: Array, result: Array) -> Array | None:
        """Return where two tensors of indices have equal scores in the reference.

        Return None if the reference did not choose `expected`, and False everywhere if the other model chose by other
        scores. All choices with these indices must agree, because it is not known which of them an output comes from.
        """
        choices, others = _of(expected, self.reference()), _of(result, self.candidate())
        if not choices:
            return None
        if others and not any(_same_scores(one, other) for one in choices for other in others):
            return np.zeros(expected.shape, bool)
        return np.logical_and.reduce([_tied(choice, result).reshape(expected.shape) for choice in choices])

    def moved(self, expected: Array, index: int) -> Array:
        """Return which elements of an output change with the order of equal scores."""
        moved = np.zeros(expected.shape, bool)
        for outputs in self.shuffled():
            other = outputs[index]
            if isinstance(other, np.ndarray) and other.shape == expected.shape:
                moved |= beyond_rounding(expected, other)
        return moved


def _of(indices: Array, choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices with exactly these indices."""
    return [choice for choice in choices if np.array_equal(choice.indices.ravel(), indices.ravel())]


def _same_scores(one: Choice, other: Choice) -> bool:
    """Return whether two choices were made by the same scores, up to the rounding error of a deep model."""
    if one.scores.shape != other.scores.shape or one.scores.dtype != other.scores.dtype:
        return False
    known = ~np.isnan(one.scores).all(axis=one.axis, keepdims=True)
    return not (known & beyond_rounding(one.scores, other.scores, Accuracy.APPROXIMATES)).any()


def _tied(choice: Choice, result: Array) -> Array:
    """Return where the indices of a result have the scores of the chosen ones, are in range and were chosen once."""
    scores, axis, indices = choice
    result = result.reshape(indices.shape)
    in_range = (result >= 0) & (result < scores.shape[axis])
    twice = np.asarray(np.diff(np.sort(result, axis=axis), axis=axis) == 0).any(axis=axis, keepdims=True)
    valid = np.where(in_range, result, 0).astype(np.int64)
    expected_scores = np.take_along_axis(scores, indices.astype(np.int64), axis)
    result_scores = np.take_along_axis(scores, valid, axis)
    return np.asarray(~beyond_rounding(expected_scores, result_scores) & in_range & ~twice)


class ScoredGraph(Struct, frozen=True):
    """A copy of a graph that also outputs the scores by which its index outputs were chosen."""

    observed: Observed
    axes: tuple[int, ...]  # the axis of each choice

    @property
    def model(self) -> ir.Model:
        """The copy."""
        return self.observed.model

    def choices(self, values: Sequence[Value]) -> list[Choice]:
        """Return the choices from the outputs of the copy."""
        added = [value for value in self.observed.split(values)[1] if isinstance(value, np.ndarray)]
        choices: list[Choice] = []
        for axis, scores, indices in zip(self.axes, added[::2], added[1::2], strict=True):
            aligned = indices if indices.ndim == scores.ndim else np.expand_dims(indices, axis)
            choices.append(Choice(scores, axis, aligned))
        return choices


def with_scores(model: ir.Model) -> ScoredGraph | None:
    """Return a copy that outputs scores, or None if no output of the graph holds indices that it chose."""
    observed = Observed(model.clone())
    chosen = [choice for output in observed.model.graph.outputs if (choice := _chosen(output)) is not None]
    axes: list[int] = []
    for node, indices in dict.fromkeys(chosen):
        axis = node.attributes.get("axis")
        axes.append(axis.as_int() if axis is not None else _CHOOSES[node.op_type][1])
        for value in (node.inputs[0], indices):  # through Identity: they may be inputs or outputs of the graph already
            if value is not None:
                observed.add(observed.compute("Identity", value))
    return ScoredGraph(observed, tuple(axes)) if chosen else None


def _chosen(output: ir.Value) -> tuple[ir.Node, ir.Value] | None:
    """Return the operator that chose the indices of an output, and its output with them; None if there is none."""
    value: ir.Value | None = output
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in _CHOOSES:
            return (node, value) if value.index() == _CHOOSES[node.op_type][0] else None
        value = node.inputs[0] if node.op_type in _MOVES else None
    return None


class Padding(Struct, frozen=True):
    """The positions of one output that are not compared."""

    where: Array  # True there; of the output's rank, with size 1 on the axes that are neither batch nor sequence
    pooled: bool = False  # items of the batch, in an output that has no positions

    @property
    def count(self) -> int:
        """The number of positions left out."""
        return int(np.count_nonzero(self.where))

    def without(self, array: Array) -> Array:
        """Return the output with zeros at these positions."""
        return np.where(self.where, array.dtype.type(0), array)


def hidden_positions(masks: Iterable[Value]) -> list[Array]:
    """Return for each mask of shape (batch, sequence) where it hides a position; masks that hide none are left out.

    A boolean mask may hide a position where it is False or where it is True; the conditions above decide which.
    """
    arrays = [mask for mask in masks if isinstance(mask, np.ndarray) and mask.ndim == 2]
    ways = [(mask, inverted) for mask in arrays for inverted in (False, True) if mask.dtype.kind == "b" or not inverted]
    return [hidden for mask, inverted in ways if (hidden := hides(mask, inverted=inverted)).any()]


def keyless_padding(
    outputs: Sequence[Value], disturbed: Sequence[Value], hidden: Sequence[Array], lengths: Iterable[int]
) -> list[Padding | None]:
    """Return per output the positions that are padding and attend to no key; None for outputs without any.

    The `disturbed` outputs were computed with other numbers in the rows that attend to no key, `hidden` says which
    positions the masks hide, and `lengths` are the numbers of queries and keys of the attentions.
    """
    sizes = frozenset(lengths)
    return [_padding(a, b, hidden, sizes) for a, b in zip(outputs, disturbed, strict=True)]


def _padding(a: Value, b: Value, hidden: Sequence[Array], lengths: frozenset[int]) -> Padding | None:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape:
        return None
    moved = beyond_rounding(a, b)
    if not moved.any():
        return None
    found = (where for mask in hidden for way in (_placed, _flattened) for where in way(moved, mask, lengths))
    items = (Padding(where, pooled=True) for mask in hidden for where in _pooled(moved, mask, lengths))
    return next(map(Padding, found), None) or min(items, key=lambda item: item.count, default=None)


def _placed(moved: Array, hidden: Array, lengths: frozenset[int]) -> Iterator[Array]:
    """Yield the changed positions for each pair of axes that may be batch and sequence, if the mask hides them all."""
    for batch, sequence in itertools.permutations(range(moved.ndim), 2):
        items, length = moved.shape[batch], moved.shape[sequence]
        if items != hidden.shape[0] or (moved.ndim == 2 and length not in lengths):  # a number for each class
            continue
        rest = tuple(axis for axis in range(moved.ndim) if axis not in (batch, sequence))
        where = np.asarray(moved.any(axis=rest, keepdims=True))
        positions = where.reshape(items, length) if batch < sequence else where.reshape(length, items).T
        if any(not (positions & ~window).any() for window in _windows(hidden, length, lengths)):
            yield where


def _flattened(moved: Array, hidden: Array, lengths: frozenset[int]) -> Iterator[Array]:
    """Yield the changed positions for each axis that may be batch times sequence, if the mask hides them all.

    The router of a mixture of experts returns its scores in the shape (batch · sequence, experts).
    """
    items = len(hidden)
    for axis, size in enumerate(moved.shape):
        rest = tuple(other for other in range(moved.ndim) if other != axis)
        where = np.asarray(moved.any(axis=rest, keepdims=True))
        for length in lengths | {hidden.shape[1]} if rest and items else ():
            if size == items * length:
                windows = [window for mask in _windows(hidden, length, lengths) for window in (mask, mask.T)]
                if any(not (where.reshape(window.shape) & ~window).any() for window in windows):
                    yield where


def _pooled(moved: Array, hidden: Array, lengths: frozenset[int]) -> Iterator[Array]:
    """Yield the changed items for each axis that may be the batch, if the mask hides positions of all of them.

    An output with an axis as long as a sequence may have positions, and has no pooled items.
    """
    padded = np.asarray(hidden.any(axis=1))
    for batch, items in enumerate(moved.shape):
        rest = tuple(axis for axis in range(moved.ndim) if axis != batch)
        if items != len(padded) or any(moved.shape[axis] in (*lengths, hidden.shape[1]) for axis in rest):
            continue
        where = np.asarray(moved.any(axis=rest, keepdims=True))
        if not (where.reshape(items) & ~padded).any():
            yield where


def _windows(hidden: Array, length: int, lengths: frozenset[int]) -> Iterator[Array]:
    """Yield windows of `length` positions of a mask: its last ones (after a past), or the last ones up to a key count.

    A mask that is longer than the keys counts from its start.
    """
    for end in sorted(lengths | {hidden.shape[1]}, reverse=True):
        if length <= end <= hidden.shape[1]:
            yield hidden[:, end - length : end]


_TIE_ORDERS = 4  # of equal scores


def shuffled(live: TorchEngine, feeds: Feeds) -> list[list[Value]]:
    """Return a module's outputs for several orders of equal scores; nothing if it chooses nothing by score."""
    runs = (live.run_shuffled(feeds, sample) for sample in range(_TIE_ORDERS))
    return [outputs for outputs in itertools.takewhile(bool, runs) if outputs is not None]


_AS_CLOSE_FACTOR = 4.0  # times the error of the reference: roundings differ by chance, in a loop all in one direction


def is_as_close(exact: tuple[Array, Array], reference: Array, result: Array) -> bool:
    """Return whether a result is about as far from its value in double precision as the reference from its own."""
    own, other = (as_parts(array).astype(np.float64) for array in (reference, result))
    right, right_other = map(as_parts, exact)
    finite = np.isfinite(own)
    if not np.array_equal(finite, np.isfinite(other)) or not right.shape == right_other.shape == own.shape:
        return False
    finite &= np.isfinite(right) & np.isfinite(right_other)
    errors = [np.abs(own - right)[finite], np.abs(other - right_other)[finite]]
    rms = [float(np.sqrt(np.mean(np.square(each)))) if each.size else 0.0 for each in errors]
    largest = [float(np.max(each, initial=0.0)) for each in errors]  # a Sigmoid has the same error near 0 as near 1
    return any(far <= _AS_CLOSE_FACTOR * near for near, far in (rms, largest))


_NEARBY_INPUTS = 4  # inputs


def nearby(feeds: Feeds) -> Iterator[dict[str, Value]]:
    """Yield inputs in which each float is the next larger or smaller one, or itself; nothing if no input has floats."""
    floats = [name for name, value in feeds.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    rng = np.random.default_rng(0)
    for _ in range(_NEARBY_INPUTS if floats else 0):
        changed = dict(feeds)
        for name in floats:
            value = np.asarray(feeds[name])
            toward = rng.choice(np.array([-np.inf, np.inf, np.nan], value.dtype), value.shape)
            stays = np.isnan(toward) | ~np.isfinite(value)
            changed[name] = np.where(stays, value, np.nextafter(value, toward))
        yield changed
