"""Compare the outputs of models that are timed against each other, within a loose tolerance; `verify` is stricter.

A benchmark of models that compute different things is misleading, and its numbers do not show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.runtime import Array, Value

LOOSE = 0.05  # of the largest number of an output; lower precision and other kernels cause far less


def difference(ours: Sequence[Value], theirs: Sequence[Value]) -> str | None:
    """Return how outputs clearly differ from those of the first file, in one line; None if they do not."""
    if len(ours) != len(theirs):
        return f"it has {len(ours)} outputs, the first file has {len(theirs)}"
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True), 1):
        line = _of_values(mine, other)
        if line is not None:
            return f"output {index} {line}"
    return None


def _of_values(mine: Value, other: Value) -> str | None:
    if isinstance(mine, np.ndarray) and isinstance(other, np.ndarray):
        return _of_arrays(mine, other)
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        return next((line for pair in zip(mine, other, strict=True) if (line := _of_values(*pair))), None)
    return None if type(mine) is type(other) and not isinstance(mine, list) else "is of another kind"


def _of_arrays(mine: Array, other: Array) -> str | None:
    if mine.shape != other.shape:
        return f"has the shape {list(mine.shape)}, not {list(other.shape)}"
    if mine.dtype.kind not in "fiu" or other.dtype.kind not in "fiu":
        return None if mine.dtype.kind == other.dtype.kind else f"is {mine.dtype}, not {other.dtype}"
    ours, theirs = mine.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(finite, np.isfinite(ours)):
        return "is not finite where the first file's is, or the other way round"
    largest = _largest(theirs[finite])
    gap = _largest(ours[finite] - theirs[finite])
    if gap <= LOOSE * largest or gap <= 1e-6:
        return None
    return f"differs by up to {100 * gap / (largest or gap):.0f} % of its largest number"


def _largest(numbers: Any) -> float:
    return float(np.abs(numbers).max()) if numbers.size else 0.0
