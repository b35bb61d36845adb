"""Sardonyx: PyTorch models to ONNX with their modules visible, and verified optimization of ONNX graphs.

The names in `__all__` are public; everything else may change at any time. Public names are loaded when they are first
used, so that importing the package is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sardonyx.common import gc_pause

if TYPE_CHECKING:
    from sardonyx.errors import (
        GateNotMet,
        ModelError,
        OutputError,
        RuntimeFailure,
        SardonyxError,
        UsageError,
        VerificationFailed,
    )
    from sardonyx.frontend.attention.decompose import decompose
    from sardonyx.frontend.attention.decomposed_file import load_decomposed
    from sardonyx.frontend.attention.fuse import fuse_attention
    from sardonyx.ir.facts import Facts
    from sardonyx.ir.rules import Builder, Drop, Match, Proposal, Refused, Share
    from sardonyx.passes.base import Example, ModelPass, NodePass, Pass
    from sardonyx.records.analysis import Analysis, Decomposed
    from sardonyx.records.bench import Benchmark, Placement, Profile
    from sardonyx.records.comparison import Comparison, Location
    from sardonyx.records.export import Export, Extraction
    from sardonyx.records.inspection import Adoption, HierarchyDag, Inspection, ModuleInspection, Opportunities
    from sardonyx.records.quantization import Quantization
    from sardonyx.records.run import Accuracy, Run, Verdict
    from sardonyx.records.study import Study
    from sardonyx.reporting.report import Report, report
    from sardonyx.runtime.library import custom_ops
    from sardonyx.verbs.adopt.adopt import Adopted, adopt
    from sardonyx.verbs.analyze.analyze import analyze
    from sardonyx.verbs.analyze.inspector import inspect
    from sardonyx.verbs.attest.attestation import Rederivation, attest, rederive
    from sardonyx.verbs.bench.bench import bench
    from sardonyx.verbs.compare.compare import compare
    from sardonyx.verbs.dag.dag import dag
    from sardonyx.verbs.export.export import Exported, export
    from sardonyx.verbs.export.extract import Extracted, extract
    from sardonyx.verbs.export.options import ExportOptions
    from sardonyx.verbs.locate.locate import locate
    from sardonyx.verbs.optimize.options import OptimizeOptions, TuneOptions
    from sardonyx.verbs.optimize.pipeline import Optimized, opportunities, optimize
    from sardonyx.verbs.placement.placement import placement
    from sardonyx.verbs.profile.profiler import profile
    from sardonyx.verbs.quantize.quantize import Quantized, quantize
    from sardonyx.verbs.study.runner import Studied, study
    from sardonyx.verification.compare import verify

    __version__: str

__all__ = [
    "Accuracy", "Adopted", "Adoption", "Analysis", "Benchmark", "Builder", "Comparison", "Decomposed", "Drop",
    "Example", "Export", "ExportOptions", "Exported", "Extracted", "Extraction", "Facts", "GateNotMet",
    "HierarchyDag", "Inspection", "Location", "Match", "ModelError", "ModelPass", "ModuleInspection", "NodePass",
    "Opportunities", "OptimizeOptions", "Optimized", "OutputError", "Pass", "Placement", "Profile", "Proposal",
    "Quantization", "Quantized", "Rederivation", "Refused", "Report", "Run", "RuntimeFailure", "SardonyxError",
    "Share", "Studied", "Study", "TuneOptions", "UsageError", "Verdict", "VerificationFailed", "__version__",
    "adopt", "analyze", "attest", "bench", "compare", "custom_ops", "dag", "decompose", "export", "extract",
    "fuse_attention", "inspect", "load_decomposed", "locate", "opportunities", "optimize", "placement", "profile",
    "quantize", "rederive", "report", "study", "verify",
]  # fmt: skip

_DEFINED_IN = {
    name: f"sardonyx.{module}"
    for module, names in {
        "verbs.analyze.analyze": "analyze",
        "verbs.dag.dag": "dag",
        "verbs.compare.compare": "compare",
        "verbs.analyze.inspector": "inspect",
        "errors": "GateNotMet ModelError OutputError RuntimeFailure SardonyxError UsageError VerificationFailed",
        "verbs.adopt.adopt": "Adopted adopt",
        "verbs.export.export": "Exported export",
        "verbs.export.extract": "Extracted extract",
        "verbs.export.options": "ExportOptions",
        "frontend.attention.decompose": "decompose",
        "frontend.attention.decomposed_file": "load_decomposed",
        "frontend.attention.fuse": "fuse_attention",
        "ir.rules": "Builder Drop Match Proposal Refused Share",
        "ir.facts": "Facts",
        "verbs.bench.bench": "bench",
        "verbs.profile.profiler": "profile",
        "verbs.attest.attestation": "Rederivation attest rederive",
        "verbs.optimize.pipeline": "opportunities Optimized optimize",
        "verbs.optimize.options": "OptimizeOptions TuneOptions",
        "passes.base": "Example ModelPass NodePass Pass",
        "verbs.quantize.quantize": "Quantized quantize",
        "records.analysis": "Analysis Decomposed",
        "records.bench": "Benchmark Placement Profile",
        "records.comparison": "Comparison Location",
        "records.export": "Export Extraction",
        "records.inspection": "Adoption Inspection ModuleInspection Opportunities HierarchyDag",
        "records.quantization": "Quantization",
        "records.run": "Accuracy Run Verdict",
        "records.study": "Study",
        "reporting.report": "Report report",
        "runtime.library": "custom_ops",
        "verbs.study.runner": "Studied study",
        "verification.compare": "verify",
        "verbs.locate.locate": "locate",
        "verbs.placement.placement": "placement",
    }.items()
    for name in names.split()
}

_NEEDS_TORCH = frozenset(("Exported", "decompose", "export", "fuse_attention", "load_decomposed"))


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("sardonyx")
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'sardonyx' has no attribute {name!r}")
    with gc_pause.paused():
        importlib.import_module("sardonyx.ir")  # first, since it speeds up the import of onnx_ir
        if name in _NEEDS_TORCH:
            importlib.import_module("sardonyx.frontend.installed").require_torch()
        return getattr(importlib.import_module(_DEFINED_IN[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__]
