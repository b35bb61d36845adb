"""`--fail-if`: compare numbers of a record with limits or with an earlier record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sardonyx.reporting.gate.evaluate import Baseline, Outcome, hold, kinds, parse_all, read_baseline
from sardonyx.reporting.gate.expressions import Gate, Measure
from sardonyx.reporting.gate.kinds import NEEDS_TUNING, NEEDS_VERDICT, RecordKind
from sardonyx.reporting.gate.model_metrics import (
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

if TYPE_CHECKING:
    from sardonyx.reporting.gate.measurement_metrics import ANALYSIS, BENCHMARK, DECOMPOSED, PROFILE, STUDY

_MEASURED = ("ANALYSIS", "BENCHMARK", "DECOMPOSED", "PROFILE", "STUDY")

__all__ = [
    "ADOPTION",
    "ANALYSIS",
    "BENCHMARK",
    "COMPARISON",
    "DECOMPOSED",
    "EXPORT",
    "EXTRACTION",
    "INSPECTION",
    "MODULE",
    "NEEDS_TUNING",
    "NEEDS_VERDICT",
    "OPPORTUNITIES",
    "PROFILE",
    "RUN",
    "STUDY",
    "VERDICT",
    "Baseline",
    "Gate",
    "Measure",
    "Outcome",
    "RecordKind",
    "hold",
    "kinds",
    "parse_all",
    "read_baseline",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load kinds that most commands do not need, and whose records take long to load (PEP 562)."""
    if name not in _MEASURED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sardonyx.reporting.gate import measurement_metrics

    return getattr(measurement_metrics, name)
