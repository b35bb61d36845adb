"""Which output positions are padding that sees no key, so that no number is right or wrong there.

A decoder that is padded on the left has queries before the first real token: the causal mask hides what comes after,
the attention mask what comes before. Kernels answer such a row with zeros, with a mean, or with NaN. A position is left
out of the comparison if all of this holds:

- the mask among the inputs hides it,
- what the live module answers there depends on rows that see no key: it answers otherwise when they hold other numbers,
- nothing that the mask keeps depends on them, in any position of the same output.

Only the live module and the inputs decide this. The graph that is judged takes no part, so that no fault of it can
remove a position.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.runtime import Array, Value
from sardonyx.verification.tolerance import beyond_rounding


@dataclass(frozen=True, slots=True)
class Padding:
    """The positions of one output that are not compared."""

    where: Array  # True there; of the output's rank, with size 1 on the axes that are neither batch nor sequence

    @property
    def count(self) -> int:
        """How many positions are left out."""
        return int(np.count_nonzero(self.where))

    @property
    def positions(self) -> int:
        """How many positions there are."""
        return self.where.size

    def without(self, array: Array) -> Array:
        """The output with zeros there."""
        return np.where(self.where, array.dtype.type(0), array)


def hidden_positions(masks: Iterable[Value]) -> list[Array]:
    """Per mask of one row an item: True where it hides a position; nothing for masks that keep everything."""
    arrays = [mask for mask in masks if isinstance(mask, np.ndarray) and mask.ndim == 2]
    return [hidden for mask in arrays if (hidden := np.asarray(mask == 0)).any()]


def unseeing(
    outputs: Sequence[Value], disturbed: Sequence[Value], hidden: Sequence[Array], lengths: Iterable[int]
) -> list[Padding | None]:
    """The positions of each output that are padding without a key to see; None for outputs that have none.

    Args:
        outputs: What the module answers.
        disturbed: What it answers with other numbers in the rows that see no key.
        hidden: Which positions the masks hide: batch by sequence.
        lengths: How many queries and keys the attentions have.
    """
    known = frozenset(lengths)
    return [_padding(a, b, hidden, known) for a, b in zip(outputs, disturbed, strict=True)]


def _padding(a: Value, b: Value, hidden: Sequence[Array], lengths: frozenset[int]) -> Padding | None:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape:
        return None
    moved = beyond_rounding(a, b)
    if not moved.any():
        return None
    return next((Padding(where) for mask in hidden for where in _placed(moved, mask, lengths)), None)


def _placed(moved: Array, hidden: Array, lengths: frozenset[int]) -> Iterator[Array]:
    """Positions that moved, for each pair of axes that can be batch and sequence if the mask hides all of them."""
    for batch, sequence in itertools.permutations(range(moved.ndim), 2):
        items, length = moved.shape[batch], moved.shape[sequence]
        if items != hidden.shape[0] or (moved.ndim == 2 and length not in lengths):  # a number for each class
            continue
        rest = tuple(axis for axis in range(moved.ndim) if axis not in (batch, sequence))
        where = np.asarray(moved.any(axis=rest, keepdims=True))
        positions = where.reshape(items, length) if batch < sequence else where.reshape(length, items).T
        if any(not (positions & ~those).any() for those in _last(hidden, length, lengths)):
            yield where


def _last(hidden: Array, length: int, lengths: frozenset[int]) -> Iterator[Array]:
    """The last positions of a mask: those after a past, or the window of a cache.

    Masks that are longer than the keys are read from their start.
    """
    for end in sorted(lengths | {hidden.shape[1]}, reverse=True):
        if length <= end <= hidden.shape[1]:
            yield hidden[:, end - length : end]
