"""Whether two models that are timed against each other answer alike: a loose look, since `verify` is the proof.

A benchmark of models that compute different things misleads, and nothing in its numbers shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.runtime import Array, Value

LOOSE = 0.05  # of the largest number of an output: what lower precision and other kernels do stays far below it


def difference(ours: Sequence[Value], theirs: Sequence[Value]) -> str | None:
    """How the answers differ in one line, where they clearly do."""
    if len(ours) != len(theirs):
        return f"it has {len(ours)} outputs, the first file has {len(theirs)}"
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True), 1):
        found = _of_values(mine, other)
        if found is not None:
            return f"output {index} {found}"
    return None


def _of_values(mine: Value, other: Value) -> str | None:
    if isinstance(mine, np.ndarray) and isinstance(other, np.ndarray):
        return _of_arrays(mine, other)
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        return next((found for pair in zip(mine, other, strict=True) if (found := _of_values(*pair))), None)
    return None if type(mine) is type(other) and not isinstance(mine, list) else "is of another kind"


def _of_arrays(mine: Array, other: Array) -> str | None:
    if mine.shape != other.shape:
        return f"has the shape {list(mine.shape)}, not {list(other.shape)}"
    if mine.dtype.kind not in "fiu" or other.dtype.kind not in "fiu":
        return None if mine.dtype.kind == other.dtype.kind else f"is {mine.dtype}, not {other.dtype}"
    ours, theirs = mine.astype(np.float64), other.astype(np.float64)
    known = np.isfinite(theirs)
    if not np.array_equal(known, np.isfinite(ours)):
        return "is not finite where the first file's is, or the other way round"
    largest = _largest(theirs[known])
    apart = _largest(ours[known] - theirs[known])
    return (
        f"is up to {100 * apart / (largest or apart):.0f} % of its largest number off" if _far(apart, largest) else None
    )


def _far(apart: float, largest: float) -> bool:
    return apart > LOOSE * largest and apart > 1e-6


def _largest(numbers: Any) -> float:
    return float(np.abs(numbers).max()) if numbers.size else 0.0
