"""What the user wants of tuning, apart from what carries it out: asking must load nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sardonyx.optimizer.candidates import Forbidden, VerifiedCandidate

Settle: TypeAlias = Callable[
    [Forbidden], VerifiedCandidate
]  # makes a candidate without what is forbidden, and proves it


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """How long tuning may take, what it measures on, and what it may choose from."""

    budget: float = 120.0  # seconds
    sizes: Mapping[str, int] | None = None  # of dims that inputs leave open
    threads: int = 1
    seed: int = 0
    left_out: Forbidden = frozenset()  # passes that the usual result is made without and that may be added
