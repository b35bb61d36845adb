"""Defaults of options from sardonyx.toml and pyproject.toml: the nearest file counts, and the command line wins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

from sardonyx.cli.main import run

Command = Callable[..., Any]
MODEL = '<ir_version: 10, opset_import: ["": 20]> agraph (float[N] x) => (float[N] y) { y = Relu(x) }'
OPTIMIZE = ("optimize", "m.onnx", "-o", "small.onnx", "--force")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with a model."""
    inner = tmp_path / "models"
    inner.mkdir()
    onnx.save(onnx.parser.parse_model(MODEL), inner / "m.onnx")
    monkeypatch.chdir(inner)
    return inner


def settings(command: Command, *words: object) -> dict[str, Any]:
    """Return which options the record of a command says that a file set, and the file."""
    environment = json.loads(command(*OPTIMIZE, "--json", *words).out)["environment"]
    assert environment["command"] == ["sardonyx", *OPTIMIZE, "--json", *words]
    return {"configured": environment["configured"], "configuration": environment["configuration"]}


def test_the_nearest_file_counts_and_the_record_names_it(folder: Path, command: Command) -> None:
    assert settings(command) == {"configured": {}, "configuration": ""}
    above = folder.parent / "pyproject.toml"
    above.write_text(
        '[project]\nname = "p"\n[tool.sardonyx]\nseed = 3\nthreads = 1\n[tool.sardonyx.optimize]\nseed = 4\n'
    )
    expected = {"seed": 4, "threads": 1}
    assert settings(command) == {"configured": expected, "configuration": str(above)}, (
        "a table of the command comes last"
    )
    (folder / "pyproject.toml").write_text('[project]\nname = "no table for us"\n')
    assert settings(command)["configuration"] == str(above)
    (folder / "sardonyx.toml").write_text("[optimize]\nmax-opset = 20\n")
    assert settings(command) == {"configured": {"max_opset": 20}, "configuration": str(folder / "sardonyx.toml")}


def test_the_command_line_wins(folder: Path, command: Command) -> None:
    (folder / "sardonyx.toml").write_text('[optimize]\nmax-opset = 20\nverify = "off"\nskip = ["no-such-pass"]\n')
    assert command(*OPTIMIZE).code == 2
    done = command(*OPTIMIZE, "--json", "--verify", "end", "--skip", "fold-constants", "--keep-opset")
    record = json.loads(done.out)
    assert (done.code, record["verdict"]["passed"], record["options"]["keep_opset"]) == (0, True, True)
    assert record["environment"]["configured"] == {}


def test_options_that_need_another_one_are_defaults_for_when_it_is_given(folder: Path, command: Command) -> None:
    (folder / "sardonyx.toml").write_text('target = "ort"\n[optimize]\nseconds = 1\nsize = ["N=4"]\n')
    assert command("inspect", "m.onnx").code == 0
    assert command("inspect", "m.onnx", "--target", "ort").code == 2
    assert command(*OPTIMIZE).code == 0
    assert json.loads(command("inspect", "m.onnx", "--opportunities", "--json").out)["target"] == "ort"


def test_gates_and_paths(folder: Path, command: Command) -> None:
    table = '[tool.sardonyx.inspect]\nfail-if = ["nodes>baseline"]\nbaseline = "ci/base.json"\n'
    (folder.parent / "pyproject.toml").write_text(table)
    (folder.parent / "ci").mkdir()
    base = json.loads(
        command("inspect", "m.onnx", "--json", "--fail-if", "nodes>9", "--baseline", "m.onnx").out or "{}"
    )
    assert base == {}, "a baseline on the command line replaces that of the file, and this one is no record"
    (folder.parent / "pyproject.toml").rename(folder / "aside.toml")
    (folder.parent / "ci" / "base.json").write_text(command("inspect", "m.onnx", "--json").out)
    (folder / "aside.toml").rename(folder.parent / "pyproject.toml")
    assert command("inspect", "m.onnx").code == 0
    two = MODEL.replace("y = Relu(x)", "a = Relu(x)  y = Neg(a)")
    onnx.save(onnx.parser.parse_model(two), folder / "m.onnx")
    assert command("inspect", "m.onnx").code == 4


@pytest.mark.medium
def test_many_models_get_what_the_file_says(folder: Path, command: Command) -> None:
    (folder / "sardonyx.toml").write_text("[optimize]\nseed = 7\nworkers = 1\n")
    assert command("optimize", "m.onnx", "--out-dir", "one").code == 0
    assert run(["optimize", "*.onnx", "--out-dir", "out", "-q"]) == 0
    assert json.loads((folder / "out" / "m.json").read_text())["options"]["seed"] == 7
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert summary["environment"]["configured"] == {"seed": 7, "workers": 1}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("thread = 2", "sardonyx.toml: thread: there is no such option", "did you mean threads?"),
        ('[optimize]\ntraget = "ort"', "optimize.traget: there is no such option", "did you mean target?"),
        ("[optimise]\nseed = 2", "optimise: there is no such option", "did you mean optimize"),
        ('threads = "many"', "threads = 'many' is not valid: 'many' is not a valid int", ""),
        ("threads = 0", "threads = 0 is not valid", ""),
        ("threads = [1, 2]", "is not valid: it has another type", ""),
        ("threads = true", "is not valid: it has another type", ""),
        ('[optimize]\nkeep-opset = "yes"', "is not valid: it has another type", ""),
        ("force = true", "force can only be given on the command line", ""),
        ('custom-ops = ["./evil.so"]', "custom-ops can only be given on the command line", ""),
        ('[optimize]\nonly = ["x.py:load"]', "optimize.only is code, which would run here", "on the command line"),
        ("seed =", "sardonyx.toml cannot be read", ""),
        ("optimize = 3", "optimize: there is no such option", ""),
    ],
)
def test_a_mistake_in_the_file_is_a_usage_error(
    folder: Path, command: Command, text: str, message: str, hint: str
) -> None:
    (folder / "sardonyx.toml").write_text(text + "\n")
    done = command(*OPTIMIZE)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert hint in done.err
    assert command("optimize", "--help").code == 0, "help does not need the file"


def test_what_other_commands_have_is_ignored(folder: Path, command: Command) -> None:
    (folder / "sardonyx.toml").write_text('size = ["N=4"]\nout-dir = "no"\n[bench]\nanything = 1\n')
    assert command("adopt", "m.onnx").code in (0, 1), "it has no --size"
    assert command("passes", "-q").code == 2, "a command without an option says so as before"
    assert command("passes").code == 0
