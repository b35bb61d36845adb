"""One record of every kind that gates know: of a small model, or handmade."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
from msgspec.structs import replace

import sardonyx
from reporting.sample_analysis import sample_analysis
from reporting.sample_fleet import sample_fleet
from reporting.sample_location import sample_location
from reporting.sample_quantization import sample_choice
from reporting.sample_run import sample_run, sample_verdict
from sardonyx.records.analysis import AttentionCost, Decomposed
from sardonyx.records.bench import (
    BenchFile,
    Benchmark,
    Comparison,
    Finding,
    KernelTime,
    Machine,
    Point,
    Profile,
    ProfiledModel,
    Start,
    Timing,
    TracedBy,
)
from sardonyx.records.export import Export, SourceModule
from sardonyx.records.inspection import Adoption, Coverage
from sardonyx.records.run import RelativeTime, Tuning
from sardonyx.records.study import Failure, Study
from sardonyx.reporting import record_kinds

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[batch,4] x) => (float[batch,4] y) { same = Identity (x) shifted = Transpose <perm=[0,1]> (same)
y = MatMul (shifted, w) }
"""
ENVIRONMENT = sample_run().environment
_TUNING = {"chosen": "untuned", "why": "nothing to undo", "gain": None, "floor": 0.01, "decisions": (), "questions": ()}
_TUNING |= {"sizes": {}, "threads": 1, "provider": "cpu", "clock": "cpu", "budget": 1.0, "seconds": 1.0, "load": None}


def write_model(path: Path, *, scale: float = 1.0) -> Path:
    """Three nodes, of which one computes something."""
    model = onnx.parser.parse_model(TEXT)
    for node, name in zip(model.graph.node, ("/layer/Identity", "/layer/Transpose", "/layer/MatMul"), strict=True):
        node.name = name
    model.graph.initializer.append(onnx.numpy_helper.from_array(scale * np.eye(4, dtype=np.float32), "w"))
    onnx.save(model, path)
    return path


def timing(ratio: float | None, low: float = 0, high: float = 0, finding: Finding = Finding.FASTER) -> Timing:
    """One file that takes around 10 ms."""
    compared = None if ratio is None else Comparison(ratio, low, high, 0.01, finding, 30)
    starts = tuple(Start(0.1 * i, 0.02, 1_000_000 * i) for i in (1, 3, 2))
    return Timing("b.onnx", (0.01,) * 30, 0.01, 0.0095, 0.0105, 0.009, 0.011, compared, starts)


def benchmark(*lasts: Timing) -> Benchmark:
    """Two files at as many sizes as there are timings of the last."""
    points = tuple(
        Point({"batch": size}, {"x": "float32"}, 0.01, (timing(None), last)) for size, last in enumerate(lasts)
    )
    files = (BenchFile("a.onnx", "a.onnx", None, 900, 3), BenchFile("b.onnx", "b.onnx", None, 800, 1))
    machine = Machine("cpu", 2, 10**9, "performance", 0.1, 0.1, 0.0, 0.0)
    return Benchmark(ENVIRONMENT, machine, {}, files, points, {})


def _profile() -> Profile:
    kernel = KernelTime(
        "/layer/MatMul", "MatMul", "cpu", ("/layer/MatMul",), ("layer",), "layer", TracedBy.NAME, 2.0, 1
    )
    models = tuple(
        ProfiledModel("m.onnx", "m", 3, 10, 5.0, 5.1, total, 0.98 * total, (kernel,), (), ()) for total in (4.0, 3.0)
    )
    return Profile(ENVIRONMENT, {}, models, {})


def _export(path: Path) -> Export:
    run = sardonyx.optimize(path, None)
    looked = sardonyx.inspect(path)
    return Export(
        "done",
        ENVIRONMENT,
        {},
        SourceModule("net.py:build", "Net", 3, 16, None),
        (),
        ("y",),
        run.source,
        looked.counts,
        2,
        Coverage(2, 1, 1, 0),
        (),
        (),
        sample_verdict(),
        None,
        {"export": 1.0, "verify": 0.5},
    )


def records(folder: Path) -> dict[str, Any]:
    """One of every kind, by the title of the kind."""
    path = write_model(folder / "m.onnx")
    small = folder / "small.onnx"
    pace = RelativeTime("untuned", 1, 2.0, 0.8, 0.7, 0.9, "faster")
    tuning = msgspec.convert(_TUNING | {"standing": [pace]}, Tuning)
    run = replace(sardonyx.optimize(path, small), tuning=tuning)
    attention = AttentionCost("attn", "by hand", {"scores": 1})
    made = {
        record_kinds.RUN: run,
        record_kinds.VERDICT: run.verdict,
        record_kinds.EXPORT: _export(path),
        record_kinds.INSPECTION: sardonyx.inspect(path),
        record_kinds.MODULE: sardonyx.inspect(path, module="layer"),
        record_kinds.OPPORTUNITIES: sardonyx.opportunities(path),
        record_kinds.EXTRACTION: sardonyx.extract(path, "layer", folder / "layer.onnx"),
        record_kinds.QUANTIZATION: sample_choice(),
        record_kinds.LOCATION: sample_location(),
        record_kinds.ADOPTION: Adoption("m.onnx", None, 4, 1, Coverage(2, 1, 1, 0), {}, (), False),
        record_kinds.PLACEMENT: sardonyx.placement(path, "cuda"),
        record_kinds.COMPARISON: sardonyx.compare(path, small),
        record_kinds.ANALYSIS: sample_analysis(),
        record_kinds.DECOMPOSED: Decomposed("net.py:build", None, 12, 24, (attention,), (), {}),
        record_kinds.BENCHMARK: benchmark(timing(0.9, 0.88, 0.92)),
        record_kinds.PROFILE: _profile(),
        record_kinds.FLEET: sample_fleet(40),
        record_kinds.STUDY: Study(ENVIRONMENT, {}, ("a", "b"), (), (), (Failure("order", "a", "broken"),), 12, {}),
    }
    return {kind.title: record for kind, record in made.items()}
