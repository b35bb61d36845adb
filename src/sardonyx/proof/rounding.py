"""How far a live module's answers are from what it would say with twice the digits.

Another program may add up a long sum in another order. What that may change is what rounding changed in the reference
itself: its distance from its own answer in double precision. A wrong graph cannot hide there, since only the module
takes part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from sardonyx.proof.tolerance import is_float
from sardonyx.runtime import Choice, Engine, Feeds, Value

_ORDERS = 4  # of equal scores


class LiveEngine(Engine, Protocol):
    """A module that can also compute in double precision, and otherwise where its answer is not defined."""

    def run_in_double(self, feeds: Feeds) -> list[Value] | None:
        """All outputs, computed in double precision; None where the module cannot."""
        ...

    def run_unattended(self, feeds: Feeds) -> tuple[list[Value], frozenset[int]] | None:
        """All outputs with other numbers in attention rows that see no key, and the lengths of these attentions.

        None if every row sees a key.
        """
        ...

    def choices(self, feeds: Feeds) -> list[Choice]:
        """The scores and indices of everything that the module chooses by score."""
        ...

    def run_shuffled(self, feeds: Feeds, sample: int) -> list[Value] | None:
        """All outputs with scores that are equal but for rounding in a random order; None if nothing is chosen."""
        ...


def shuffled(live: LiveEngine, feeds: Feeds) -> list[list[Value]]:
    """A module's outputs with scores that are equal but for rounding in other orders; nothing if it chooses nothing."""
    runs = (live.run_shuffled(feeds, sample) for sample in range(_ORDERS))
    return [outputs for outputs in itertools.takewhile(bool, runs) if outputs is not None]


def rounded_anew(clean: Sequence[Value], single: Sequence[Value], double: Sequence[Value] | None) -> list[Value]:
    """The graph's answers, moved by what rounding did to the module's."""
    if double is None or len(double) != len(single):
        return list(clean)
    return [_moved(*values) for values in zip(clean, single, double, strict=True)]


def _moved(clean: Value, single: Value, double: Value) -> Value:
    arrays = [value for value in (clean, single, double) if isinstance(value, np.ndarray)]
    if len(arrays) < 3 or not is_float(arrays[0].dtype) or len({array.shape for array in arrays}) > 1:
        return clean
    start, rounded, precise = (array.astype(np.float64) for array in arrays)
    return (start + (precise - rounded)).astype(arrays[0].dtype)
