"""What the passes would rewrite in a model, and what they would skip for which reason.

The passes run on a copy and nothing is verified or written, so the answer is what `optimize` would try.
"""

from __future__ import annotations

from typing import Literal

from sardonyx.analysis.census import Census
from sardonyx.optimizer import run_tables
from sardonyx.optimizer.candidates import Progress, RewriteJob, Source
from sardonyx.optimizer.pipeline import select
from sardonyx.records.inspection import Opportunities


def opportunities(
    source: Source, *, target: Literal["portable", "ort"] = "portable", progress: Progress | None = None
) -> Opportunities:
    """Find what the passes would rewrite in a model, and why they would skip the rest; nothing is written.

    Args:
        source: A model file, a `ModelProto` or an `onnx_ir.Model`; it is not changed.
        target: "portable" for standard operators only, "ort" for ONNX Runtime's own as well.
        progress: Called with the phase, and the fraction done if known.
    """
    job = RewriteJob(source, select(target), target, progress or (lambda _phase, _fraction: None))
    candidate = job.candidate()
    return Opportunities(
        path=None if job.path is None else str(job.path),
        target=target,
        before=candidate.before.counts,
        after=Census.of(candidate.model).counts,
        passes=run_tables.pass_records(job.passes, candidate.log),
    )
