"""`sardonyx study` on small graphs, from folder to folder."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from sardonyx.cli.main import run

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[2,3] x) => (float[2,3] y) { a = Identity(x)  y = Relu(a) }"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    onnx.save(onnx.parser.parse_model(TEXT), folder / "good.onnx")
    (folder / "broken.onnx").write_bytes(b"no model at all")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and "cells" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.slow
def test_a_folder_is_studied_into_a_folder(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["study", str(models), "-o", str(out), "--only", "order", "--workers", "1"]
    assert run([*command, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["models"] == ["broken", "good"]
    assert [row[:3] for row in record["tables"][0]["rows"]] == [["good", index, "same"] for index in range(3)]
    assert {failure["model"] for failure in record["failures"]} == {"broken"}
    first = contents(out)
    assert {"study.json", "findings.md", "tables/order.csv", "tables/order.md", "tables/order.json"} <= first.keys()
    assert json.loads(first["study.json"]) == record
    assert run([*command, "--quiet"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    again = contents(out)
    assert {name: data for name, data in again.items() if name.startswith("tables")} == {
        name: data for name, data in first.items() if name.startswith("tables")
    }
    (out / "tables" / "old.csv").touch()
    assert run([*command, "--fail-if", "failures>0"]) == 4
    assert str(out) in capsys.readouterr().out
    assert not (out / "tables" / "old.csv").exists()  # left by a run with more experiments


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "there is nothing to study"),
        (["nowhere.onnx"], 2, "nowhere.onnx does not exist"),
        (["models", "--only", "ordr"], 2, "there is no experiment 'ordr'"),
        (["--zoo", "large"], 2, "there is no zoo 'large'"),
        (["models", "-o", "models"], 1, "is not empty and is not a study"),
        (["models", "--seconds", "soon"], 2, "'soon' is not a length of time"),
    ],
)
def test_invalid_requests_give_one_line(
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(models.parent)
    assert run(["study", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.splitlines()[0]
    assert len(captured.err.splitlines()) == 2
