"""Accept indices that differ only because the scores they were chosen by are equal.

TopK takes the lower index of two equal scores, but the other one is as good. Saturated scores are equal up to the last
digit, so that rounding decides. If all scores are NaN, as in a row that a mask hides entirely, every index is as good.
An index is wrong if the scores at the two indices differ by more than the tolerance, if it is out of range, or if it
was chosen twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.ops import CASTS, KEEPS_ORDER
from sardonyx.records.run import Accuracy
from sardonyx.runtime import Array, Choice, Value
from sardonyx.runtime.observe import Observed
from sardonyx.verification.tolerance import beyond_rounding

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
    return [
        choice
        for choice in choices
        if choice.indices.size == indices.size and np.array_equal(choice.indices.ravel(), indices.ravel())
    ]


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
