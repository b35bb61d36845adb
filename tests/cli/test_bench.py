"""`sardonyx bench` from the command line: what it prints, writes, refuses and exits with."""

from __future__ import annotations

import importlib.resources
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pytest

import sardonyx
from benched import PRODUCT, SLOWER, written
from cli.conftest import Result
from reporting.sample_bench import sample_benchmark
from sardonyx.cli import options
from sardonyx.cli.options import LEVELS, parse_duration
from sardonyx.errors import UsageError
from sardonyx.records.bench import Benchmark
from sardonyx.runtime.timed import Level

Command = Callable[..., Result]
SHORT = ("--seconds", "0.05", "--starts", "0")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    written(tmp_path / "a.onnx", PRODUCT)
    written(tmp_path / "b.onnx", SLOWER)
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    written(tmp_path / "unknown.onnx", "a = MatMul(x, w) y = some.where.Strange(a)")
    np.savez(tmp_path / "x.npz", x=np.ones((1, 2, 8), np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[object, ...], dict[str, object]]]:
    """A stub of the verb, and the arguments of its calls."""
    asked: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def answer(*args: object, **kwargs: object) -> Benchmark:
        asked.append((args, kwargs))
        return sample_benchmark()

    monkeypatch.setattr(sardonyx, "bench", answer, raising=False)
    monkeypatch.setattr(options, "is_there", lambda _path: True)  # the stub reads no file
    return asked


@pytest.mark.medium
def test_files_are_timed_and_record_and_plot_are_written(command: Command, folder: Path) -> None:
    result = command("bench", "a.onnx", "b.onnx", *SHORT, "--json", "--record", "r.json", "--svg", "b.svg")
    assert (result.code, result.err) == (0, "")
    record = json.loads(result.out)
    schema = importlib.resources.files("sardonyx.records") / "schemas" / "bench.schema.json"
    jsonschema.validate(record, json.loads(schema.read_text(encoding="utf-8")))
    assert [len(each["seconds"]) for each in record["points"][0]["timings"]] == [round_count(record)] * 2
    assert Benchmark.from_json((folder / "r.json").read_bytes()) == Benchmark.from_json(result.out)
    assert ElementTree.parse(folder / "b.svg").getroot().tag.endswith("svg")


def round_count(record: dict[str, Any]) -> int:
    return record["points"][0]["timings"][1]["against_first"]["rounds"]


def test_every_option_reaches_the_verb(
    command: Command, staged: list[tuple[tuple[object, ...], dict[str, object]]]
) -> None:
    options = ["--sweep", "seq=16,128", "--sweep", "batch=1,8", "--sweep", "seq=512", "--size", "past=3"]
    more = [
        "--seconds",
        "2m",
        "--threads",
        "4",
        "--provider",
        "cuda",
        "--ort-level",
        "basic",
        "--isolate",
        "--clock",
        "cpu",
    ]
    assert command("bench", "a", "b", *options, *more, "--starts", "1", "--seed", "7", "--inputs", "x.npz").code == 0
    ((args, kwargs),) = staged
    assert args == ([Path("a"), Path("b")],)
    assert kwargs["sweep"] == {"seq": (16, 128, 512), "batch": (1, 8)}
    assert (kwargs["sizes"], kwargs["seconds"], kwargs["threads"]) == ({"past": 3}, 120.0, 4)
    assert (kwargs["provider"], kwargs["level"], kwargs["isolate"]) == ("cuda", "basic", True)
    assert kwargs["clock"] == "cpu"
    assert (kwargs["starts"], kwargs["seed"], kwargs["inputs"]) == (1, 7, Path("x.npz"))


def test_output_formats(command: Command, staged: list[object]) -> None:
    assert command("bench", "a").out.splitlines()[-1].startswith("small.onnx is 12.3 % faster than model.onnx")
    assert command("bench", "a", "-q").out.count("\n") == 1
    assert command("bench", "a", "--format", "markdown").out.startswith("# model.onnx and small.onnx")
    assert command("bench", "a", "--format", "csv").out.startswith("file,batch,seq,round,seconds\n")
    assert "  runtime   onnxruntime" in command("bench", "a", "-v").out


