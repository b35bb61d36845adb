"""`--fail-if`: numbers of a record held to limits, or to an earlier record. Kinds of records say what may be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sardonyx.gate.baselines import Baseline as Baseline
from sardonyx.gate.baselines import kinds as kinds
from sardonyx.gate.baselines import read as read_baseline
from sardonyx.gate.expressions import Gate as Gate
from sardonyx.gate.holding import Outcome as Outcome
from sardonyx.gate.holding import hold as hold
from sardonyx.gate.holding import parse_all as parse_all
from sardonyx.gate.kinds import Kind as Kind
from sardonyx.gate.measures import Measure as Measure
from sardonyx.gate.models import (
    ADOPTION,
    COMPARISON,
    EXPORT,
    EXTRACTION,
    INSPECTION,
    MODULE,
    OPPORTUNITIES,
    RUN,
    VERDICT,
)
from sardonyx.gate.parts import NEEDS_TUNING, NEEDS_VERDICT

if TYPE_CHECKING:
    from sardonyx.gate.measured import ANALYSIS, BENCHMARK, DECOMPOSED, PROFILE, STUDY

_MEASURED = ("ANALYSIS", "BENCHMARK", "DECOMPOSED", "PROFILE", "STUDY")

__all__ = [
    "ADOPTION", "ANALYSIS", "BENCHMARK", "COMPARISON", "DECOMPOSED", "EXPORT", "EXTRACTION", "INSPECTION",
    "MODULE", "NEEDS_TUNING", "NEEDS_VERDICT", "OPPORTUNITIES", "PROFILE", "RUN", "STUDY", "VERDICT", "Baseline",
    "Gate", "Kind", "Measure", "Outcome", "hold", "kinds", "parse_all", "read_baseline",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Kinds whose records take long to load, and which most commands have no use for (PEP 562)."""
    if name not in _MEASURED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sardonyx.gate import measured

    return getattr(measured, name)
