"""The distribution of the numbers of one value, and the interval of it that 8-bit integers should represent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from sardonyx.ir.storage import Array

Method = Literal["weighted squares", "squares", "extremes", "percentile", "entropy"]
DEFAULT: Method = "weighted squares"

_BINS = 2048
_LEVELS = 255  # steps between the numbers of 8-bit integers
_CLIPPED = 16.0  # how many times errors of clipped numbers count: all have one sign, and data of use reaches further
_OUTSIDE = 1e-4  # the share of the numbers outside of the interval of percentiles
_SMALLEST_SHARE = 1e-12  # of a distribution, so that its logarithm is finite
_SHRUNK = 2.0 ** (-np.arange(25) / 4)  # the ends of a range that are tried, as shares of the extremes


class Histogram:
    """Counts of the numbers of one value in bins of equal width between its extremes."""

    def __init__(self, lowest: float, highest: float) -> None:
        """Count numbers in this interval, which contains 0."""
        self.lowest, self.highest = lowest, highest
        self.counts = np.zeros(_BINS, np.int64)
        self.zeros = 0  # which every scale represents exactly

    def add(self, values: Array) -> None:
        """Count the numbers of an array; those that are not finite are left out."""
        flat = values.reshape(-1)
        flat = flat[np.isfinite(flat)]
        self.zeros += flat.size - int(np.count_nonzero(flat))
        places = (flat - np.float32(self.lowest)) * np.float32(_BINS / (self.highest - self.lowest))
        self.counts += np.bincount(np.clip(places, 0, _BINS - 1).astype(np.int32), minlength=_BINS)

    @property
    def _centers(self) -> Array:
        return self.lowest + (np.arange(_BINS) + 0.5) * (self.highest - self.lowest) / _BINS

    def extremes(self) -> tuple[float, float]:
        """Return the least and the largest number."""
        return self.lowest, self.highest

    def percentile(self) -> tuple[float, float]:
        """Return the interval that has all numbers but one of ten thousand, half of these at each end."""
        shares = np.cumsum(self.counts) / max(1, int(self.counts.sum()))
        edges = self.lowest + np.arange(_BINS + 1) * (self.highest - self.lowest) / _BINS
        first, last = np.searchsorted(shares, (_OUTSIDE / 2, 1 - _OUTSIDE / 2))
        return self._with_zero(float(edges[first]), float(edges[min(last + 1, _BINS)]))

    def entropy(self) -> tuple[float, float]:
        """Return the interval whose 255 steps keep most of the distribution of the numbers that are not zero.

        Numbers outside of it count at its ends. The divergence of the distribution that the steps can hold from this
        one is the least.
        """
        counts = self.counts.astype(np.float64)
        counts[int(np.clip(-self.lowest * _BINS / (self.highest - self.lowest), 0, _BINS - 1))] -= self.zeros
        divergences = [self._divergence(np.maximum(counts, 0), share) for share in _SHRUNK]
        share = float(_SHRUNK[int(np.argmin(divergences))])
        return self.lowest * share, self.highest * share

    def _divergence(self, counts: Array, share: float) -> float:
        inside = np.flatnonzero((self._centers >= self.lowest * share) & (self._centers <= self.highest * share))
        if not len(inside):
            return np.inf
        first, last = int(inside[0]), int(inside[-1]) + 1
        clipped = counts[first:last].copy()
        held = clipped > 0
        clipped[0] += counts[:first].sum()
        clipped[-1] += counts[last:].sum()
        if not held.any():
            return np.inf
        step: Array = np.arange(last - first) * _LEVELS // (last - first)
        sums, occupied = np.bincount(step, counts[first:last]), np.bincount(step, held)
        represented = np.where(held, (sums / np.maximum(occupied, 1))[step], 0)
        p, q = clipped / clipped.sum(), represented / represented.sum()
        both = p > 0
        return float((p[both] * np.log(p[both] / np.maximum(q[both], _SMALLEST_SHARE))).sum())

    def _with_zero(self, low: float, high: float) -> tuple[float, float]:
        low, high = min(low, 0.0), max(high, 0.0)
        return (low, high) if high > low else self.extremes()

    def least_squares(self, clipped: float = _CLIPPED) -> tuple[float, float]:
        """Return the interval whose 255 steps represent the numbers with the least squared error.

        With step s = (b - a) / 255, numbers inside of [a, b] have the error s² / 12 on average, zeros none, and numbers
        outside of it their squared distance from it, which counts `clipped` times.
        """
        centers = self._centers
        lows, highs = self.lowest * _SHRUNK, self.highest * _SHRUNK
        below = np.array([(self.counts * np.minimum(centers - low, 0) ** 2).sum() for low in np.unique(lows)])
        above = np.array([(self.counts * np.maximum(centers - high, 0) ** 2).sum() for high in np.unique(highs)])
        lows, highs = np.unique(lows), np.unique(highs)
        inside = int(self.counts.sum()) - self.zeros
        steps = (highs[None, :] - lows[:, None]) / _LEVELS
        errors = clipped * (below[:, None] + above[None, :]) + inside * steps**2 / 12
        errors[steps <= 0] = np.inf
        low, high = np.unravel_index(int(errors.argmin()), errors.shape)
        return float(lows[low]), float(highs[high])


def _plain_squares(histogram: Histogram) -> tuple[float, float]:
    return histogram.least_squares(1.0)


METHODS: Mapping[Method, Callable[[Histogram], tuple[float, float]]] = {
    DEFAULT: Histogram.least_squares,
    "squares": _plain_squares,
    "extremes": Histogram.extremes,
    "percentile": Histogram.percentile,
    "entropy": Histogram.entropy,
}
