"""The description of the machine, where the system provides it, and the share of other processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from narrowing import present
from sardonyx.verbs.bench import machine
from sardonyx.verbs.bench import machine as memory

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux")


def test_the_machine_is_described() -> None:
    description = machine.describe(load_before=1.0, busy_before=0.5, busy_during=None)
    assert description.cores == machine.cores() >= 1
    assert description.cpu
    assert (description.load_before, description.busy_before, description.busy_during) == (1.0, 0.5, None)


@on_linux
def test_linux_reports_memory_and_load() -> None:
    description = machine.describe(load_before=None, busy_before=None, busy_during=None)
    assert description.memory_bytes is not None
    assert description.memory_bytes > 10**8
    assert description.load_after is not None


@on_linux
def test_the_share_of_other_processes_excludes_our_own_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulated: 100 ticks pass on all cores, 60 are busy, 25 of them ours and 10 of a child process."""
    ticks = os.sysconf("SC_CLK_TCK")
    spent = iter([0.0, 25 / ticks])
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    monkeypatch.setattr(os, "times", lambda: os.times_result((next(spent), 0, 0, 0, 0)))
    (tmp_path / "7").mkdir()
    (tmp_path / "stat").write_text("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3\n")
    (tmp_path / "7" / "stat").write_text("7 (a) R) S 1 1 1 0 -1 0 0 0 0 0 100 50 0 0 20 0\n")
    watch = machine.Watch([7])
    (tmp_path / "stat").write_text("cpu  130 0 120 840 0 0 0 10 0 0\ncpu0 1 2 3\n")
    (tmp_path / "7" / "stat").write_text("7 (a) R) S 1 1 1 0 -1 0 0 0 0 0 106 54 0 0 20 0\n")
    assert watch.share() == pytest.approx(0.25)


def test_unknown_values_are_not_guessed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    assert machine.Watch().share() is None
    monkeypatch.setattr(machine, "OBSERVED_SECONDS", 0.0)
    assert machine.busy_now() is None
    (tmp_path / "stat").write_text("intr 5\n")
    assert machine.Watch().share() is None


def test_our_own_work_does_not_count_as_that_of_others() -> None:
    watch = machine.Watch()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    share = watch.share()
    assert share is None or 0 <= share <= 1


@on_linux
def test_memory_that_was_freed_counts_in_the_peak() -> None:
    before = memory.resident()
    block = bytearray(b"x") * (64 << 20)
    del block
    assert present(memory.grown_since(before)) >= 60 << 20
    again = memory.resident()
    assert present(memory.grown_since(again)) < 32 << 20


def test_memory_is_unknown_where_it_is_not_reported() -> None:
    assert memory.grown_since(None) is None
