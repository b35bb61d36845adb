"""Sardonyx: from PyTorch to ONNX with the layers still visible, and optimized with proof.

The public verbs load what they need when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sardonyx.records import gc_pause

if TYPE_CHECKING:
    from sardonyx.analysis.analyze import analyze as analyze
    from sardonyx.analysis.dag import dag as dag
    from sardonyx.analysis.diff import compare as compare
    from sardonyx.analysis.inspector import inspect as inspect
    from sardonyx.exporting.adopt import adopt as adopt
    from sardonyx.exporting.export import export as export
    from sardonyx.exporting.extract import extract as extract
    from sardonyx.frontend.attention.decompose import decompose as decompose
    from sardonyx.frontend.attention.fuse import fuse_attention as fuse_attention
    from sardonyx.measurement.bench import bench as bench
    from sardonyx.measurement.profiling.profiler import profile as profile
    from sardonyx.optimizer.opportunities import opportunities as opportunities
    from sardonyx.optimizer.pipeline import optimize as optimize
    from sardonyx.reporting.report import report as report
    from sardonyx.studies.runner import study as study
    from sardonyx.verification import verify as verify

_VERBS = {
    "adopt": "sardonyx.exporting.adopt",
    "analyze": "sardonyx.analysis.analyze",
    "bench": "sardonyx.measurement.bench",
    "compare": "sardonyx.analysis.diff",
    "dag": "sardonyx.analysis.dag",
    "decompose": "sardonyx.frontend.attention.decompose",
    "export": "sardonyx.exporting.export",
    "extract": "sardonyx.exporting.extract",
    "fuse_attention": "sardonyx.frontend.attention.fuse",
    "inspect": "sardonyx.analysis.inspector",
    "opportunities": "sardonyx.optimizer.opportunities",
    "optimize": "sardonyx.optimizer.pipeline",
    "profile": "sardonyx.measurement.profiling.profiler",
    "report": "sardonyx.reporting.report",
    "study": "sardonyx.studies.runner",
    "verify": "sardonyx.verification",
}

_ON_TORCH = frozenset(("decompose", "export", "fuse_attention"))

__all__ = [
    "adopt",
    "analyze",
    "bench",
    "compare",
    "dag",
    "decompose",
    "export",
    "extract",
    "fuse_attention",
    "inspect",
    "opportunities",
    "optimize",
    "profile",
    "report",
    "study",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Load a verb on first use (PEP 562)."""
    if name not in _VERBS:
        raise AttributeError(f"module 'sardonyx' has no attribute {name!r}")
    with gc_pause.paused():
        importlib.import_module("sardonyx.ir")  # first, since it makes onnx_ir load quickly
        if name in _ON_TORCH:
            importlib.import_module("sardonyx.frontend.installed").require_torch()
        return getattr(importlib.import_module(_VERBS[name]), name)


def __dir__() -> list[str]:
    """The public verbs."""
    return [*__all__]
