"""Positions in a tensor as digits: views and Transposes only split, merge and exchange them.

A factor is one digit of the position in the result, with the distance in the source that one step of it makes. So what
a row of views and Transposes does is a list of factors, slowest digit first, and costs nothing to work out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True, slots=True)
class Factor:
    """A digit of the position: how many values it has, and how far a step of it goes in the source."""

    size: int
    stride: int


def in_source(factors: Sequence[Factor]) -> list[Factor]:
    """The factors in the order the source has them."""
    return sorted(factors, key=lambda factor: -factor.stride)


def split(factors: Sequence[Factor], shape: Sequence[int], *, by_source: bool = False) -> list[Factor] | None:
    """The factors, split where a dim of a shape begins inside one; None where a dim begins between its values."""
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
    """The factors after a Transpose of a tensor with that shape."""
    pieces = split(factors, shape)
    if pieces is None:
        return None
    groups: list[list[Factor]] = []
    left = iter(pieces)
    for dim in shape:
        group: list[Factor] = []
        while math.prod(factor.size for factor in group) < dim:
            group.append(next(left))
        groups.append(group)
    return merged([factor for axis in perm for factor in groups[axis]])


def merged(factors: Sequence[Factor]) -> list[Factor]:
    """The factors, neighbours that make one digit taken together."""
    found: list[Factor] = []
    for factor in factors:
        if found and found[-1].stride == factor.stride * factor.size:
            found[-1] = Factor(found[-1].size * factor.size, factor.stride)
        else:
            found.append(factor)
    return found


def fits(factors: Sequence[Factor], shape: Sequence[int], *, by_source: bool = False) -> bool:
    """Whether every dim of a shape that is not 1 is one factor."""
    order = in_source(factors) if by_source else factors
    return [factor.size for factor in order] == [dim for dim in shape if dim != 1]


def found_in(origin: np.ndarray, unit: int) -> list[Factor] | None:
    """The factors of a movement given by numbers, where it exchanges digits and no more."""
    left, found = origin, [Factor(unit, 1)] if unit > 1 else list[Factor]()
    if left[0] != 0:
        return None
    while left.size > 1:
        stride = int(left[1] - left[0])
        breaks = np.flatnonzero(np.diff(left) != stride)
        length = int(breaks[0]) + 1 if breaks.size else left.size
        if left.size % length or (left.reshape(-1, length) != left[::length, None] + stride * np.arange(length)).any():
            return None
        found.insert(0, Factor(length, stride * unit))
        left = left[::length]
    expected = 1
    for factor in reversed(in_source(found)):
        if factor.stride != expected:
            return None
        expected *= factor.size
    return merged(found)


def numbered(factors: Sequence[Factor], unit: int) -> np.ndarray:
    """Which unit of the source each unit of the result is; the last factor holds whole units."""
    origin = np.zeros(1, np.int64)
    for factor in factors:
        if factor is factors[-1] and factor.stride == 1:
            factor = Factor(factor.size // unit, unit)
        origin = (origin[:, None] + np.arange(factor.size) * (factor.stride // unit)).reshape(-1)
    return origin
