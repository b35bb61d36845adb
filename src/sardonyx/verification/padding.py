"""Find output positions that are padding and attend to no key, where the result of attention is undefined.

A decoder padded on the left has queries before the first real token: the causal mask hides all later keys and the
attention mask all earlier ones. Kernels return zeros, a mean, or NaN for such a row. A position is left out of the
comparison if all of these hold:

- a mask among the inputs hides it,
- the live module's output there depends on rows that attend to no key: it changes when these rows hold other numbers,
- no position that the mask keeps changes with them, in the same output.

An output without positions may be pooled at such a position: a text encoder that pools at the end token pools at the
first position where there is none. There the same holds with "item of the batch" in place of "position": the mask hides
a position of every item that changes.

Only the live module and the inputs decide this, not the graph under test, so that no error in the graph can exclude a
position.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from sardonyx.inputs.values import hides
from sardonyx.runtime import Array, Value
from sardonyx.verification.tolerance import beyond_rounding


class Padding(Struct, frozen=True):
    """The positions of one output that are not compared."""

    where: Array  # True there; of the output's rank, with size 1 on the axes that are neither batch nor sequence
    pooled: bool = False  # items of the batch, in an output that has no positions

    @property
    def count(self) -> int:
        """The number of positions left out."""
        return int(np.count_nonzero(self.where))

    @property
    def positions(self) -> int:
        """The number of all positions."""
        return self.where.size

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

    Args:
        outputs: The outputs of the module.
        disturbed: Its outputs with other numbers in the rows that attend to no key.
        hidden: Which positions the masks hide, each of shape (batch, sequence).
        lengths: The numbers of queries and keys of the attentions.
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
    places = map(Padding, found)
    items = (Padding(where, pooled=True) for mask in hidden for where in _pooled(moved, mask, lengths))
    return next(places, None) or min(items, key=lambda item: item.count, default=None)


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