def test_gates_read_the_last_file(command: Command, staged: list[object]) -> None:
    assert command("bench", "a", "-q", "--fail-if", "latency_ratio>1.05").code == 0
    failed = command("bench", "a", "-q", "--fail-if", "latency_ms>10")
    assert failed.code == 4
    assert "latency_ms" in failed.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.onnx"], 2, "missing.onnx"),
        (["broken.onnx"], 1, "broken.onnx"),
        (["a.onnx", "unknown.onnx"], 1, "unknown.onnx: the model has operators that the runtime does not"),
        (["a.onnx", "unknown.onnx", "--isolate"], 1, "unknown.onnx: the model has operators that the runtime does not"),
        (["a.onnx", "--size", "length=3"], 2, "the dynamic dimensions are batch, seq"),
        (["a.onnx", "--size", "seq=3", "--sweep", "seq=1,2"], 2, "swept too"),
        (["a.onnx", "--sweep", "seq=1,x"], 2, "DIM=N,N"),
        (["a.onnx", "--seconds", "soon"], 2, "not a length of time"),
        (["a.onnx", "--provider", "abacus"], 2, "no provider 'abacus'"),
        (["a.onnx", "--ort-level", "most"], 2, "most"),
        (["a.onnx", "--inputs", "none.npz"], 2, "none.npz"),
        (["a.onnx", "--json", "--format", "csv"], 2, "--format"),
        (["a.onnx", "--svg", "x", "--record", "x"], 2, "same file"),
        (["a.onnx", "--svg", "nowhere/x.svg"], 1, "no folder"),
        (["a.onnx", "--fail-if", "speed>3"], 2, "speed"),
    ],
)
def test_invalid_requests_are_refused_in_one_line(
    command: Command, folder: Path, arguments: list[str], code: int, message: str
) -> None:
    before = sorted(folder.iterdir())
    beside = [] if "--record" in arguments else ["--record", "r.json"]
    refused = command("bench", *arguments, *([] if "--seconds" in arguments else SHORT), *beside)
    assert (refused.code, refused.out) == (code, "")
    assert refused.err.startswith("error: ")
    assert message in refused.err
    assert refused.err.count("\n") <= 2
    assert sorted(folder.iterdir()) == before


def test_an_interrupt_writes_nothing(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> Benchmark:
        raise KeyboardInterrupt

    monkeypatch.setattr(sardonyx, "bench", stopped, raising=False)
    before = sorted(folder.iterdir())
    result = command("bench", "a.onnx", "--record", "r.json", "--svg", "b.svg")
    assert (result.code, result.out, result.err) == (130, "", "interrupted\n")
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(("text", "seconds"), [("60", 60), ("90s", 90), ("2m", 120), ("0.5", 0.5), (" 1 h ", 3600)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1e3", "s", "nan", "99999h", "1 2"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(UsageError, match="length of time"):
        parse_duration(text)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_ctrl_c_ends_the_command_and_its_workers(folder: Path) -> None:
    arguments = ["bench", "a.onnx", "--isolate", "--starts", "0", "--record", "r.json"]
    running = subprocess.Popen([sys.executable, "-m", "sardonyx", *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (workers := _children(running.pid)) and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=120)
    assert (running.returncode, errors) == (130, "interrupted\n")
    assert workers
    while any(Path(f"/proc/{worker}").exists() for worker in workers):  # one that has just started ends by itself
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not (folder / "r.json").exists()


def _children(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []


def test_the_levels_are_those_of_the_runtime() -> None:
    assert [*get_args(LEVELS)] == [level.value for level in Level]


def test_the_documentation_names_only_existing_options(command: Command) -> None:
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
    named = set(re.findall(r"--[a-z][a-z-]+", page))
    assert named
    assert named <= set(re.findall(r"--[a-z][a-z-]+", command("bench", "--help").out))
