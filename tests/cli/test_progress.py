"""Progress shows the time left where it is known, and measurements say before they start how long they take."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Result
from reporting.gate.sample_records import write_model
from sardonyx.cli.console import TimeLeft, announce, live_table
from sardonyx.errors import UsageError
from sardonyx.fleet.engines import Status
from sardonyx.records.progress import duration
from sardonyx.verbs.bench import command as bench
from sardonyx.verbs.bench.command import bench_seconds, run_seconds
from sardonyx.verbs.optimize import command as optimize

Command = Callable[..., Result]


def test_the_time_left_follows_from_the_part_that_is_done() -> None:
    clock = [0.0]
    left = TimeLeft(lambda: clock[0])
    assert left.after(None) == ""
    for seconds, fraction, expected in ((0, 0.0, ""), (0.5, 0.2, ""), (10, 0.25, "30 s left"), (30, 0.75, "10 s left")):
        clock[0] = seconds
        assert left.after(fraction) == expected
    clock[0] = 40
    assert left.after(0.0) == "", "a smaller fraction belongs to another phase"
    clock[0] = 240
    assert left.after(0.5) == "3 min left"
    assert left.after(None) == "", "the end of this phase is not known"


def test_durations_are_rough() -> None:
    assert [duration(seconds) for seconds in (0.2, 12.4, 89, 100, 600)] == ["1 s", "12 s", "89 s", "2 min", "10 min"]


def test_larger_files_and_more_starts_take_longer(tmp_path: Path) -> None:
    small, large = tmp_path / "small.onnx", tmp_path / "large.onnx"
    small.write_bytes(b"x")
    large.write_bytes(b"x")
    (tmp_path / "large.onnx.data").write_bytes(bytes(2_000_000))
    assert bench_seconds([small], 60, 0) < bench_seconds([small], 60, 3) < bench_seconds([small], 60, 3, sizes=4)
    assert bench_seconds([small], 60, 3) < bench_seconds([large], 60, 3)
    assert bench_seconds([small, small], 10, 3) < run_seconds([small, small], 10)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_duration_is_announced_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, shown, expected in (
        (_Terminal(), True, "timing: up to about 12 s\n"),
        (_Terminal(), False, ""),
        (io.StringIO(), True, ""),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        announce("timing", 12.3, shown=shown)
        assert stream.getvalue() == expected


def test_a_run_over_many_models_shows_a_table_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("bert[0]", "a\nb")
    status = Status("running", 1200, 410, 0, 3, 2, names, 65.0, 130.0, 31.5, "2026-01-01T00:00:00Z", "here")
    for stream, shown in ((_Terminal(), True), (_Terminal(), False), (io.StringIO(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        with live_table(shown) as show:
            if show is not None:
                show(status)
        if not (shown and stream.isatty()):
            assert (show, stream.getvalue()) == (None, "")
            continue
        lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).strip() for line in stream.getvalue().splitlines()]
        table = [re.split(r"\s{2,}", line) for line in lines if line.startswith(("done", "410"))]
        assert table[0] == ["done", "failed", "running", "a minute", "time left", "time"]
        assert table[1] == ["410 of 1,200", "3", "2", "31.5", "2 min", "65 s"]
        assert any("bert[0], a" in line for line in lines), "brackets of names are no markup"


def test_bench_and_run_announce_how_long_they_take(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[tuple[str, bool]] = []

    def stop(what: str, seconds: float, *, shown: bool) -> None:
        assert seconds > 10
        announced.append((what, shown))
        raise UsageError("enough")

    model = write_model(tmp_path / "m.onnx")
    monkeypatch.setattr(bench, "announce", stop)
    monkeypatch.setattr(optimize, "announce", stop)
    command("bench", model, model)
    command("bench", model, "-q")
    command("optimize", model, "-o", tmp_path / "small.onnx", "--run", tmp_path / "run")
    assert announced == [("timing 2 files", True), ("timing", False), ("timing both models for --run", True)]
