"""A handmade RunBundle with every record that may accompany a Run, all of the same two files."""

from __future__ import annotations

from msgspec.structs import replace

from reporting.sample_analysis import sample_analysis
from reporting.sample_bench import sample_benchmark
from reporting.sample_export import sample_export
from reporting.sample_profile import sample_profile
from reporting.sample_run import sample_run
from sardonyx.records.analysis import Analysis
from sardonyx.records.bench import Benchmark, Profile
from sardonyx.reporting.run_bundle import RunBundle

NAMES = ("model.onnx", "small.onnx")


def bench_of_run() -> Benchmark:
    """The files of the sample run, with its hashes."""
    made, run = sample_benchmark(files=2), sample_run()
    hashes = (run.source.sha256, run.result.sha256)
    files = tuple(replace(each, sha256=sha256) for each, sha256 in zip(made.files, hashes, strict=True))
    return replace(made, files=files)


def profile_of_run() -> Profile:
    made = sample_profile()
    models = tuple(replace(each, path=name, label=name) for each, name in zip(made.models, NAMES, strict=True))
    return replace(made, models=models)


def analysis_of_run() -> Analysis:
    made = sample_analysis()
    forms = tuple(replace(each, name=name) for each, name in zip(made.forms, NAMES, strict=False))
    return replace(made, forms=forms, sources=())


def sample_run_bundle(label: str = "model") -> RunBundle:
    run = sample_run()
    return RunBundle(
        label,
        run,
        export=sample_export(run.source.sha256),
        bench=bench_of_run(),
        profile=profile_of_run(),
        analysis=analysis_of_run(),
    )
