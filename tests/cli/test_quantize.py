"""`sardonyx quantize`: one screen, its record, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cli.conftest import Result
from quantization.small_model import build
from sardonyx.records.quantization import Quantization

Command = Callable[..., Result]


def test_the_command_prints_one_screen_and_writes_its_record(command: Command, tmp_path: Path) -> None:
    model = build(tmp_path / "m.onnx")
    np.savez(tmp_path / "ids.npz", ids=np.zeros((2, 3), np.int64))
    output, record = tmp_path / "q.onnx", tmp_path / "q.json"
    shown = command("quantize", model, "-o", output, "--data", tmp_path / "ids.npz", "--record", record)
    assert shown.code == 0
    assert shown.out.count("\n") <= 25
    assert "4 products in int8" in shown.out
    assert Quantization.from_json(record.read_bytes()).environment.command[1] == "quantize"
    again = command("quantize", model, "-o", output, "--to", "int4", "--json", "-f", "--fail-if", "relative_l2>0")
    assert (again.code, json.loads(again.out)["options"]["to"]) == (4, "int4")
    unknown = command("quantize", model, "-o", output, "-f", "--only", "decoder")
    assert (unknown.code, unknown.err.splitlines()[0]) == (2, "error: there is no module 'decoder'")
