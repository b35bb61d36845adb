"""A model in its own process: its outputs, its failures, and that no process is left."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benched import written
from narrowing import array
from sardonyx.errors import ModelError, RuntimeFailure, UsageError
from sardonyx.runtime.timed import Settings
from sardonyx.verbs.bench import sessions
from sardonyx.verbs.bench.sessions import IsolatedSession, LocalSession, SlotOptions, TimingClock

FEEDS = {"x": np.ones((2, 3, 8), np.float32)}
needs_processes = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("isolated") / "product.onnx")


@pytest.fixture(scope="module")
def session(path: Path) -> Iterator[IsolatedSession]:
    with IsolatedSession(path, Settings()) as opened:
        yield opened


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # a dead process that was not waited for yet


def _gone_soon(process: int) -> bool:
    deadline = time.monotonic() + 60
    while _alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("clock", TimingClock)
def test_it_gives_the_same_outputs_as_in_this_process(session: IsolatedSession, path: Path, clock: TimingClock) -> None:
    here = LocalSession(path, Settings())
    for one in (session, here):
        assert one.load_seconds > 0
        assert one.feed(FEEDS, SlotOptions(0.01, clock)) > 0
        assert 0 < one.turn() < 60
    np.testing.assert_array_equal(array(session.outputs()[0]), array(here.outputs()[0]))
    other = {"x": np.zeros((1, 5, 8), np.float32)}
    session.feed(other, SlotOptions())
    assert array(session.outputs()[0]).shape == (1, 5, 4)


def test_a_timing_uses_the_given_clock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, seconds = LocalSession(path, Settings()), itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: float(next(seconds)))
    here.feed(FEEDS, SlotOptions(0.01, TimingClock.CPU))
    assert here.turn() == 1.0
    here.feed(FEEDS, SlotOptions(0.01, TimingClock.WALL))
    assert here.turn() != 1.0


def test_an_error_is_raised_and_the_worker_continues(session: IsolatedSession) -> None:
    with pytest.raises(UsageError, match="'x'"):
        session.feed({}, SlotOptions())
    with pytest.raises(RuntimeFailure, match="cannot run the model"):
        session.feed({"x": np.ones((2, 3, 9), np.float32)}, SlotOptions())
    assert session.feed(FEEDS, SlotOptions()) > 0


def test_a_start_reports_times_and_memory(path: Path) -> None:
    result = sessions.start(path, Settings(), FEEDS)
    assert result.load_seconds > 0
    assert result.first_run_seconds > 0
    if sys.platform == "linux":
        assert result.peak_bytes is not None
        assert 10_000 < result.peak_bytes < 40e6  # of the model, not of Python and the runtime


@pytest.mark.medium
@needs_processes
def test_a_model_that_does_not_load_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    popen = subprocess.Popen

    def noted(*args: Any, **kwargs: Any) -> subprocess.Popen[Any]:
        process: subprocess.Popen[Any] = popen(*args, **kwargs)
        opened.append(process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", noted)
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match="is not a readable ONNX model"):
        IsolatedSession(tmp_path / "broken.onnx", Settings())
    (process,) = opened
    assert not _alive(process)


@pytest.mark.medium
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_killed_worker_is_reported_in_one_line(path: Path) -> None:
    with IsolatedSession(path, Settings()) as session:
        session.feed(FEEDS, SlotOptions())
        os.kill(session.process, signal.SIGKILL)
        with pytest.raises(RuntimeFailure) as failed:
            session.turn()
    assert "was killed (SIGKILL)" in failed.value.message
    assert "\n" not in failed.value.message


def test_the_last_message_of_a_dying_worker_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_WORKER", "sardonyx.verbs.bench.no_such_worker")
    with pytest.raises(RuntimeFailure) as failed:
        IsolatedSession(path, Settings())
    assert "ended with exit code 1: " in failed.value.message
    assert "no_such_worker" in failed.value.message


@pytest.mark.medium
@needs_processes
def test_closing_ends_a_busy_worker(path: Path) -> None:
    session = IsolatedSession(path, Settings())
    assert _alive(session.process)
    session.close()
    assert not _alive(session.process)


@pytest.mark.slow
@needs_processes
def test_a_worker_does_not_outlive_its_parent(path: Path) -> None:
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from sardonyx.verbs.bench.sessions import IsolatedSession\n"
        "from sardonyx.runtime.timed import Settings\n"
        "print(IsolatedSession(Path(sys.argv[1]), Settings()).process, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert _gone_soon(int(done.stdout))
