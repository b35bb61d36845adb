"""Masks: which positions are kept, padded on either side or full of holes, and what hides the others.

The items of one batch are padded in different ways, so that one trial sees them all. A whole row is hidden only where
the plan says so: there models answer with NaN, zeros or a mean, and only such rows tell -1e4, the lowest number and
-inf apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from sardonyx.runtime import Array

HIDING = -1e3  # a number added to a score hides it when it is no greater


class Pattern(StrEnum):
    """How the rows of one item are masked."""

    FULL = "all kept"
    RIGHT = "padded on the right"
    LEFT = "padded on the left"
    HOLES = "holes anywhere"
    HIDDEN = "rows hidden whole"


def kept(shape: tuple[int, ...], rng: np.random.Generator, patterns: Sequence[Pattern]) -> Array:
    """True where kept; each item follows the next pattern."""
    axis = _item_axis(shape)
    if axis is None:
        return _item(shape, rng, patterns[0])
    items = [_item(shape[axis + 1 :], rng, patterns[place % len(patterns)]) for place in range(shape[axis])]
    return np.stack(items).reshape(shape) if items else np.zeros(shape, bool)


def _item_axis(shape: tuple[int, ...]) -> int | None:
    """The axis that tells items apart: the first that has several, but for the last."""
    return next((axis for axis, size in enumerate(shape[:-1]) if size != 1), None)


def _item(shape: tuple[int, ...], rng: np.random.Generator, pattern: Pattern) -> Array:
    length = shape[-1]
    if pattern is Pattern.FULL:
        return np.ones(shape, bool)
    if pattern is Pattern.HOLES:
        mask = rng.random(shape) < 0.6
        if length:
            mask[..., int(rng.integers(0, length))] = True
        return np.asarray(mask)
    lengths = np.asarray(rng.integers(1, max(length, 2), shape[:-1]))  # something is padded, and something is not
    if pattern is Pattern.HIDDEN:
        lengths.reshape(-1)[::2] = 0
    position = np.arange(length)[::-1] if pattern is Pattern.LEFT else np.arange(length)
    return np.asarray(position < lengths[..., None])


def added(mask: Array, rng: np.random.Generator, lowest: float, *, biased: bool) -> Array:
    """A mask as numbers to add to scores: the lowest number, -inf or -1e4 where hidden, another one in each item."""
    fills, axis = np.array([lowest, -np.inf, -1e4]), _item_axis(mask.shape)
    items = np.arange(1 if axis is None else mask.shape[axis]) % fills.size
    fill = fills[items].reshape(-1, *[1] * (mask.ndim - 1 - (axis or 0)))
    bias = np.asarray(rng.standard_normal(mask.shape), np.float64) * float(biased)
    return np.where(mask, bias, fill)


def hides_whole_row(array: Array) -> bool:
    """Whether a mask, of either kind, keeps nothing of some row."""
    if not array.ndim or not array.size:
        return False
    real = array.dtype.kind not in "biu" and bool((array < 0).any())
    hidden = array <= HIDING if real else array == 0
    return bool(hidden.all(axis=-1).any())
