"""Sardonyx: from PyTorch to ONNX with the layers still visible, and optimized with proof.

The public verbs load what they need when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sardonyx import collector

if TYPE_CHECKING:
    from sardonyx.analyzing import analyze as analyze
    from sardonyx.attention.decomposing import decompose as decompose
    from sardonyx.attention.fusing import fuse_attention as fuse_attention
    from sardonyx.exporting import export as export
    from sardonyx.extraction import extract as extract
    from sardonyx.forensics.opportunities import opportunities as opportunities
    from sardonyx.graph.adoption import adopt as adopt
    from sardonyx.graph.dag import dag as dag
    from sardonyx.graph.diff import compare as compare
    from sardonyx.graph.inspector import inspect as inspect
    from sardonyx.measure.benching import bench as bench
    from sardonyx.pipeline import optimize as optimize
    from sardonyx.profiling.profiler import profile as profile
    from sardonyx.proof import verify as verify
    from sardonyx.reporting import report as report
    from sardonyx.studying.conducting import study as study

_VERBS = {
    "adopt": "sardonyx.graph.adoption",
    "analyze": "sardonyx.analyzing",
    "bench": "sardonyx.measure.benching",
    "compare": "sardonyx.graph.diff",
    "dag": "sardonyx.graph.dag",
    "decompose": "sardonyx.attention.decomposing",
    "export": "sardonyx.exporting",
    "extract": "sardonyx.extraction",
    "fuse_attention": "sardonyx.attention.fusing",
    "inspect": "sardonyx.graph.inspector",
    "opportunities": "sardonyx.forensics.opportunities",
    "optimize": "sardonyx.pipeline",
    "profile": "sardonyx.profiling.profiler",
    "report": "sardonyx.reporting",
    "study": "sardonyx.studying.conducting",
    "verify": "sardonyx.proof",
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
    with collector.paused():
        importlib.import_module("sardonyx.graph")  # first, since it makes onnx_ir load quickly
        if name in _ON_TORCH:
            importlib.import_module("sardonyx.source.installed").require_torch()
        return getattr(importlib.import_module(_VERBS[name]), name)


def __dir__() -> list[str]:
    """The public verbs."""
    return [*__all__]
