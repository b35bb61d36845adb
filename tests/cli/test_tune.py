"""`optimize --tune` from the command line: what it passes on, what it refuses, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from reporting.sample_tuning import tuned_run
from sardonyx.records.run import Run
from sardonyx.verbs.optimize.options import TuneOptions

Command = Callable[..., Any]


def test_every_flag_reaches_the_verb(stage: Any, command: Command) -> None:
    flags = ("--tune", "--seconds", "1.5m", "--size", "seq=64", "--size", "batch=2", "--threads", 3)
    assert command("optimize", "m.onnx", "-o", "never.onnx", *flags).code == 0
    ((_, kwargs),) = stage.asked
    assert kwargs["tune"] == TuneOptions(seconds=90.0, sizes={"seq": 64, "batch": 2})
    assert kwargs["threads"] == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tune", "--dry-run"), "--dry-run and --tune"),
        (("--seconds", "60s"), "--seconds is for measurements"),
        (("--size", "seq=3"), "--size is for measurements"),
        (("--tune", "--seconds", "soon"), "not a length of time"),
        (("--tune", "--seconds", "0"), "not a length of time"),
        (("--tune", "--size", "seq"), "seq"),
    ],
)
def test_invalid_arguments_are_refused(stage: Any, command: Command, flags: tuple[str, ...], message: str) -> None:
    result = command("optimize", "m.onnx", *flags)
    assert result.code == 2
    assert message in result.err
    assert not result.out
    assert not stage.asked


def test_the_text_and_the_summary_line_report_the_tuning(stage: Any, command: Command) -> None:
    stage.run = tuned_run()
    assert "On this machine" in command("optimize", "m.onnx", "-o", "never.onnx", "--tune").out
    quiet = command("optimize", "m.onnx", "-o", "never.onnx", "--tune", "-q").out
    assert "22.0 % faster here" in quiet
    assert len(quiet.splitlines()) == 1
    text = command("optimize", "m.onnx", "-o", "never.onnx", "--tune", "--json").out
    assert Run.from_json(text).tuning == tuned_run().tuning


@pytest.mark.slow
def test_a_real_file_is_tuned_and_a_wrong_size_leaves_nothing_behind(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(
        onnx.parser.parse_model("""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) { a = Relu(x) b = Identity(a) y = Neg(b) }
        """).SerializeToString()
    )
    wrong = command("optimize", path, "--tune", "--size", "M=4")
    assert (wrong.code, [each.name for each in tmp_path.iterdir()]) == (2, ["m.onnx"])
    assert "'M'" in wrong.err
    assert "N" in wrong.err
    done = command("optimize", path, "--tune", "--seconds", "1s", "--size", "N=3", "--json")
    assert done.code == 0
    record = json.loads(done.out)
    assert record["tuning"]["sizes"] == {"N": 3}
    assert record["tuning"]["budget"] == 1.0
    assert (tmp_path / "m.optimized.onnx").exists()
