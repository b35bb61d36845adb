"""`sardonyx report` and `optimize --run` from the command line: what they write, print, refuse and exit with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Result
from reporting.gate.sample_records import write_model
from reporting.sample_run import sample_run
from reporting.sample_run_bundle import bench_of_run
from sardonyx.ir.device import shown_names

Command = Callable[..., Result]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_bytes(sample_run().to_json())
    return path


def test_a_page_is_written_beside_the_run_and_its_path_is_printed(command: Command, record: Path) -> None:
    done = command("report", record)
    page = record.parent / "report.html"
    assert done.code == 0
    assert done.out.startswith(f"model → {page} (")
    assert done.out.count("\n") == 1
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    again = command("report", record.parent)  # the folder with the page in it
    assert again.code == 1
    assert "report.html exists" in again.err
    assert "--force" in again.err
    assert command("report", record.parent, "--force").code == 0


def test_markdown_goes_to_standard_output_or_into_a_file(command: Command, record: Path) -> None:
    text = command("report", record, "--format", "markdown").out
    assert text.startswith("### ✅ model: 324 → 187 nodes")
    place = record.parent / "comment.md"
    assert command("report", record, "-o", place).code == 0
    assert place.read_text(encoding="utf-8") == text


def test_records_beside_the_run_are_shown(command: Command, record: Path) -> None:
    bench = record.parent / "bench.json"
    bench.write_bytes(bench_of_run().to_json())
    assert "0.877" not in command("report", record, "--format", "markdown").out
    assert "0.877" in command("report", record, bench, "--format", "markdown").out
    assert "0.877" in command("report", record.parent, "--format", "markdown").out


def test_plots_are_written_into_a_folder(command: Command, record: Path) -> None:
    place = record.parent / "pictures"
    done = command("report", record, "--format", "svg")
    assert done.code == 0
    assert f"→ {place} (" in done.out
    assert {each.suffix for each in place.iterdir()} == {".svg"}
    again = command("report", record, "--format", "svg")
    assert again.code == 1
    assert "exists" in again.err
    assert command("report", record, "--format", "svg", "-f").code == 0
    taken = command("report", record, "--format", "svg", "-o", record)
    assert taken.code == 1
    assert "is a file" in taken.err


def test_several_runs_and_two_compared(command: Command, record: Path) -> None:
    other = record.parent / "other.json"
    other.write_bytes(record.read_bytes())
    page = record.parent / "page.html"
    assert command("report", record, other, "-o", page).out.startswith("model (run), model (other) → ")
    assert 'data-section="overview"' in page.read_text(encoding="utf-8")
    compared = command("report", other, "--baseline", record, "--format", "markdown")
    assert compared.out.startswith("### What changed\n\nThe same result both times")
    page = command("report", other, "--baseline", record, "-o", record.parent / "changed.html")
    assert page.out.startswith("model (run), model (other) → ")  # the old one first
    alone = command("report", other, record, "--baseline", record)
    assert alone.code == 2
    assert alone.err.startswith("error: two runs can be compared, not 3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench.json",), "bench.json is a benchmark"),
        (("nothing.json",), "nothing.json cannot be read"),
        (("run.json", "-o", "page.pdf"), "the format of page.pdf is unknown"),
        (("run.json", "--format", "pdf"), "'pdf' is not one of"),
        (("run.json", "--baseline", "run.json", "--format", "svg"), "a comparison has no pictures"),
        ((), "Missing argument"),
    ],
)
def test_invalid_options_are_refused_in_one_line(
    command: Command, record: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    (record.parent / "bench.json").write_bytes(bench_of_run().to_json())
    monkeypatch.chdir(record.parent)
    done = command("report", *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 2
    assert not done.out


@pytest.mark.slow
def test_optimize_writes_a_run_folder(command: Command, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx")
    small, folder = tmp_path / "small.onnx", tmp_path / "today"
    asked = ("optimize", model, "-o", small, "--run", folder, "--size", "batch=2")
    done = command(*asked, "--seconds", "0.2s")
    assert done.code == 0, done.err
    assert done.out.endswith(f"results in {folder} (open {folder / 'report.html'})\n")
    names = {"analysis.json", "bench.json", "certificate.json.gz", "profile.json", "report.html", "run.json"}
    names |= {f"placement-{device}-{side}.json" for device in shown_names() for side in ("before", "after")}
    assert {each.name for each in folder.iterdir()} == names
    assert json.loads((folder / "bench.json").read_bytes())["points"][0]["sizes"] == {"batch": 2}
    again = command(*asked)
    assert again.code == 1
    assert "exists" in again.err
    other = command("optimize", write_model(tmp_path / "other.onnx"), "-o", tmp_path / "o.onnx", "--run", folder)
    assert other.code == 2
    assert "contains a run of" in other.err
    assert not (tmp_path / "o.onnx").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--run", "r", "--dry-run"), "contradict"),
        (("--run", "r", "--record", "r/run.json"), "name the same file"),
        (("--run", "r", "--size", "seq=3"), "no input has a dynamic dimension 'seq'"),
        (("--size", "batch=3"), "--size is for measurements"),
        (("--seconds", "3s"), "--seconds is for measurements"),
    ],
)
def test_measurements_that_cannot_run_are_refused_before_any_work(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], message: str
) -> None:
    write_model(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    done = command("optimize", "model.onnx", "-o", "small.onnx", *more)
    assert done.code == 2
    assert message in done.err
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]
