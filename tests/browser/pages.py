"""The pages under test: of real models through the real verbs, and of records in which every text is hostile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
from msgspec.structs import replace

import sardonyx
from browser.hostile_model import foreign_model, hostile_model
from deep_model import deep_model
from hostile import bad, poisoned
from reporting.sample_analysis import sample_analysis
from reporting.sample_bench import sample_benchmark
from reporting.sample_export import sample_export
from reporting.sample_placement import placements_of_run
from reporting.sample_profile import sample_profile
from reporting.sample_quantization import sample_choice
from reporting.sample_run import sample_run
from reporting.sample_tuning import sample_tuning
from sardonyx.records.analysis import Analysis
from sardonyx.records.bench import Benchmark, Profile
from sardonyx.records.quantization import Quantization
from sardonyx.reporting.page import render_page
from sardonyx.reporting.run_bundle import QuantizationBundle, RunBundle
from sardonyx.verbs.optimize.run_folder import fill
from sardonyx.verbs.report.model_page import write_page

HASHED = sardonyx.OptimizeOptions(hashes=True)
SmallModel = Callable[[str, str], Path]
FEW_SECONDS = {"seconds": 0.5}
BEFORE, AFTER = "model.onnx", "small.onnx"  # the file names of the sample Run
HOSTILE_FILE = '"><img src=x onerror=window.hacked=30>'  # a valid file name where / has another meaning


def transformer(folder: Path, small_model: SmallModel) -> None:
    """A small transformer with every record."""
    run = sardonyx.optimize(small_model("bert", "dynamo"), folder / "bert.small.onnx", options=HASHED)
    fill(folder, run, conditions=FEW_SECONDS)


def two(folder: Path, small_model: SmallModel) -> None:
    """Two models on one page, their runs alone."""
    runs = [
        sardonyx.optimize(small_model(name, "dynamo"), folder / f"{name}.small.onnx", options=HASHED)
        for name in ("gpt2", "cnn")
    ]
    for name, run in zip(("gpt2", "cnn"), runs, strict=True):
        (folder / f"{name}.json").write_bytes(run.to_json())
    sardonyx.report([folder / "gpt2.json", folder / "cnn.json"], folder / "report.html")


def deep(folder: Path, _small_model: SmallModel) -> None:
    """Ten thousand nodes. Not verified: that would take most of the time and show nothing new."""
    onnx.save(deep_model(10_000), folder / "deep.onnx")
    run = sardonyx.optimize(folder / "deep.onnx", folder / "deep.small.onnx", verify="off", options=HASHED)
    (folder / "run.json").write_bytes(run.to_json())
    sardonyx.report(folder / "run.json", folder / "report.html")


def hostile(folder: Path, _small_model: SmallModel) -> None:
    """Hostile names in a file, through every verb."""
    source = folder / f"{HOSTILE_FILE}.onnx"
    onnx.save(hostile_model(), source)
    run = sardonyx.optimize(source, folder / f"{HOSTILE_FILE}.small.onnx", options=HASHED)
    fill(folder, run, conditions=FEW_SECONDS)


def foreign(folder: Path, _small_model: SmallModel) -> None:
    """Operators and domains with hostile names, which no runtime runs."""
    onnx.save(foreign_model(), folder / "foreign.onnx")
    run = sardonyx.optimize(folder / "foreign.onnx", folder / "foreign.small.onnx", verify="off", options=HASHED)
    (folder / "run.json").write_bytes(run.to_json())
    sardonyx.report(folder / "run.json", folder / "report.html")


def records(folder: Path, _small_model: SmallModel) -> None:
    """Records in which every text is hostile, also texts that no real file could have."""
    bundle = hostile_bundle()
    for name, record in (
        ("run", bundle.run),
        ("export", bundle.export),
        ("bench", bundle.bench),
        ("profile", bundle.profile),
        ("analysis", bundle.analysis),
    ):
        assert record is not None
        (folder / f"{name}.json").write_bytes(record.to_json())
    alone = [QuantizationBundle(bad("label"), _quantization())]
    (folder / "report.html").write_text(render_page([bundle, hostile_bundle()], alone), "utf-8")


def model_file(folder: Path, _small_model: SmallModel) -> None:
    """A file of the package onnx that was never optimized."""
    source = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
    write_page([source], folder / "report.html")


def quantized(folder: Path, _small_model: SmallModel) -> None:
    """A quantization alone."""
    sardonyx.report(sample_choice(), folder / "report.html")


def hostile_bundle() -> RunBundle:
    """A bundle of all records of the same two files, in which every text is hostile."""
    run = replace(sample_run(), tuning=sample_tuning(), notes=("a note",))
    bundle = poisoned(
        RunBundle(
            "label",
            run,
            export=sample_export(run.source.sha256),
            bench=_bench(),
            profile=_profile(),
            analysis=_analysis(),
            placements=placements_of_run(),
            notes=("a note of the bundle",),
        )
    )
    return replace(bundle, quantization=_quantization())


def _quantization() -> Quantization:
    made = sample_choice()
    return replace(poisoned(made), choice=poisoned(made.choice))


def _bench() -> Benchmark:
    benchmark = sample_benchmark(files=2, notes=("a note of bench",))
    return replace(benchmark, files=tuple(replace(each, path=each.label, sha256=None) for each in benchmark.files))


def _profile() -> Profile:
    profile = sample_profile()
    before, after = profile.models
    return replace(
        profile, models=(replace(before, path=BEFORE, label=BEFORE), replace(after, path=AFTER, label=AFTER))
    )


def _analysis() -> Analysis:
    analysis = sample_analysis()
    before, after, *_ = analysis.forms
    return replace(analysis, forms=(replace(before, name=BEFORE), replace(after, name=AFTER)))


MAKERS: dict[str, Callable[[Path, SmallModel], None]] = {
    each.__name__: each for each in (transformer, two, deep, hostile, foreign, records, model_file, quantized)
}
