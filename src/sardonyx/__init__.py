"""Sardonyx: PyTorch models to ONNX with their modules visible, and verified optimization of ONNX graphs.

The names in `__all__` are public; everything else may change at any time. Public names are loaded when they are first
used, so that importing the package is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sardonyx.common import gc_pause

if TYPE_CHECKING:
    from sardonyx.common.errors import GateNotMet as GateNotMet
    from sardonyx.common.errors import ModelError as ModelError
    from sardonyx.common.errors import OutputError as OutputError
    from sardonyx.common.errors import RuntimeFailure as RuntimeFailure
    from sardonyx.common.errors import SardonyxError as SardonyxError
    from sardonyx.common.errors import UsageError as UsageError
    from sardonyx.common.errors import VerificationFailed as VerificationFailed
    from sardonyx.frontend.attention.decompose import decompose as decompose
    from sardonyx.frontend.attention.decomposed_file import load_decomposed as load_decomposed
    from sardonyx.frontend.attention.fuse import fuse_attention as fuse_attention
    from sardonyx.ir.facts import Facts as Facts
    from sardonyx.ir.rules import Builder as Builder
    from sardonyx.ir.rules import Drop as Drop
    from sardonyx.ir.rules import Match as Match
    from sardonyx.ir.rules import Proposal as Proposal
    from sardonyx.ir.rules import Refused as Refused
    from sardonyx.ir.rules import Share as Share
    from sardonyx.passes.base import Example as Example
    from sardonyx.passes.base import ModelPass as ModelPass
    from sardonyx.passes.base import NodePass as NodePass
    from sardonyx.passes.base import Pass as Pass
    from sardonyx.records.analysis import Analysis as Analysis
    from sardonyx.records.analysis import Decomposed as Decomposed
    from sardonyx.records.bench import Benchmark as Benchmark
    from sardonyx.records.bench import Placement as Placement
    from sardonyx.records.bench import Profile as Profile
    from sardonyx.records.comparison import Comparison as Comparison
    from sardonyx.records.comparison import Location as Location
    from sardonyx.records.export import Export as Export
    from sardonyx.records.export import Extraction as Extraction
    from sardonyx.records.inspection import Adoption as Adoption
    from sardonyx.records.inspection import HierarchyDag as HierarchyDag
    from sardonyx.records.inspection import Inspection as Inspection
    from sardonyx.records.inspection import ModuleInspection as ModuleInspection
    from sardonyx.records.inspection import Opportunities as Opportunities
    from sardonyx.records.quantization import Quantization as Quantization
    from sardonyx.records.run import Accuracy as Accuracy
    from sardonyx.records.run import Run as Run
    from sardonyx.records.run import Verdict as Verdict
    from sardonyx.records.study import Study as Study
    from sardonyx.reporting.report import Report as Report
    from sardonyx.reporting.report import report as report
    from sardonyx.runtime.library import custom_ops as custom_ops
    from sardonyx.verbs.adopt.adopt import Adopted as Adopted
    from sardonyx.verbs.adopt.adopt import adopt as adopt
    from sardonyx.verbs.analyze.analyze import analyze as analyze
    from sardonyx.verbs.analyze.inspector import inspect as inspect
    from sardonyx.verbs.attest.attestation import Rederivation as Rederivation
    from sardonyx.verbs.attest.attestation import attest as attest
    from sardonyx.verbs.attest.attestation import rederive as rederive
    from sardonyx.verbs.bench.bench import bench as bench
    from sardonyx.verbs.compare.compare import compare as compare
    from sardonyx.verbs.dag.dag import dag as dag
    from sardonyx.verbs.export.export import Exported as Exported
    from sardonyx.verbs.export.export import export as export
    from sardonyx.verbs.export.extract import Extracted as Extracted
    from sardonyx.verbs.export.extract import extract as extract
    from sardonyx.verbs.export.options import ExportOptions as ExportOptions
    from sardonyx.verbs.locate.locate import locate as locate
    from sardonyx.verbs.optimize.options import OptimizeOptions as OptimizeOptions
    from sardonyx.verbs.optimize.options import TuneOptions as TuneOptions
    from sardonyx.verbs.optimize.pipeline import Optimized as Optimized
    from sardonyx.verbs.optimize.pipeline import opportunities as opportunities
    from sardonyx.verbs.optimize.pipeline import optimize as optimize
    from sardonyx.verbs.placement.placement import placement as placement
    from sardonyx.verbs.profile.profiler import profile as profile
    from sardonyx.verbs.quantize.quantize import Quantized as Quantized
    from sardonyx.verbs.quantize.quantize import quantize as quantize
    from sardonyx.verbs.study.runner import Studied as Studied
    from sardonyx.verbs.study.runner import study as study
    from sardonyx.verification.compare import verify as verify

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
        "common.errors": "GateNotMet ModelError OutputError RuntimeFailure SardonyxError UsageError VerificationFailed",
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
