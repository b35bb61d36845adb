"""`--fail-if`: numbers of a record held to limits, or to an earlier record. Kinds of records say what may be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sardonyx.reporting.gate.baselines import Baseline as Baseline
from sardonyx.reporting.gate.baselines import kinds as kinds
from sardonyx.reporting.gate.baselines import read as read_baseline
from sardonyx.reporting.gate.common_metrics import NEEDS_TUNING, NEEDS_VERDICT
from sardonyx.reporting.gate.evaluate import Outcome as Outcome
from sardonyx.reporting.gate.evaluate import hold as hold
from sardonyx.reporting.gate.evaluate import parse_all as parse_all
from sardonyx.reporting.gate.expressions import Gate as Gate
from sardonyx.reporting.gate.kinds import RecordKind as RecordKind
from sardonyx.reporting.gate.metric import Measure as Measure
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
    """Kinds whose records take long to load, and which most commands have no use for (PEP 562)."""
    if name not in _MEASURED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sardonyx.reporting.gate import measurement_metrics

    return getattr(measurement_metrics, name)
