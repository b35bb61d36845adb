"""The demo's commands fit together, and it stops at the first that fails, with its exit code.

`make demo` runs the whole tour; the tests use real but quick commands instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest

from commands import subcommand
from sardonyx.cli import options
from sardonyx.verbs import demo


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    """Two models that compute different functions."""
    pair = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for path, operator in zip(pair, ("Relu", "Neg"), strict=True):
        text = f'<ir_version: 10, opset_import: ["" : 18]> g (float[4] x) => (float[4] y) {{ y = {operator}(x) }}'
        onnx.save(onnx.parser.parse_model(text), path)
    return pair


def output_lines(folder: Path, monkeypatch: pytest.MonkeyPatch, *commands: list[str]) -> list[str]:
    """The output of the demo for these commands."""
    lines: list[str] = []
    monkeypatch.setattr(demo, "steps", lambda _: [demo.DemoStep("what it is for", one) for one in commands])
    try:
        demo.run(folder, say=lines.append)
    except demo.Stopped as stopped:
        lines.append(f"{stopped.exit_code}: {stopped.message}")
    return lines


def test_every_command_parses_and_reads_files_that_earlier_commands_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "is_there", lambda _path: True)  # the commands are parsed, not run
    written: set[Path] = set()
    for step in demo.steps(tmp_path):
        verb, *words = step.arguments
        asked = subcommand(verb).make_context(verb, list(words)).params
        assert asked["force"], "an earlier demo is replaced"
        for name in ("model", "sources"):
            read = asked.get(name) or ()
            for path in [read] if isinstance(read, Path) else [one for one in read if isinstance(one, Path)]:
                assert any(path in (file, file.parent) for file in written), f"{verb} reads {path}"
        written |= {Path(asked[name]) for name in ("output", "record", "svg") if asked.get(name)}
        assert all(path.is_relative_to(tmp_path) for path in written)
    assert tmp_path / "report.html" in written


@pytest.mark.slow
def test_it_shows_each_command_its_last_lines_and_where_the_files_are(
    tmp_path: Path, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, small = tmp_path / "demo", tmp_path / "demo" / "cnn" / "resnet-tiny.small.onnx"
    lines = output_lines(folder, monkeypatch, ["optimize", str(models[0]), "-o", str(small)], ["inspect", str(small)])
    assert lines[:2] == ["[1/2] what it is for", f"$ sardonyx optimize {models[0]} -o {small}"]
    assert lines[2].startswith("1 node as before, ")
    assert lines[2].endswith(f"→ {small}\n")
    assert lines[5].startswith("1 node, ")
    log = (folder / "log.txt").read_text()
    assert lines[1] in log
    assert "\n  operator " in log, "the whole output is kept"
    assert any(str(small) in line and "verified against" in line for line in lines[6:])
    assert not any("bench.json" in line for line in lines), "what is not there is not listed"


@pytest.mark.slow
def test_it_stops_with_the_first_command_that_fails(
    tmp_path: Path, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = map(str, models)
    lines = output_lines(tmp_path / "demo", monkeypatch, ["verify", first, second], ["passes"])
    assert lines[-1] == "3: the demo stopped: `sardonyx verify` failed with exit code 3"
    assert not any("passes" in line for line in lines)
    lines = output_lines(tmp_path / "demo", monkeypatch, ["inspect", str(tmp_path / "nowhere.onnx")])
    assert lines[-1].startswith("2: ")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="the demo starts from torch models")
def test_an_interrupt_ends_it_at_once_with_a_message(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "sardonyx", "demo", str(tmp_path / "demo")]
    with subprocess.Popen(
        asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("[1/8] ")
        assert process.stdout.readline().startswith("$ sardonyx export ")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the demo and to its command
        rest, errors = process.stdout.read(), process.stderr.read()
        assert process.wait(60) == 130
    assert "interrupted" in errors
    assert "[2/8]" not in rest
    assert not list(tmp_path.rglob("*.onnx"))
