"""A record that cannot be written is an error before the work, and leaves no other output."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

Command = Callable[..., Any]

MODEL = '<ir_version: 10, opset_import: ["" : 18]> agraph (float[2] x) => (float[2] y) { s = Neg(x)  y = Identity(s) }'


@pytest.mark.parametrize(
    ("verb", "other"), [("optimize", "--output"), ("bench", "--svg"), ("profile", "--svg"), ("analyze", "--svg")]
)
@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("folder", "is a folder"),
        ("mine.json", "exists"),
        ("nowhere/record.json", "there is no folder"),
        ("/proc/record.json", "cannot be written"),  # a folder in which no file can be created, even by root
        ("/dev/full", "is a device"),
    ],
)
def test_a_record_that_cannot_be_written_leaves_no_output(
    verb: str, other: str, record: str, message: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    if record.startswith("/") and not os.path.exists(os.path.dirname(record)):
        pytest.skip("not on this system")
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL), "model.onnx")
    Path("folder").mkdir()
    Path("mine.json").write_text("mine")
    force = ["--force"] if record == "/dev/full" else []
    failed = command(verb, "model.onnx", other, "result", "--record", record, *force)
    assert (failed.code, failed.out) == (1, "")
    assert message in failed.err
    assert sorted(os.listdir()) == ["folder", "mine.json", "model.onnx"]
    assert Path("mine.json").read_text() == "mine"
