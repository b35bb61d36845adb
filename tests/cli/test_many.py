"""Commands about many models: folders and manifests in, one folder of results out, and what a second run computes."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import onnx
import onnx.parser
import pytest

from cli.conftest import Result
from fleet.test_dask import Cluster
from sardonyx.records.study import Fleet

Command = Callable[..., Result]
HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
TWICE = HEAD + "g (float[2,3] x) => (float[2,3] y) { a = Transpose (x) b = Transpose (a) y = Relu (b) }"
ONCE = HEAD + "g (float[2,3] x) => (float[2,3] y) { a = Identity (x) y = Relu (a) }"
DOUBLED = HEAD + "g (float[2,3] x) => (float[2,3] y) { a = Relu (x) y = Add (a, a) }"


def _write(path: str, text: str = TWICE) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.parser.parse_model(text), path)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _write("models/x/a.onnx")
    _write("models/y/a.onnx", ONCE)


def _summary(folder: str) -> Fleet:
    return Fleet.from_json(Path(folder, "summary.json").read_bytes())


def _statuses(folder: str) -> dict[str, str]:
    return {row.name: row.status for row in _summary(folder).models}


def _table(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines()))


@pytest.mark.slow
def test_results_are_those_of_the_command_for_one_model(command: Command) -> None:
    result = command("optimize", "models", "--out-dir", "out", "--workers", 1, "--seed", 5)
    assert (result.code, result.err) == (0, "")
    assert "results in out (open out/index.html)" in result.out
    for name in ("x/a", "y/a"):
        assert command("optimize", f"models/{name}.onnx", "-o", "one.onnx", "-f", "-q", "--seed", 5).code == 0
        assert Path(f"out/{name}.onnx").read_bytes() == Path("one.onnx").read_bytes()
    record = json.loads(Path("out/x/a.json").read_bytes())
    assert record["options"]["seed"] == 5
    assert (record["source"]["path"], record["result"]["path"]) == ("models/x/a.onnx", "out/x/a.onnx")
    words = ["sardonyx", "optimize", "models/x/a.onnx", "-o", "out/x/a.onnx", "--json", "--seed", "5"]
    assert record["environment"]["command"] == words
    rows = {row.name: row for row in _summary("out").models}
    assert (rows["x/a"].numbers["nodes_before"], rows["x/a"].numbers["nodes_after"]) == (3, 1)
    assert rows["x/a"].numbers["rewrites"] == {"merge-transposes": 1}
    assert rows["y/a"].files == ("y/a.json", "y/a.onnx")
    assert all(row.seconds > 0 and row.machine == 0 for row in rows.values())
    assert [(row["name"], row["status"], row["verification"]) for row in _table("out/tables/summary.csv")] == [
        ("x/a", "done", "passed"),
        ("y/a", "done", "passed"),
    ]


@pytest.mark.slow
def test_a_second_run_computes_what_changed_failed_or_is_missing(command: Command) -> None:
    _write("models/z.onnx")
    Path("models/bad.onnx").touch()
    arguments = ("optimize", "models", "--out-dir", "out", "--verify", "off", "-q", "--workers", 1)
    assert command(*arguments).code == 1
    assert _statuses("out") == {"bad": "failed", "x/a": "done", "y/a": "done", "z": "done"}
    (cell,) = Path("out/cells/optimize").glob("bad.*.json")
    assert json.loads(cell.read_bytes())["outcome"]["answer"] is None, "it is tried again"
    kept = Path("out/x/a.onnx").stat().st_mtime_ns
    _write("models/y/a.onnx", DOUBLED)
    _write("models/bad.onnx")
    Path("out/z.onnx").unlink()
    assert command(*arguments).code == 0
    assert _statuses("out") == {"bad": "done", "x/a": "reused", "y/a": "done", "z": "done"}
    assert Path("out/x/a.onnx").stat().st_mtime_ns == kept
    result = command(*arguments)
    assert result.out == "4 models: 4 optimized (4 by an earlier run)\n"
    assert command(*arguments, "--skip", "merge-transposes").code == 0
    assert set(_statuses("out").values()) == {"done"}, "an option changed"


@pytest.mark.slow
def test_names_that_are_not_utf8(command: Command) -> None:
    Path("models/y/a.onnx").rename("models/y/a\udcff.onnx")
    result = command("optimize", "models", "--out-dir", "out", "--verify", "off", "--json")
    assert result.code == 1
    assert [entry.get("exit_code") for entry in json.loads(result.out)] == [None, 1]
    assert _statuses("out") == {"x/a": "done", r"y/a\udcff": "failed"}
    assert "is no name for a result" in result.err
    Path("models/x").rename("\udcff")
    for folder in ("other", "other\udcfe"):
        assert command("optimize", "\udcff", "--out-dir", folder, "--verify", "off").code == 0
        assert _statuses(folder) == {"a": "done"}


def test_a_file_of_somebody_else_is_not_replaced(command: Command) -> None:
    Path("out/y").mkdir(parents=True)
    Path("out/y/a.json").write_text("mine")
    result = command("optimize", "models", "--out-dir", "out")
    assert result.code == 1
    assert result.err.splitlines()[0] == "error: out/y/a.json exists"
    assert Path("out/y/a.json").read_text() == "mine"
    assert not Path("out/x").exists()
    url = command("optimize", "memory://models/a.onnx")
    assert (url.code, url.err.splitlines()[0]) == (2, "error: memory://models/a.onnx needs a folder for its results")
    same = command("optimize", "models", "--out-dir", "models")
    assert (same.code, "--out-dir is the folder of models/x/a.onnx" in same.err) == (2, True)


@pytest.mark.slow
def test_a_manifest_gives_each_model_its_options(command: Command) -> None:
    lines = [
        {"source": "models/x/a.onnx", "options": {"verify": "off", "target": "ort"}},
        {"source": "models/y/a.onnx", "name": "named", "options": ["--no-such-option"]},
    ]
    Path("list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = command("optimize", "list.jsonl", "--out-dir", "out", "--workers", 1)
    assert result.code == 2
    assert result.err.splitlines()[0].startswith("error: models/y/a.onnx: No such option: --no-such-option")
    record = json.loads(Path("out/models/x/a.json").read_bytes())
    assert (record["options"]["target"], record["verdict"]) == ("ort", None)
    assert _statuses("out") == {"models/x/a": "done", "named": "failed"}
    (failure,) = _table("out/tables/failures.csv")
    assert (failure["name"], failure["exit_code"]) == ("named", "2")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"options": ["-o", "../stolen.onnx"]}, "a manifest cannot set --output"),
        ({"options": ["-qo../stolen.onnx"]}, "a manifest cannot set --"),
        ({"options": {"output": "../stolen.onnx"}}, "a manifest cannot set --output"),
        ({"options": ["--seed", "1", "--record=../stolen.json"]}, "a manifest cannot set --record"),
        ({"options": {"run": "../stolen"}}, "a manifest cannot set --run"),
        ({"options": {"summary": "../stolen"}}, "a manifest cannot set --summary"),
        ({"options": {"out-dir": "../stolen"}}, "a manifest cannot set --out-dir"),
        ({"options": {"allow-code": True}}, "a manifest cannot set --allow-code"),
        ({"options": ["--", "other.onnx"]}, "a manifest cannot set models"),
        ({"options": {"custom-ops": "evil.so"}}, "evil.so is code, which would run here"),
        ({"source": "evil.py:build"}, "evil.py:build is code, which would run here"),
        ({"candidate": "evil.py:build"}, "evil.py:build is code, which would run here"),
        ({"source": "timm:resnet18", "export": ["-o", "x"]}, "a manifest cannot set --output"),
        ({"source": "timm:resnet18", "export": {"record": "x"}}, "a manifest cannot set --record"),
        ({"source": "timm:resnet18", "export": {"custom-ops": "evil.so"}}, "evil.so is code, which would run here"),
    ],
)
def test_a_manifest_neither_writes_elsewhere_nor_runs_code(
    line: dict[str, Any], message: str, command: Command, tmp_path: Path
) -> None:
    Path("evil.py").write_text("open('ran', 'w')")
    Path("evil.so").touch()
    Path("list.jsonl").write_text(json.dumps({"source": "models/x/a.onnx"} | line))
    before = sorted(tmp_path.rglob("*"))
    result = command("optimize", "list.jsonl", "--out-dir", "out")
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 2)
    assert result.err.startswith("error: list.jsonl, line 1: ")
    assert message in result.err
    assert sorted(tmp_path.rglob("*")) == before


def test_functions_of_files_are_code_too(command: Command) -> None:
    Path("list.jsonl").write_text('{"source": "models/x/a.onnx", "options": {"metric": "evil.py:metric"}}')
    result = command("quantize", "list.jsonl", "--out-dir", "out")
    assert (result.code, result.err.splitlines()[0]) == (
        2,
        "error: list.jsonl, line 1: evil.py:metric is code, which would run here",
    )


@pytest.mark.slow
def test_code_of_a_manifest_runs_if_it_is_allowed(command: Command) -> None:
    """Code that gives up is the reason of its model, and does not interrupt the command."""
    lines = {"exit": "import sys\nsys.exit(0)", "stop": "raise KeyboardInterrupt", "end": "raise BaseException('x')"}
    for name, text in lines.items():
        Path(f"{name}.py").write_text(f"def build():\n    {text.replace(chr(10), chr(10) + '    ')}")
    Path("list.jsonl").write_text("\n".join(json.dumps({"source": f"{name}.py:build"}) for name in lines))
    result = command("optimize", "list.jsonl", "--out-dir", "out", "--workers", 1, "--allow-code")
    assert result.code == 1
    reasons = {row.name: row.reason for row in _summary("out").models}
    assert reasons["exit.py-build"].endswith("exit.py:3: the model's code called sys.exit(0)")
    assert reasons["stop.py-build"] == "the model's code raised KeyboardInterrupt"
    assert reasons["end.py-build"] == "BaseException: x (end.py:2)"
    single = command("export", "exit.py:build", "-o", "a.onnx")
    assert (single.code, single.err.endswith("exit.py:3: the model's code called sys.exit(0)\n")) == (1, True)


@pytest.mark.slow
def test_weights_in_another_file_go_with_the_model(command: Command) -> None:
    model: Any = onnx.parser.parse_model(
        HEAD + "g (float[1200] x) => (float[1200] y) { a = Identity (x) y = Add (a, w) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(numpy.arange(1200, dtype=numpy.float32), "w"))
    Path("models/w").mkdir()
    onnx.save(model, "models/w/big.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert command("optimize", "models/w", "--out-dir", "out", "--workers", 1, "-q", "--external-data").code == 0
    assert _summary("out").models[0].files == ("big.json", "big.onnx.data", "big.onnx")
    assert onnx.load("out/big.onnx").graph.initializer[0].dims == [1200]
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(numpy.ones(1200, dtype=numpy.float32), "w"))
    onnx.save(model, "models/w/big.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert command("optimize", "models/w", "--out-dir", "out", "--workers", 1, "-q", "--external-data").code == 0
    assert _statuses("out") == {"big": "done"}, "the weights changed"
    assert onnx.numpy_helper.to_array(onnx.load("out/big.onnx").graph.initializer[0]).tolist() == [1.0] * 1200


def _external(path: str) -> None:
    """Write a model with its weights in a file beside it."""
    model: Any = onnx.parser.parse_model(TWICE.replace("y = Relu (b)", "y = Add (b, w)"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(numpy.ones((2, 3), numpy.float32), "w"))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)


@pytest.mark.slow
def test_damaged_results_are_computed_again(command: Command) -> None:
    model: Any = onnx.parser.parse_model(HEAD + "g (float[1200] x) => (float[1200] y) { y = Add (x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(numpy.arange(1200, dtype=numpy.float32), "w"))
    onnx.save(model, "models/big.onnx")
    arguments = ("optimize", "models", "--out-dir", "out", "--workers", 1, "--verify", "off", "--external-data")
    assert command(*arguments).code == 0
    whole = {path: path.read_bytes() for path in Path("out").rglob("*") if path.suffix in (".onnx", ".data")}
    assert len(whole) == 4

    def again(*damaged: str) -> None:
        result = command(*arguments, "--json")
        assert (result.code, result.err) == (0, "")
        assert [record["record"] for record in json.loads(result.out)] == ["run"] * 3
        assert {name for name, status in _statuses("out").items() if status == "done"} == set(damaged)
        assert {path: path.read_bytes() for path in whole} == whole

    for path in Path("out").rglob("*.*"):
        path.write_bytes(path.read_bytes()[:100])
    again("big", "x/a", "y/a")
    (cell,) = Path("out/cells/optimize").glob("x-a.*")
    junk = {
        "out/big.onnx.data": b"\xff" * 4800,  # as long as it was
        "out/x/a.json": b"{}",
        str(cell): b'{"cell": {"model": ' + b"[" * 100_000,
        "out/cells/optimize.json": b"\xff",
    }
    for name, data in junk.items():
        Path(name).write_bytes(data)
    again("big", "x/a")


@pytest.mark.slow
def test_a_model_that_cannot_be_read_fails_alone(command: Command) -> None:
    """Whatever a file is or names, it is the reason of one model; a device or a pipe would hang for ever."""
    os.mkfifo("models/pipe")
    for name, location in {"kmsg": "/proc/kmsg", "up": "../../secret", "named": "../pipe", "fifo": "fifo"}.items():
        _external(f"models/{name}/m.onnx")
        model = onnx.load(f"models/{name}/m.onnx", load_external_data=False)
        model.graph.initializer[0].external_data[0].value = location
        Path(f"models/{name}/m.onnx").write_bytes(model.SerializeToString())
    os.mkfifo("models/fifo/fifo")
    Path("secret").write_bytes(bytes(24))
    os.mkfifo("a.onnx")
    Path("loop.onnx").symlink_to("loop.onnx")
    Path("kernel.onnx").symlink_to("/proc/kmsg")
    sources = ("a.onnx", "loop.onnx", "kernel.onnx", "missing.onnx", "models")
    arguments = ("optimize", *sources, "--out-dir", "out", "--workers", 1, "--verify", "off", "--json")
    result = command(*arguments)
    assert result.code == 1
    assert {name for name, status in _statuses("out").items() if status == "done"} == {"x/a", "y/a"}
    reasons = {row.name: row.reason for row in _summary("out").models if row.status == "failed"}
    assert sorted(reasons) == ["a", "fifo/m", "kernel", "kmsg/m", "loop", "missing", "named/m", "up/m"]
    assert not [reason for reason in reasons.values() if "unexpected" in reason or not reason]
    assert "is absolute" in reasons["kmsg/m"]
    assert "leads out of the model's folder" in reasons["up/m"]
    assert "is not a regular file" in reasons["fifo/m"]
    assert len(json.loads(result.out)) == 10


@pytest.mark.slow
def test_the_first_failure_can_end_the_command(command: Command) -> None:
    Path("models/bad.onnx").touch()
    result = command("inspect", "models", "--out-dir", "out", "--fail-fast", "--workers", 1)
    assert result.code == 1
    assert result.out.splitlines()[-1] == "3 models: 0 read, 1 failed, 2 not run"
    assert command("inspect", "models", "--out-dir", "out", "--workers", 1, "-q").out.startswith("3 models: 2 read")
    assert Path("out/x/a.json").is_file()
    other = command("verify", "models", "models", "--out-dir", "out")
    assert (other.code, other.err.splitlines()[0]) == (1, "error: out/x/a.json exists"), "of another command"


@pytest.mark.slow
def test_gates_are_about_each_model_or_about_all(command: Command) -> None:
    gates = ("--fail-if", "nodes>2", "--fail-if", "done<3", "--fail-if", "failed")
    result = command("inspect", "models", "--workers", 1, "-q", *gates)
    assert result.code == 4
    assert result.err.splitlines() == [
        "error: models/x/a.onnx: gate not met: nodes>2 (nodes is 3)",
        "error: gate not met: done<3 (done is 2)",
    ]


@pytest.mark.slow
def test_folders_are_verified_in_pairs(command: Command) -> None:
    assert command("optimize", "models", "--out-dir", "out", "--verify", "off", "-q", "--workers", 1).code == 0
    assert command("verify", "models", "out", "--workers", 1, "-q").out == "2 models: 2 compared\n"
    _write("out/y/a.onnx", DOUBLED)
    _write("models/z.onnx")
    result = command("verify", "models", "out", "--workers", 1, "--json")
    assert result.code == 1
    first, second, missing = json.loads(result.out)
    assert (first["passed"], second["passed"]) == (True, False)
    assert missing == {"path": "models/z.onnx", "error": "out has no z.onnx", "hint": None, "exit_code": 1}
    assert "error: models/y/a.onnx: the two models do not compute the same" in result.err
    Path("models/z.onnx").unlink()
    assert command("verify", "models", "out", "--workers", 1, "-q").code == 3


@pytest.mark.slow
def test_several_models_are_quantized(command: Command) -> None:
    text = HEAD + "g (float[2,64] x) => (float[2,64] y) { y = MatMul (x, w) }"
    for name in ("p", "q"):
        model: Any = onnx.parser.parse_model(text)
        weights = numpy.random.default_rng(0).normal(size=(64, 64)).astype(numpy.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
        onnx.save(model, f"{name}.onnx")
    result = command("quantize", "p.onnx", "q.onnx", "--out-dir", "out", "--to", "int8-weights", "--workers", 1)
    assert (result.code, result.out.splitlines()[-1]) == (0, "2 models: 2 quantized")
    numbers = _summary("out").models[0].numbers
    assert numbers["bytes_after"] < numbers["bytes_before"] / 2
    assert Path("out/p.onnx").read_bytes() == Path("out/q.onnx").read_bytes()


def test_limits_and_engines_are_checked_before_any_work(command: Command) -> None:
    for options in (["--timeout", "soon"], ["--memory", "much"], ["--workers", "2", "--cluster", "tcp://x:1"]):
        result = command("inspect", "models", *options)
        assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 2)


@pytest.mark.slow
def test_a_model_that_takes_too_long_fails_alone(command: Command) -> None:
    result = command("optimize", "models", "--out-dir", "out", "--timeout", "0.01s", "--workers", 1)
    assert result.code == 1
    assert result.err.splitlines()[0] == "error: models/x/a.onnx: it did not end within 0.01 s"
    assert _statuses("out") == {"x/a": "failed", "y/a": "failed"}


@pytest.mark.slow
def test_models_come_from_a_url_and_results_go_to_one(command: Command) -> None:
    """The same with a server that speaks S3 is a test of stores."""
    pytest.importorskip("fsspec")
    _write("models/bad.onnx")
    Path("models/bad.onnx").write_bytes(b"")
    place = Path.cwd().as_uri()
    arguments = ("optimize", f"{place}/models", "--out-dir", f"{place}/out", "--verify", "off", "--workers", 1)
    result = command(*arguments)
    assert (result.code, result.err.splitlines()[0]) == (1, f"error: {place}/models/bad.onnx is empty")
    assert onnx.load("out/x/a.onnx").graph.node[0].op_type == "Relu"
    record = json.loads(Path("out/x/a.json").read_bytes())
    assert (record["source"]["path"], record["result"]["path"]) == (f"{place}/models/x/a.onnx", f"{place}/out/x/a.onnx")
    assert command(*arguments, "-q").out == "3 models: 2 optimized (2 by an earlier run), 1 failed\n"
    Path("models/x/a.onnx").unlink()
    _write("models/x/a.onnx", ONCE)
    assert command(*arguments, "-q").out == "3 models: 2 optimized (1 by an earlier run), 1 failed\n"


@pytest.mark.slow
def test_a_killed_command_continues(command: Command) -> None:
    for number in range(6):
        _write(f"models/m{number}.onnx")
    words = ["optimize", "models", "--out-dir", "out", "--workers", "1", "--verify-seconds", "1"]
    process = subprocess.Popen([sys.executable, "-m", "sardonyx", *words])
    until = time.monotonic() + 60
    while len(list(Path("out").glob("*.json"))) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not Path("out/summary.json").exists()
    assert command(*words, "-q").code == 0
    statuses = list(_statuses("out").values())
    assert len(statuses) == 8
    assert statuses.count("reused") >= 1
    assert all(len(onnx.load(path).graph.node) == 1 for path in Path("out").rglob("*.onnx"))
    assert not [path.name for path in Path("out").rglob(".*") if path.suffix == ".onnx"], "drafts are not models"


@pytest.mark.slow
def test_many_failures_are_counted(command: Command) -> None:
    for number in range(41):
        Path(f"models/{number:02}.onnx").touch()
    result = command("inspect", "models", "--out-dir", "out", "--workers", 1)
    assert result.err.splitlines() == [
        "error: 41 of 43 models failed",
        "hint: out/tables/failures.csv lists them",
    ]
    assert "MODEL is empty" in result.out


@pytest.mark.slow
def test_a_cluster_gives_the_same_models(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    cluster = Cluster(tmp_path)
    cluster.start_scheduler()
    try:
        cluster.start_worker()
        options = ("--verify", "off", "-q")
        assert command("optimize", "models", "--out-dir", "there", "--cluster", cluster.address, *options).code == 0
    finally:
        cluster.close()
    assert command("optimize", "models", "--out-dir", "here", "--workers", 1, *options).code == 0
    for name in ("x/a", "y/a"):
        assert Path(f"there/{name}.onnx").read_bytes() == Path(f"here/{name}.onnx").read_bytes()
    assert _statuses("there") == _statuses("here") == {"x/a": "done", "y/a": "done"}
