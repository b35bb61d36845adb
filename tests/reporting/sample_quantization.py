"""A record of `quantize`, made by hand."""

from __future__ import annotations

from reporting.sample_run import sample_run
from sardonyx.records.quantization import Loss, OutputLoss, Quantization, QuantizedProduct, SimulationCheck
from sardonyx.records.run import ModuleCount, RefusalGroup


def sample_quantization() -> Quantization:
    """Two products of two modules, one of which was not quantized."""
    run = sample_run()
    return Quantization(
        status="done", environment=run.environment, options={"to": "int8", "target": "portable"}, source=run.source,
        result=run.result, opset_changes={"": (17, 21)}, before=run.before, after=run.after,
        modules=(ModuleCount("encoder", "/Bert/Encoder", 3, 5, 10, 4000, 1000),),
        products=(QuantizedProduct("matmul", "encoder", "quantize-dynamically", 64, 32, 1e-6, 1e-4),),
        skipped=(RefusalGroup("its weight is narrow", 1, ("other",)),),
        check=SimulationCheck(1, 6, 0.01, "onnxruntime", 0.1),
        loss=Loss("generated", 2, "onnxruntime", (OutputLoss("y", 0.01, 0.02, 0.999, 0.75, 8),)),
        seconds={"total": 1.0}, notes=("a note",),
    )  # fmt: skip
