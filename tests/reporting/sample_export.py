"""A handmade Export: the origin of the source of the sample Run."""

from __future__ import annotations

from reporting.sample_run import sample_run, sample_verdict
from sardonyx.records.export import Export, SourceModule
from sardonyx.records.inspection import Coverage
from sardonyx.records.run import Artifact, Counts


def sample_export(sha256: str | None) -> Export:
    run = sample_run()
    return Export(
        status="done",
        environment=run.environment,
        options={},
        module=SourceModule("bert.py:model", "BertModel", 120, 4_400_000, "ef" * 32),
        inputs=(),
        outputs=("last_hidden_state",),
        result=Artifact("model.onnx", sha256, 17_600_000, 7, {"": 14}),
        counts=Counts(324, 96, 39, 17_412_345),
        modules=100,
        coverage=Coverage(324, 300, 20, 4),
        root_nodes=(),
        tied=(),
        verdict=sample_verdict(),
        optimized=None,
        seconds={},
    )
