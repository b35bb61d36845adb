"""A record of `locate`, made by hand."""

from __future__ import annotations

from reporting.sample_run import sample_run
from sardonyx.records.comparison import DifferingModule, LocatedModel, Location, ModuleShare, Substitution


def sample_location() -> Location:
    """A fault in one module, and a smaller error in two others."""
    module = DifferingModule(
        "encoder.0", "/Net/Encoder/0", "hidden", 0.1, "differs by up to 1", 0.9, ("matmul", "add"), ("encoder.0", "act")
    )
    return Location(
        environment=sample_run().environment,
        first=LocatedModel("a.onnx", "onnx", "onnxruntime"),
        second=LocatedModel("b.onnx", "onnx", "onnxruntime"),
        same=False,
        gradual=False,
        module=module,
        shares=(
            ModuleShare("encoder.0", 0.9, (), 0.1, 0.88),
            ModuleShare("encoder", 0.1, ("encoder.1", "encoder.2"), None),
        ),
        spread=1.22,
        error=0.05,
        failures=("output 'y': differs by up to 1",),
        trial="normal",
        borders=12,
        unpaired=("encoder.1.act",),
        runs=20,
        substitutions=(
            Substitution(0, "", "", 0.05),
            Substitution(2, "embeddings", "embedded", 0.05),
            Substitution(3, "encoder.0", "hidden", 0.0158),
            Substitution(12, "", "y", 0.0),
        ),
        peak_bytes=10**8,
        seconds=1.5,
        notes=("a note",),
    )
