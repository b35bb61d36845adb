"""`sardonyx locate` from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from sardonyx.records.comparison import Location
from verification.test_locate import network, nudged


def test_the_command_prints_one_screen_and_exits_with_3(tmp_path: Path, command: Callable[..., Any]) -> None:
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(network(), a)
    onnx.save(network({"blocks.2.linear.weight": nudged}), b)
    done = command("locate", a, b, "--threads", "1", "--record", tmp_path / "location.json")
    assert done.code == 3
    assert done.out.count("\n") <= 25
    assert "blocks.2.linear is the first module that differs and causes 100 % of the error" in done.out.splitlines()[-1]
    assert Location.from_json((tmp_path / "location.json").read_bytes()).environment.command[1] == "locate"
    assert command("locate", a, a, "-q").code == 0
