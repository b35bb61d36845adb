"""Several models in one command, models on standard input and output, and which argument is the output."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from cli.conftest import Result

RECORDS = ["a.json", "b.json", "summary.json"]  # nothing of the model that failed
Command = Callable[..., Result]
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,3] y) { a = Transpose (x) b = Transpose (a) y = Relu (b) }
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    for name in ("a.onnx", "b.onnx"):
        onnx.save(onnx.parser.parse_model(MODEL), tmp_path / name)
    (tmp_path / "bad.onnx").write_bytes(b"")
    return [Path("a.onnx"), Path("bad.onnx"), Path("b.onnx")]


class _Pipe:
    """A standard stream with bytes."""

    def __init__(self, data: bytes = b"") -> None:
        self.buffer = io.BytesIO(data)

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        return self.buffer.write(text.encode())

    def flush(self) -> None:
        pass


@pytest.mark.medium
def test_a_failing_model_is_named_and_does_not_stop_the_others(command: Command, models: list[Path]) -> None:
    result = command("optimize", *models, "--out-dir", "small")
    assert result.code == 1
    heading, *rows = result.out.splitlines()[:4]
    assert heading.split()[:3] == ["model", "nodes", "change"]
    assert [row.split()[0] for row in rows] == ["a.onnx", "bad.onnx", "b.onnx"]
    assert "3 → 1" in rows[0]
    assert "failed" in rows[1]
    assert result.out.splitlines()[-1] == "3 models: 2 optimized, 1 failed"
    assert result.err.startswith("error: bad.onnx is empty\nhint: ")
    assert sorted(path.name for path in Path("small").iterdir() if path.suffix == ".onnx") == ["a.onnx", "b.onnx"]
    assert sorted(path.name for path in Path("small").glob("?*.json") if "status" not in path.name) == RECORDS


@pytest.mark.medium
def test_json_is_a_list_of_records_and_failures(command: Command, models: list[Path]) -> None:
    result = command("optimize", *models, "missing.onnx", "--out-dir", "small", "--json")
    first, bad, second, missing = json.loads(result.out)
    assert result.code == 1
    assert (first["record"], first["after"]["nodes"], second["result"]["path"]) == ("run", 1, "small/b.onnx")
    assert bad == {
        "path": "bad.onnx",
        "error": "bad.onnx is empty",
        "hint": "export or download it again",
        "exit_code": 1,
    }
    assert "there is no such file" in missing["error"]


@pytest.mark.medium
def test_inspect_prints_one_row_a_model(command: Command, models: list[Path]) -> None:
    result = command("inspect", *models)
    assert (result.code, result.out.splitlines()[-1]) == (1, "3 models: 2 read, 1 failed")
    assert "architecture (guess)" in result.out.splitlines()[0]
    records = json.loads(command("inspect", "a.onnx", "b.onnx", "--json").out)
    assert [record["path"] for record in records] == ["a.onnx", "b.onnx"]
    verbose = command("inspect", "a.onnx", "b.onnx", "-v")
    assert verbose.code == 0
    assert verbose.out.count("\nInterface\n") == 2
    assert command("inspect", "a.onnx", "b.onnx", "-q").out == "2 models: 2 read\n"


@pytest.mark.medium
def test_the_exit_code_is_that_of_the_worst_model(command: Command, models: list[Path]) -> None:
    gates = ("--fail-if", "nodes>0")
    result = command("inspect", "a.onnx", "b.onnx", *gates, "--summary", "page.md")
    assert result.code == 4
    assert result.err.splitlines()[0] == "error: a.onnx: gate not met: nodes>0 (nodes is 3)"
    assert Path("page.md").read_text().count("nodes>0") == 2
    assert command("inspect", *models, *gates).code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["a.onnx", "b.onnx"],
        ["a.onnx", "b.onnx", "-f"],
        ["a.onnx", "b.onnx", "c.onnx"],
        ["a.onnx", "b.onnx", "-o", "c.onnx"],
        ["a.onnx", "-o", "c.onnx", "--out-dir", "small"],
        ["a.onnx", "b.onnx", "--out-dir", "."],
        ["a.onnx", "b.onnx", "--out-dir", ".", "-f"],
        ["a.onnx", "--out-dir", ".", "-f"],
        ["a.onnx", "./a.onnx", "--out-dir", "small"],
        ["a.onnx", "-", "--out-dir", "small"],
        ["a.onnx", "b.onnx", "--out-dir", "small", "--record", "r.json"],
        ["a.onnx", "b.onnx", "--out-dir", "small", "--run", "run"],
        ["a.onnx", "-o", "-", "--json"],
        ["a.onnx", "-o", "-", "--external-data"],
        ["a.onnx", "-o", "-", "--run", "run"],
    ],
)
def test_what_is_not_clear_is_an_error_and_writes_nothing(
    command: Command, models: list[Path], arguments: list[str]
) -> None:
    before = {path: path.read_bytes() for path in Path().iterdir()}
    result = command("optimize", *arguments)
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 2
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


@pytest.mark.medium
def test_a_second_name_is_the_output_if_there_is_no_such_file(command: Command, models: list[Path]) -> None:
    assert command("optimize", "a.onnx", "new.onnx", "-q").code == 0
    assert len(onnx.load("new.onnx").graph.node) == 1
    again = command("optimize", "a.onnx", "new.onnx", "-q")
    assert again.code == 2
    assert "-o" in again.err
    typo = command("optimize", "aa.onnx", "other.onnx")
    assert (typo.code, "did you mean" in typo.err) == (2, True)
    assert command("optimize", "a.onnx", "b.onnx", "--dry-run").code == 0


def test_a_folder_is_made_for_one_model_too(command: Command, models: list[Path]) -> None:
    assert command("optimize", "a.onnx", "--out-dir", "deep/small", "-q").code == 0
    assert Path("deep/small/a.onnx").is_file()
    again = command("optimize", "a.onnx", "b.onnx", "--out-dir", "deep/small")
    assert (again.code, Path("deep/small/b.onnx").exists()) == (1, False), "an existing file is reported first"


def test_streams_carry_the_model_and_the_report_goes_to_standard_error(
    command: Command, models: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command("optimize", "a.onnx", "-o", "small.onnx", "-q")
    pipes = (_Pipe(Path("a.onnx").read_bytes()), _Pipe())
    monkeypatch.setattr(sys, "stdin", pipes[0])
    monkeypatch.setattr(sys, "stdout", pipes[1])
    result = command("optimize", "-", "-o", "-")
    assert result.code == 0
    assert pipes[1].buffer.getvalue() == Path("small.onnx").read_bytes()
    assert result.err.splitlines()[-1].endswith("→ -")


def test_inspect_reads_standard_input(command: Command, models: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", _Pipe(Path("a.onnx").read_bytes()))
    assert json.loads(command("inspect", "-", "--json").out)["path"] == "-"
    monkeypatch.setattr(sys, "stdin", _Pipe())
    empty = command("inspect", "-")
    assert (empty.code, empty.err.splitlines()[0]) == (1, "error: standard input is empty")


def test_external_data_cannot_come_by_standard_input(
    command: Command, models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[600] x) => (float[600] y) { y = Add (x, w) }'
    model: Any = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.helper.make_tensor("w", 1, [600], bytes(2400), raw=True))
    onnx.save(model, "big.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    monkeypatch.setattr(sys, "stdin", _Pipe(Path("big.onnx").read_bytes()))
    result = command("optimize", "-", "out.onnx")
    assert (result.code, Path("out.onnx").exists()) == (1, False)
    assert "weights in another file: weights.bin" in result.err
