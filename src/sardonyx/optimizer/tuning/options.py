"""Options of tuning, separate from the tuner so that `optimize` need not load it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sardonyx.optimizer.candidates import Forbidden, VerifiedCandidate

# Builds a candidate without the forbidden passes, and verifies it.
Rebuild: TypeAlias = Callable[[Forbidden], VerifiedCandidate]


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """How long tuning may take, what it measures at, and which passes it may add."""

    budget: float = 120.0  # seconds
    sizes: Mapping[str, int] | None = None  # of dynamic dimensions
    threads: int = 1
    seed: int = 0
    left_out: Forbidden = frozenset()  # passes that are off by default and may be added
