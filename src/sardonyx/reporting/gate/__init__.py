"""`--fail-if`: compare numbers of a record with limits or with an earlier record."""

from __future__ import annotations

from sardonyx.records.expressions import Gate, Measure
from sardonyx.reporting.gate.evaluate import Baseline, Outcome, hold, kind_of, kinds, parse_all, read_baseline
from sardonyx.reporting.gate.kinds import NEEDS_TUNING, NEEDS_VERDICT, RecordKind
from sardonyx.reporting.gate.measurement_metrics import ANALYSIS, BENCHMARK, DECOMPOSED, FLEET, PROFILE, STUDY
from sardonyx.reporting.gate.model_metrics import (
    ADOPTION,
    COMPARISON,
    EXPORT,
    EXTRACTION,
    INSPECTION,
    LOCATION,
    MODULE,
    OPPORTUNITIES,
    QUANTIZATION,
    RUN,
    VERDICT,
)

__all__ = [
    "ADOPTION",
    "ANALYSIS",
    "BENCHMARK",
    "COMPARISON",
    "DECOMPOSED",
    "EXPORT",
    "EXTRACTION",
    "FLEET",
    "INSPECTION",
    "LOCATION",
    "MODULE",
    "NEEDS_TUNING",
    "NEEDS_VERDICT",
    "OPPORTUNITIES",
    "PROFILE",
    "QUANTIZATION",
    "RUN",
    "STUDY",
    "VERDICT",
    "Baseline",
    "Gate",
    "Measure",
    "Outcome",
    "RecordKind",
    "hold",
    "kind_of",
    "kinds",
    "parse_all",
    "read_baseline",
]  # fmt: skip
