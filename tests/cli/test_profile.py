"""`sardonyx profile` from the command line: what it prints, writes, refuses and exits with; no time is asserted."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cli.conftest import Result
from reporting.gate.sample_records import write_model
from sardonyx.records.bench import Profile

Command = Callable[..., Result]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "b.onnx", scale=2.0)
    return write_model(tmp_path / "a.onnx")


def test_two_files_are_shown_side_by_side(command: Command, model: Path) -> None:
    result = command("profile", "a.onnx", "b.onnx", "--runs", "3", "--size", "batch=2")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("a.onnx → b.onnx\n  measured  median of 3 runs on cpu, 1 thread")
    assert "batch=2" in result.out
    assert "Modules, milliseconds a run" in result.out
    assert result.out.splitlines()[-1].endswith("MatMul (100.0 %)")  # alone, or fused with the Transpose


def test_every_file_is_written_and_none_is_overwritten(command: Command, model: Path) -> None:
    places = ["--trace", "t.json", "--svg", "i.svg", "--record", "r.json"]
    assert command("profile", "a.onnx", "--runs", "2", "-q", *places).code == 0
    assert json.loads(Path("t.json").read_text())["traceEvents"]
    assert ElementTree.parse("i.svg").getroot().tag.endswith("svg")
    profile = Profile.from_json(Path("r.json").read_bytes())
    assert [each.label for each in profile.models] == ["a.onnx"]
    again = command("profile", "a.onnx", "--runs", "2", "--trace", "t.json")
    assert (again.code, again.out) == (1, "")
    assert command("profile", "a.onnx", "--runs", "2", "-q", "--trace", "t.json", "--force").code == 0


def test_other_output_formats(command: Command, model: Path) -> None:
    assert Profile.from_json(command("profile", "a.onnx", "--runs", "1", "--json").out).models[0].runs == 1
    assert command("profile", "a.onnx", "--runs", "1", "--format", "markdown").out.startswith("# a.onnx\n")
    lines = list(csv.DictReader(io.StringIO(command("profile", "a.onnx", "--runs", "1", "--format", "csv").out)))
    assert {line["scope"] for line in lines} == {"model", "module", "kernel"}


def test_gates_read_the_last_file(command: Command, model: Path) -> None:
    result = command("profile", "a.onnx", "b.onnx", "--runs", "2", "-q", "--fail-if", "attributed<97%")
    assert result.code == 0
    failed = command("profile", "a.onnx", "--runs", "2", "-q", "--fail-if", "kernels>=1", "--fail-if", "kernel_ms<0")
    assert failed.code == 4
    assert failed.err.startswith("error: gate not met: kernels>=1 (kernels is ")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--size", "seq=3"], 2, "seq"),
        (["--size", "batch"], 2, "not a size"),
        (["--provider", "abacus"], 2, "abacus"),
        (["--ort-level", "most"], 2, "ort-level"),
        (["--runs", "0"], 2, "--runs"),
        (["--trace", "x", "--svg", "./x"], 2, "same file"),
        (["--svg", "nowhere/x.svg"], 1, "no folder"),
        (["--json", "--format", "csv"], 2, "--format"),
        (["--fail-if", "speed>1"], 2, "speed"),
        (["missing.onnx"], 2, "missing.onnx"),
    ],
)
def test_invalid_requests_are_refused_in_one_line(
    command: Command, model: Path, options: list[str], code: int, message: str
) -> None:
    before = sorted(Path().iterdir())
    refused = command("profile", "a.onnx", *options)
    assert (refused.code, refused.out) == (code, "")
    assert message in refused.err.splitlines()[0]
    assert sorted(Path().iterdir()) == before
