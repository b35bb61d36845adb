"""Positions in a tensor as digits in mixed radix, which views and Transposes only split, merge and permute.

A result of a sequence of views and Transposes is a list of factors (size, stride), slowest digit first: the element at
the position with digits d_1, …, d_n is the source element at d_1 * stride_1 + … + d_n * stride_n. This is symbolic and
needs no element numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct


class Factor(Struct, frozen=True):
    """A digit of the position: its number of values, and the distance in the source of one step."""

    size: int
    stride: int


def in_source(factors: Sequence[Factor]) -> list[Factor]:
    """Return the factors in the order of the source."""
    return sorted(factors, key=lambda factor: -factor.stride)


def split(factors: Sequence[Factor], shape: Sequence[int], *, by_source: bool = False) -> list[Factor] | None:
    """Split factors at the borders of the dims of a shape, or return None if a border does not divide a factor.

    With `by_source` the shape is that of the source, otherwise that of the result.
    """
    begins = {math.prod(shape[axis:]) for axis in range(len(shape))}
    parts: dict[Factor, list[Factor]] = {}
    below = 1
    for factor in reversed(in_source(factors) if by_source else factors):
        inner = sorted(begin for begin in begins if below < begin < below * factor.size)
        cuts = [below, *inner, below * factor.size]
        if any(high % low for low, high in pairwise(cuts)):
            return None
        pieces = [Factor(high // low, factor.stride * (low // below)) for low, high in pairwise(cuts)]
        parts[factor] = pieces[::-1]
        below *= factor.size
    return [piece for factor in factors for piece in parts[factor]]


def permuted(factors: Sequence[Factor], shape: Sequence[int], perm: Sequence[int]) -> list[Factor] | None:
    """Return the factors after a Transpose of a tensor of that shape, or None if a dim splits a factor unevenly."""
    pieces = split(factors, shape)
    if pieces is None:
        return None
    groups: list[list[Factor]] = []
    remaining = iter(pieces)
    for dim in shape:
        group: list[Factor] = []
        while math.prod(factor.size for factor in group) < dim:
            group.append(next(remaining))
        groups.append(group)
    return merged([factor for axis in perm for factor in groups[axis]])


def merged(factors: Sequence[Factor]) -> list[Factor]:
    """Merge neighbouring factors that together are one digit: (m, n * s), (n, s) is (m * n, s)."""
    result: list[Factor] = []
    for factor in factors:
        if result and result[-1].stride == factor.stride * factor.size:
            result[-1] = Factor(result[-1].size * factor.size, factor.stride)
        else:
            result.append(factor)
    return result


def fits(factors: Sequence[Factor], shape: Sequence[int], *, by_source: bool = False) -> bool:
    """Return whether every dim of a shape other than 1 is exactly one factor."""
    order = in_source(factors) if by_source else factors
    return [factor.size for factor in order] == [dim for dim in shape if dim != 1]


def factors_of(origin: np.ndarray, unit: int) -> list[Factor] | None:
    """Return the factors of a movement given by element numbers, or None if it does not only permute digits."""
    remaining, factors = origin, [Factor(unit, 1)] if unit > 1 else list[Factor]()
    if remaining[0] != 0:
        return None
    while remaining.size > 1:
        stride = int(remaining[1] - remaining[0])
        breaks = np.flatnonzero(np.diff(remaining) != stride)
        length = int(breaks[0]) + 1 if breaks.size else remaining.size
        if (
            remaining.size % length
            or (remaining.reshape(-1, length) != remaining[::length, None] + stride * np.arange(length)).any()
        ):
            return None
        factors.insert(0, Factor(length, stride * unit))
        remaining = remaining[::length]
    expected = 1
    for factor in reversed(in_source(factors)):
        if factor.stride != expected:
            return None
        expected *= factor.size
    return merged(factors)


def numbered(factors: Sequence[Factor], unit: int) -> np.ndarray:
    """Return which unit of the source each unit of the result is; the last factor consists of whole units."""
    origin = np.zeros(1, np.int64)
    for factor in factors:
        if factor is factors[-1] and factor.stride == 1:
            factor = Factor(factor.size // unit, unit)
        origin = (origin[:, None] + np.arange(factor.size) * (factor.stride // unit)).reshape(-1)
    return origin
