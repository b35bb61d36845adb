"""How far the elements of one output lie from the reference over many trials: a distribution, not only its worst.

The largest, the mean and the counts are of all elements; the quantiles and the histogram of a large output are of an
even selection of them.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from sardonyx.proof.tolerance import epsilon, float_difference, is_float, ulp_distance
from sardonyx.runtime import Array, Value

MOST_KEPT = 50_000  # elements of one trial
EQUAL = None  # the bin of the histogram for elements that are the same
_MEASURES: tuple[str, ...] = ("abs", "rel", "ulp", "scaled")


class Distances:
    """All distances seen at one output."""

    def __init__(self) -> None:
        self.dtype = ""
        self.trials = self.equal_trials = self.elements = self.equal = 0
        self.pattern: str | None = None  # why a trial is wrong whatever the tolerance
        self._eps = 0.0
        self._kept: dict[str, list[Array]] = {name: [] for name in _MEASURES}
        self._most = dict.fromkeys(_MEASURES, 0.0)
        self._sum = dict.fromkeys(_MEASURES, 0.0)
        self._counted = dict.fromkeys(_MEASURES, 0)
        self._bins: Counter[int | None] = Counter()

    def see(self, reference: Value, result: Value) -> None:
        """One trial: a tensor, or a sequence of them. What is empty tells nothing."""
        if isinstance(reference, list) and isinstance(result, list):
            for one, other in zip(reference, result, strict=False):
                self.see(one, other)
        elif isinstance(reference, np.ndarray) and isinstance(result, np.ndarray) and reference.size:
            self._see_tensor(reference, result)

    def _see_tensor(self, reference: Array, result: Array) -> None:
        self.dtype = reference.dtype.name
        self.trials += 1
        if reference.shape != result.shape or reference.dtype != result.dtype:
            self.pattern = "another type or shape"
            return
        same = _same(reference, result)
        self.elements += same.size
        self.equal += int(np.count_nonzero(same))
        self.equal_trials += bool(same.all())
        if is_float(reference.dtype):
            self._see_floats(reference, result)

    def _see_floats(self, reference: Array, result: Array) -> None:
        whole = float_difference(reference, result)
        self.pattern = self.pattern or whole.pattern
        self._eps = epsilon(reference.dtype)
        a, b = reference.astype(np.float64).reshape(-1), result.astype(np.float64).reshape(-1)
        finite = np.isfinite(a) & np.isfinite(b)
        ulp, a, b = ulp_distance(reference, result).reshape(-1)[finite], a[finite], b[finite]
        error, size = np.abs(a - b), np.abs(a)
        told = size > 0  # nothing is relative to zero
        scaled = np.divide(error, size + whole.scale, out=np.zeros_like(error), where=error > 0)
        found = {"abs": error, "rel": error[told] / size[told], "ulp": ulp, "scaled": scaled}
        for name, values in found.items():
            self._take(name, values[np.isfinite(values)])

    def _take(self, name: str, values: Array) -> None:
        if not values.size:
            return
        self._most[name] = max(self._most[name], float(values.max()))
        self._sum[name] += float(values.sum())
        self._counted[name] += values.size
        kept = values[:: math.ceil(values.size / MOST_KEPT)]
        self._kept[name].append(kept)
        if name == "scaled":
            apart = kept[kept > 0]
            bins = np.ceil(np.log2(apart / self._eps)).astype(int)
            self._bins.update(bins.tolist())
            self._bins[EQUAL] += kept.size - apart.size

    def told(self) -> dict[str, Any]:
        """As the answer of a cell."""
        return {
            "dtype": self.dtype,
            "trials": self.trials,
            "equal_trials": self.equal_trials,
            "elements": self.elements,
            "equal": self.equal,
            "pattern": self.pattern,
            "eps": self._eps or None,
            **{name: self._summary(name) for name in _MEASURES},
            "histogram": [[edge, self._bins[edge]] for edge in sorted(self._bins, key=_order)],
        }

    def _summary(self, name: str) -> dict[str, float] | None:
        if not self._kept[name]:
            return None
        middle, high = (float(each) for each in np.quantile(np.concatenate(self._kept[name]), (0.5, 0.99)))
        mean = self._sum[name] / self._counted[name]
        return {"max": self._most[name], "mean": mean, "p50": middle, "p99": high}


def _same(one: Array, other: Array) -> Array:
    """Which elements are equal; NaN is itself."""
    equal = np.asarray(one == other)
    if is_float(one.dtype):
        equal = equal | (np.isnan(one.astype(np.float64)) & np.isnan(other.astype(np.float64)))
    return equal


def _order(edge: int | None) -> float:
    return -math.inf if edge is None else edge
