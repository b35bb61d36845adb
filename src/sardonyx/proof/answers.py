"""What the reference said to one trial, and whether that tells anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.proof.inputs import Draw
from sardonyx.runtime import Value


@dataclass(frozen=True, slots=True)
class Answer:
    """What the reference said to one set of inputs."""

    seed: int | None
    style: str
    draw: Draw
    outputs: list[Value]
    seconds: float = 0.0  # that the run took
    hides_row: bool = False  # a mask hides rows whole: the reference may answer NaN there


def has_nan(values: Sequence[Value]) -> bool:
    """Whether something in an answer is not a number."""
    return any(isinstance(v, np.ndarray) and v.dtype.kind == "f" and bool(np.isnan(v).any()) for v in values)


def is_empty(values: Sequence[Value]) -> bool:
    """Whether a tensor output never had an element."""
    return all(isinstance(value, np.ndarray) and value.size == 0 for value in values)


def says_nothing(values: Sequence[Value]) -> bool:
    """Whether a tensor output of several elements held but one number in all trials, or nothing but NaN."""
    arrays = [value for value in values if isinstance(value, np.ndarray) and value.dtype.kind in "fiub"]
    if not arrays or sum(array.size for array in arrays) < 2:
        return False
    return np.unique(np.concatenate([array.reshape(-1) for array in arrays])).size == 1
