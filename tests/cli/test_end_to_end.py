"""The real verbs through the real command, on a small model that can be optimized."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.records.run import Run

Command = Callable[..., Any]
HOSTILE = "/[red]encoder[bold]/layer.0\x1b[31m/MatMul"


def _model(scale: float = 1.0) -> onnx.ModelProto:
    """Identity(x) @ w, with a dynamic batch."""
    weight = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32) * scale
    nodes = [
        helper.make_node("Identity", ["x"], ["same"], "/encoder/Identity"),
        helper.make_node("MatMul", ["same", "w"], ["y"], HOSTILE),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(_model(), path)
    return path


def test_optimize_then_verify_then_inspect(model: Path, command: Command) -> None:
    small, record = model.with_name("small.onnx"), model.with_name("run.json")
    done = command("optimize", model, "-o", small, "--record", record)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1].startswith("2 → 1 nodes (−50 %), ")
    assert "same outputs on" in done.out.splitlines()[-1]
    assert [node.op_type for node in onnx.load(small).graph.node] == ["MatMul"]
    run = Run.from_json(record.read_bytes())
    assert run.after.nodes == 1
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (model, small)]
    assert [run.source.sha256, run.result.sha256] == hashes
    assert command("verify", model, small).code == 0
    document = json.loads(command("inspect", small, "--json").out)
    assert (document["counts"]["nodes"], document["parameters"]) == (1, 16)


def test_json_of_a_real_run(model: Path, command: Command) -> None:
    done = command("optimize", model, "--json")
    run = Run.from_json(done.out)
    assert (run.status, run.before.nodes, run.after.nodes) == ("done", 2, 1)
    assert run.verdict is not None
    assert run.verdict.passed
    written = model.with_name("model.optimized.onnx")
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (model, written)]
    assert [run.source.sha256, run.result.sha256] == hashes


def test_a_model_that_differs_is_reported(model: Path, command: Command) -> None:
    other = model.with_name("other.onnx")
    onnx.save(_model(scale=1.01), other)
    done = command("verify", model, other)
    assert done.code == 3
    assert "DIFFERS" in done.out
    assert json.loads(command("verify", model, other, "--json").out)["passed"] is False


def test_a_dry_run_lists_what_would_apply_and_writes_nothing(model: Path, command: Command) -> None:
    before = sorted(model.parent.iterdir())
    done = command("optimize", model, "--dry-run")
    assert done.code == 0
    assert "eliminate-identity" in done.out
    assert done.out.endswith("nothing written\n")
    assert sorted(model.parent.iterdir()) == before


def test_an_unknown_pass_gets_a_suggestion(model: Path, command: Command) -> None:
    for flag in ("--only", "--skip"):
        done = command("optimize", model, flag, "eliminate-identiy")
        assert (done.code, done.out) == (2, "")
        assert "did you mean eliminate-identity?" in done.err
    assert sorted(model.parent.iterdir()) == [model]


def test_only_and_skip_choose_passes(model: Path, command: Command) -> None:
    skipped = Run.from_json(command("optimize", model, "--dry-run", "--json", "--skip", "eliminate-identity").out)
    assert "eliminate-identity" not in [record.name for record in skipped.passes]
    assert skipped.after.nodes == 2
    only = Run.from_json(command("optimize", model, "--dry-run", "--json", "--only", "eliminate-identity").out)
    assert [record.name for record in only.passes] == ["eliminate-identity"]


def test_an_existing_output_is_kept_without_force(model: Path, command: Command) -> None:
    taken = model.with_name("taken.onnx")
    taken.write_text("mine")
    assert command("optimize", model, "-o", taken).code == 1
    assert taken.read_text() == "mine"
    assert command("optimize", model, "-o", taken, "--force").code == 0
    assert onnx.load(taken).graph.name == "small"


def test_bad_files_give_one_line_and_a_hint_and_leave_nothing(tmp_path: Path, command: Command) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"\x08\xff" * 40)
    for code, *arguments in (
        [1, "optimize", bad, "-o", tmp_path / "out.onnx"],
        [1, "inspect", bad],
        [2, "inspect", tmp_path / "missing.onnx"],
        [1, "verify", bad, bad],
        [2, "optimize", tmp_path],  # models of a folder need another one for results
        [2, "optimize", "."],
    ):
        done = command(*arguments)
        assert (done.code, done.out) == (code, "")
        assert [line.split(":")[0] for line in done.err.splitlines()] == ["error", "hint"]
    assert sorted(tmp_path.iterdir()) == [bad]


def test_gates_on_a_real_run(model: Path, command: Command) -> None:
    assert command("optimize", model, "--fail-if", "nodes_removed<50%").code == 0
    assert command("optimize", model, "-f", "--fail-if", "nodes_removed<51%").code == 4
    assert command("verify", model, model, "--fail-if", "max_abs>0").code == 0


def test_given_inputs_are_used(model: Path, command: Command) -> None:
    np.savez(model.with_name("x.npz"), x=np.ones((7, 4), np.float32))
    done = command("verify", model, model, "--inputs", model.with_name("x.npz"), "--seed", 5, "--json")
    trials = json.loads(done.out)["trials"]
    assert [trial["seed"] for trial in trials].count(None) == 1
    assert min(trial["seed"] for trial in trials if trial["seed"] is not None) == 5


def test_hostile_names_are_shown_literally(model: Path, command: Command) -> None:
    text = command("inspect", model, "-v").out + command("optimize", model, "-v", "--dry-run").out
    assert "[red]encoder[bold]" in text
    assert r"0\x1b[31m" in text
    assert "\x1b" not in text


def test_passes_are_listed_with_their_descriptions(command: Command) -> None:
    from sardonyx.passes import ALL

    listed = json.loads(command("passes", "--json").out)
    assert [one["name"] for one in listed] == [each.name for each in ALL]
    assert all(one["algebra"] and one["accuracy"] and one["targets"] for one in listed)
    text = command("passes").out
    assert all(f"{each.name}{'*' if each.slower else ''} " in text for each in ALL)
    assert {one["name"] for one in listed if one["slower"]} == {"fuse-skip-layer-norm"}


def test_the_demo_keeps_existing_files(tmp_path: Path, command: Command) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for folder in (tmp_path, mine):
        done = command("demo", folder)
        assert (done.code, done.out) == (1, "")
    assert sorted(tmp_path.iterdir()) == [mine]


@pytest.mark.slow
def test_the_installed_command_and_the_module_are_the_same(model: Path) -> None:
    for entry in ([sys.executable, "-m", "sardonyx"], [str(Path(sys.executable).with_name("sardonyx"))]):
        done = subprocess.run([*entry, "inspect", "-q", str(model)], capture_output=True, text=True, check=True)
        assert done.stdout == f"2 nodes, 16 parameters, {model.stat().st_size} B, opset 17, dynamic batch\n"
        version = subprocess.run([*entry, "--version"], capture_output=True, text=True, check=True)
        assert version.stdout.startswith("sardonyx ")
