"""Indices that differ because the scores they were chosen by are equal.

Of equal scores TopK takes the lower index, and any other is as good. Scores that saturate are equal up to the last
digit, so that rounding decides. An index is wrong if the scores at the two indices differ by more than the tolerance,
if it is out of range, or if it was chosen twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import CASTS, KEEPS_ORDER
from sardonyx.records.run import Accuracy
from sardonyx.runtime import Array, Choice, Value
from sardonyx.verification.tolerance import beyond_rounding

_CHOOSES = {"TopK": (1, -1), "ArgMax": (0, 0), "ArgMin": (0, 0)}  # which output holds indices, and the default axis
_MOVES = KEEPS_ORDER | CASTS  # indices are compared in the order that they are stored in


@dataclass(frozen=True, slots=True)
class Ties:
    """What was chosen by score in one trial; all of it is asked for only where outputs differ."""

    expected: Callable[[], Sequence[Choice]] = tuple  # by the reference
    found: Callable[[], Sequence[Choice]] = tuple  # by the other model
    shuffled: Callable[[], Sequence[Sequence[Value]]] = tuple  # the reference's outputs, equal scores in other orders

    def same_score(self, expected: Array, found: Array) -> Array | None:
        """Where two tensors of indices have the same score in the reference; None if it did not choose the first.

        Nowhere if the other model chose by other scores. Every choice that has just these indices must agree: which of
        them an output comes from is not known.
        """
        choices, others = _of(expected, self.expected()), _of(found, self.found())
        if not choices:
            return None
        if others and not any(_alike(one, other) for one in choices for other in others):
            return np.zeros(expected.shape, bool)
        return np.logical_and.reduce([_tied(one, found).reshape(expected.shape) for one in choices])

    def moved(self, expected: Array, index: int) -> Array:
        """Which elements of an output the order of equal scores changes."""
        moved = np.zeros(expected.shape, bool)
        for outputs in self.shuffled():
            other = outputs[index]
            if isinstance(other, np.ndarray) and other.shape == expected.shape:
                moved |= beyond_rounding(expected, other)
        return moved


def _of(indices: Array, choices: Sequence[Choice]) -> list[Choice]:
    """The choices that have just these indices."""
    return [
        each
        for each in choices
        if each.indices.size == indices.size and np.array_equal(each.indices.ravel(), indices.ravel())
    ]


def _alike(one: Choice, other: Choice) -> bool:
    """Whether two choices were made by the same scores, up to the noise of a deep model."""
    if one.scores.shape != other.scores.shape or one.scores.dtype != other.scores.dtype:
        return False
    return not beyond_rounding(one.scores, other.scores, Accuracy.APPROXIMATES).any()


def _tied(choice: Choice, found: Array) -> Array:
    scores, axis, indices = choice
    found = found.reshape(indices.shape)
    known = (found >= 0) & (found < scores.shape[axis])
    twice = np.asarray(np.diff(np.sort(found, axis=axis), axis=axis) == 0).any(axis=axis, keepdims=True)
    places = np.where(known, found, 0).astype(np.int64)
    one, other = (np.take_along_axis(scores, each, axis) for each in (indices.astype(np.int64), places))
    return np.asarray(~beyond_rounding(one, other) & known & ~twice)


@dataclass(frozen=True, slots=True)
class ScoredGraph:
    """A copy of a graph that also gives out what its index outputs were chosen by."""

    model: ir.Model
    axes: tuple[int, ...]  # of each choice
    outputs: int  # how many outputs the graph itself has

    def choices(self, values: Sequence[Value]) -> list[Choice]:
        """The choices, from what the copy answers."""
        added = [value for value in values[self.outputs :] if isinstance(value, np.ndarray)]
        found: list[Choice] = []
        for axis, scores, indices in zip(self.axes, added[::2], added[1::2], strict=True):
            placed = indices if indices.ndim == scores.ndim else np.expand_dims(indices, axis)
            found.append(Choice(scores, axis, placed))
        return found


def with_scores(model: ir.Model) -> ScoredGraph | None:
    """The copy; None if no output of the graph is an index that it chose."""
    copy = model.clone()
    chosen = [found for output in copy.graph.outputs if (found := _chosen(output)) is not None]
    if not chosen:
        return None
    count, axes = len(copy.graph.outputs), list[int]()
    for node, indices in dict.fromkeys(chosen):
        axis = node.attributes.get("axis")
        axes.append(axis.as_int() if axis is not None else _CHOOSES[node.op_type][1])
        for value in (node.inputs[0], indices):  # a copy: they may be inputs or outputs of the graph already
            given_out = ir.node("Identity", [value])
            given_out.outputs[0].name = f"sardonyx.choice.{len(copy.graph.outputs)}"
            copy.graph.append(given_out)
            copy.graph.outputs.append(given_out.outputs[0])
    return ScoredGraph(copy, tuple(axes), count)


def _chosen(output: ir.Value) -> tuple[ir.Node, ir.Value] | None:
    """The operator that chose the indices of an output, and the indices as they leave it."""
    value: ir.Value | None = output
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in _CHOOSES:
            return (node, value) if value.index() == _CHOOSES[node.op_type][0] else None
        value = node.inputs[0] if node.op_type in _MOVES else None
    return None
