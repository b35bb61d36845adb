"""Run folders: all files of one run together; a part that fails affects no other, and runs are not mixed."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
from msgspec.structs import replace

import sardonyx
from reporting.gate.sample_records import write_model
from reporting.sample_quantization import sample_choice
from reporting.sample_run import sample_run
from sardonyx.errors import OutputError, UsageError
from sardonyx.records.run import Run
from sardonyx.reporting.run_bundle import record_groups, run_bundles
from sardonyx.verbs.optimize.pipeline import Optimized
from sardonyx.verbs.optimize.run_folder import add_quantization, check, check_quantization, fill

SHORT = {"seconds": 0.2, "sizes": {"batch": 3}}
PLACED = [
    f"placement-{device}-{side}.json" for device in ("cuda", "openvino", "webgpu") for side in ("after", "before")
]
LEFT = ["analysis.json", "bench.json", *PLACED, "profile.json", "report.html", "run.json"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Optimized, Path]:
    """A run and its run folder."""
    place = tmp_path_factory.mktemp("runs")
    run = sardonyx.optimize(
        write_model(place / "model.onnx"), place / "small.onnx", options=sardonyx.OptimizeOptions(hashes=True)
    )
    assert fill(place / "today", run, conditions=SHORT).notes == run.notes
    return run, place / "today"


@pytest.mark.slow
def test_everything_is_there_and_belongs_together(made: tuple[Optimized, Path]) -> None:
    run, folder = made
    assert sorted(each.name for each in folder.iterdir()) == LEFT
    (bundle,) = run_bundles(record_groups([folder]))
    assert bundle.notes == ()
    assert bundle.point is not None
    assert bundle.point.sizes == {"batch": 3}
    assert bundle.profiled is not None
    assert bundle.forms is not None
    assert list(bundle.devices) == ["cuda", "openvino", "webgpu"]
    assert Run.from_json((folder / "run.json").read_bytes()) == Run.from_json(run.to_json())
    assert (folder / "report.html").read_text(encoding="utf-8") == sardonyx.report(folder).text


@pytest.mark.medium
def test_the_profile_has_the_times_of_the_benchmark(tmp_path: Path) -> None:
    run = sardonyx.optimize(write_model(tmp_path / "m.onnx"), tmp_path / "s.onnx", verify="off")
    fill(tmp_path / "run", run, conditions=SHORT)
    profile = sardonyx.Profile.from_json((tmp_path / "run" / "profile.json").read_bytes())
    timed = sardonyx.Benchmark.from_json((tmp_path / "run" / "bench.json").read_bytes())
    medians = [1000 * timing.median for timing in timed.points[0].timings]
    assert [model.plain_ms for model in profile.models] == medians  # one time for both, not two


@pytest.mark.medium
def test_an_earlier_run_is_kept_without_force(made: tuple[Optimized, Path]) -> None:
    run, folder = made
    assert run.source.path is not None
    with pytest.raises(OutputError, match=r"run\.json exists"):
        check(folder, run.source.path)
    with pytest.raises(UsageError, match=r"contains a run of .*model\.onnx"):
        check(folder, "other.onnx")
    check(folder, "other.onnx", force=True)


def test_an_invalid_run_folder_is_refused_before_any_work(made: tuple[Optimized, Path], tmp_path: Path) -> None:
    run, _ = made
    assert run.source.path is not None
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file"):
        check(tmp_path / "file", run.source.path)
    with pytest.raises(UsageError, match="no input has a dynamic dimension 'seq'"):
        check(tmp_path / "new", run.source.path, {"seq": 3})
    with pytest.raises(UsageError, match="models in memory"):
        fill(tmp_path / "new", replace(run, result=replace(run.result, path=None)))
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_failing_part_affects_no_other_and_no_stale_file_stays(made: tuple[Optimized, Path], tmp_path: Path) -> None:
    run, folder = made
    shutil.copytree(folder, tmp_path / "again")
    broken = onnx.load(str(run.result.path))
    broken.graph.node[0].domain, broken.opset_import[0].domain = "nobody.knows", ""
    broken.opset_import.append(onnx.helper.make_opsetid("nobody.knows", 1))
    onnx.save(broken, tmp_path / "small.onnx")
    path = str(tmp_path / "small.onnx")
    left = fill(tmp_path / "again", replace(run, result=replace(run.result, path=path)), conditions=SHORT, force=True)
    assert [note.partition(":")[0] for note in left.notes if ": " in note][:2] == ["not timed", "no time by module"]
    assert not (tmp_path / "again" / "bench.json").exists()
    assert (tmp_path / "again" / "analysis.json").exists()
    assert Run.from_json((tmp_path / "again" / "run.json").read_bytes()).notes == left.notes
    assert "not timed" in (tmp_path / "again" / "report.html").read_text(encoding="utf-8")


def test_a_quantization_is_written_alone_or_joins_a_run(tmp_path: Path) -> None:
    alone, joined = tmp_path / "alone", tmp_path / "run"
    check_quantization(alone)
    add_quantization(alone, sample_choice())
    assert sorted(path.name for path in alone.iterdir()) == ["quantization.json", "report.html"]
    with pytest.raises(OutputError, match=r"quantization\.json exists"):
        check_quantization(alone)
    check_quantization(alone, force=True)
    joined.mkdir()
    (joined / "run.json").write_bytes(sample_run().to_json())
    (joined / "report.html").write_text("of the run")
    check_quantization(joined)
    add_quantization(joined, sample_choice())
    page = (joined / "report.html").read_text("utf-8")
    assert all(f'<section data-section="{each}"' in page for each in ("verdict", "precision"))
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file"):
        check_quantization(tmp_path / "file")
