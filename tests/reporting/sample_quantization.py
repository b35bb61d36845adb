"""Records of `quantize`, made by hand."""

from __future__ import annotations

from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.records.bench import Comparison, Finding
from sardonyx.records.quantization import (
    Choice,
    DataParts,
    FrontPoint,
    GroupPrecision,
    Interval,
    Loss,
    MetricMeans,
    ModuleGroup,
    OutputLoss,
    Quantization,
    QuantizedProduct,
    Scores,
    SimulationCheck,
)
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
        data=DataParts("generated", 0, 0, 2, weak="measured on generated inputs"),
        loss=Loss("generated", 2, "onnxruntime", (OutputLoss("y", 0.01, 0.02, 0.999, 0.75, 8),), sample_scores(0.01)),
        seconds={"total": 1.0}, notes=("a note",),
    )  # fmt: skip


def sample_scores(loss: float) -> Scores:
    """Losses with intervals."""
    return Scores(
        Interval(loss, 0.8 * loss, 1.2 * loss), Interval(1 - loss / 9, 0.99, 1.0), Interval(0.75, 0.7, 0.8),
        Interval(0.002, 0.0, 0.004),
    )  # fmt: skip


def sample_choice() -> Quantization:
    """Two groups, one of which stays in float32, chosen by measurement on data."""
    faster = Comparison(0.6, 0.58, 0.62, 0.012, Finding.FASTER, 12)
    options = (GroupPrecision("int8", sample_scores(0.004), 1500, 0.2, faster),)
    slow = (GroupPrecision("int8", sample_scores(0.02), 1600, 0.1, faster),)
    groups = (
        ModuleGroup("encoder", ("encoder",), 1, 4000, 0, options, "int8", "within the budget"),
        ModuleGroup("head", ("head",), 1, 2000, 1, slow, "float32", "relative L2 0.02 alone"),
    )
    points = (
        FrontPoint(
            "mixed 1", {"int8": 1, "float32": 1}, 0.004, sample_scores(0.005), 1500, 0.5, 0.7, faster, True, True
        ),
        FrontPoint("all int8", {"int8": 2}, 0.02, sample_scores(0.03), 900, 0.3, 0.5, faster, False, True),
    )
    choice = Choice(
        "time", ("relative_l2<=0.01", "top1>=0.99"), True, ("int8",), {"sequence": 128}, 1.5, groups, points, 0, 6
    )
    plain = sample_quantization()
    return replace(
        plain, options={**plain.options, "to": "auto"}, data=DataParts("data", 0, 8, 32), choice=choice,
        loss=replace(plain.loss, measured_on="data", samples=32, metric=MetricMeans("task.py:accuracy", 0.9, 0.898)),
    )  # fmt: skip
