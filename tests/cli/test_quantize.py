"""`sardonyx quantize`: one screen, its record, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cli.conftest import Result
from quantization.small_model import LIMIT, TASK, build
from quantization.test_half_range import long_sum
from sardonyx.records.quantization import Quantization

Command = Callable[..., Result]


@pytest.mark.medium
def test_the_command_prints_one_screen_and_writes_its_record(command: Command, tmp_path: Path) -> None:
    model = build(tmp_path / "m.onnx")
    np.savez(tmp_path / "ids.npz", ids=np.zeros((2, 3), np.int64))
    output, record = tmp_path / "q.onnx", tmp_path / "q.json"
    shown = command("quantize", model, "-o", output, "--to", "int8", "--data", tmp_path / "ids.npz", "--record", record)
    assert shown.code == 0
    assert shown.out.count("\n") <= 25
    assert "4 products in int8" in shown.out
    assert Quantization.from_json(record.read_bytes()).environment.command[1] == "quantize"
    again = command("quantize", model, "-o", output, "--to", "int4", "--json", "-f", "--fail-if", "relative_l2>0")
    assert (again.code, json.loads(again.out)["options"]["to"]) == (4, "int4")
    unknown = command("quantize", model, "-o", output, "-f", "--only-module", "decoder")
    assert (unknown.code, unknown.err.splitlines()[0]) == (2, "error: there is no module 'decoder'")


@pytest.mark.medium
def test_a_budget_that_nothing_meets_prints_the_front_and_writes_the_record(command: Command, tmp_path: Path) -> None:
    model, record = build(tmp_path / "m.onnx"), tmp_path / "record.json"
    asked = ("--to", "int8", "--for", "bytes", "--budget", "relative_l2<=1e-6", "--record", record)
    shown = command("quantize", model, "-o", tmp_path / "q.onnx", *asked)
    assert shown.code == 4
    assert "all int8" in shown.out
    assert "nothing was written; nearest: " in shown.out
    assert shown.err.startswith("error: nothing meets the budget relative_l2<=1e-6; nearest: ")
    assert "is met by" in shown.err
    assert Quantization.from_json(record.read_bytes()).status == "not met"
    assert not (tmp_path / "q.onnx").exists()


def test_a_dry_run_says_what_leaves_the_range_of_float16_and_writes_no_model(command: Command, tmp_path: Path) -> None:
    model, record = tmp_path / "m.onnx", tmp_path / "r.json"
    onnx.save(long_sum(np.random.default_rng(0)), model)
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(1).standard_normal((2, 4096, 32)).astype(np.float32))
    shown = command("quantize", model, "--to", "fp16", "--data", tmp_path / "x.npz", "--dry-run", "--record", record)
    assert shown.code == 0
    assert "Can leave the range of float16: 1 node, 1 of them in float32" in shown.out
    assert "its sums of 4096 numbers reach" in shown.out
    assert [risk.module for risk in Quantization.from_json(record.read_bytes()).risks] == ["pool"]
    assert not (tmp_path / "m.quantized.onnx").exists()
    several = command("quantize", model, model, "--out-dir", tmp_path / "out", "--dry-run")
    assert (several.code, "--dry-run is for one model" in several.err) == (2, True)


def test_a_folder_gets_the_record_and_the_page(command: Command, tmp_path: Path) -> None:
    model, folder = build(tmp_path / "m.onnx"), tmp_path / "run"
    asked = ("quantize", model, "-o", tmp_path / "q.onnx", "--to", "int8", "--run", folder)
    shown = command(*asked)
    assert (shown.code, shown.out.splitlines()[-1]) == (0, f"results in {folder} (open {folder / 'report.html'})")
    assert Quantization.from_json((folder / "quantization.json").read_bytes()).options["to"] == "int8"
    assert '<section data-section="precision"' in (folder / "report.html").read_text("utf-8")
    (tmp_path / "q.onnx").unlink()
    again = command(*asked)
    assert (again.code, "quantization.json exists" in again.err, (tmp_path / "q.onnx").exists()) == (1, True, False)


BAD: dict[str, tuple[list[str], int, str]] = {
    "missing": (["--data", "DIR/x.npz"], 2, "the data lack 'ids' (x.npz)"),
    "unknown": (["--data", "DIR/more.npz"], 2, "the model has no input 'label'"),
    "type": (["--data", "DIR/float.npz"], 2, "'ids' is float64 in the data (float.npz) and int64 in the model"),
    "shape": (["--data", "DIR/flat.npz"], 2, "'ids' is [2] in the data (flat.npz) and [batch, steps] in the model"),
    "empty": (["--data", "DIR/none"], 2, "DIR/none has no .npz files"),
    "no file": (["--data", "DIR/no.py:samples"], 2, "the data: there is no file DIR/no.py"),
    "no function": (["--data", "DIR/task.py:sample"], 2, "DIR/task.py has no function 'sample'"),
    "wrong": (["--data", "DIR/task.py:wrong"], 2, "DIR/task.py:wrong yielded list, not arrays by name"),
    "failing": (["--data", "DIR/task.py:failing"], 2, "DIR/task.py:14: failing() failed: KeyError: 'more'"),
    "metric fails": (
        ["--data", "DIR/task.py:samples", "--metric", "DIR/task.py:broken"], 2,
        "DIR/task.py:23: the metric failed on sample 6: ZeroDivisionError: division by zero",
    ),
    "metric is NaN": (
        ["--data", "DIR/task.py:samples", "--metric", "DIR/task.py:undefined"], 2,
        "the metric DIR/task.py:undefined returned nan for sample 6",
    ),
    "no metric": (["--budget", "metric<=0"], 2, "the budget 'metric<=0' needs a metric"),
    "pattern": (["--keep-module", "decoder.*"], 2, "there is no module 'decoder.*'"),
    "size": (["--budget", "top1>=0.9", "--size", "length=4"], 2, "no input has a dynamic dimension 'length'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_clear_line(case: str, command: Command, tmp_path: Path) -> None:
    model = build(tmp_path / "m.onnx")
    (tmp_path / "task.py").write_text(TASK)
    ids = np.zeros((2, 2), np.int64)
    arrays: dict[str, dict[str, Any]] = {
        "x": {"x": ids}, "more": {"ids": ids, "label": ids}, "float": {"ids": ids / 2}, "flat": {"ids": ids[0]},
    }  # fmt: skip
    for name, each in arrays.items():
        np.savez(tmp_path / f"{name}.npz", **each)
    (tmp_path / "none").mkdir()
    options, code, line = BAD[case]
    options = [option.replace("DIR", str(tmp_path)) for option in options]
    shown = command("quantize", model, "-o", tmp_path / "q.onnx", "--to", "int8", *options)
    assert (shown.code, shown.err.splitlines()[0]) == (code, "error: " + line.replace("DIR", str(tmp_path)))
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.medium
def test_the_choice_fits_one_screen_and_its_budget_is_a_gate(command: Command, tmp_path: Path) -> None:
    model, output = build(tmp_path / "m.onnx"), tmp_path / "q.onnx"
    (tmp_path / "task.py").write_text(TASK)
    data = ("--data", f"{tmp_path / 'task.py'}:samples", "--metric", f"{tmp_path / 'task.py'}:largest")
    options = (*data, "--to", "int8", "--for", "bytes")
    plot = ("--svg", tmp_path / "front.svg")
    shown = command("quantize", model, "-o", output, *options, "--budget", f"relative_l2<={LIMIT},bytes<=50%", *plot)
    assert shown.code == 0
    assert shown.out.count("\n") <= 25
    assert "▸ mixed 2: 2 int8" in shown.out  # of 3: the interval of few samples is wide
    assert "chosen" in (tmp_path / "front.svg").read_text("utf-8")
    refused = command("quantize", model, "-o", tmp_path / "p.onnx", "--to", "int8", "--svg", tmp_path / "none.svg")
    assert (refused.code, refused.err.splitlines()[0]) == (2, "error: there is nothing to plot without a choice")
    assert "weak claim: judged on 4 samples; the interval needs about 20" in shown.out
    unmet = command("quantize", model, "-o", output, "-f", *options, "--budget", "relative_l2<=1e-6")
    assert unmet.code == 4
    assert unmet.err.splitlines()[-2].startswith(
        "error: nothing meets the budget relative_l2<=1e-6; nearest: mixed 1, relative_l2 0.00"
    )
