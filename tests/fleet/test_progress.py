"""The status of a run: counts, what is running, and how long it takes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from sardonyx.fleet import engines
from sardonyx.fleet.engines import ExecutorEngine, Report, Status, Tracker
from sardonyx.fleet.work import Outcome

DONE, FAILED = Outcome({}, None, 1.0), Outcome(None, "no memory", 1.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, as its only element."""
    now = [0.0]
    monkeypatch.setattr(engines.time, "monotonic", lambda: now[0])
    return now


def test_the_status_counts_what_is_done_failed_reused_and_running(clock: list[float]) -> None:
    shown: list[Status] = []
    written: list[Status] = []
    tracker = Tracker(shown.append, lambda data: written.append(msgspec.json.decode(data, type=Status)))
    tracker.expect(10)
    tracker.update("a", Report(0, DONE, found=True))
    for index, name in enumerate("bcdef", 1):
        tracker.update(name, Report(index))
    for index, (name, outcome) in enumerate((("b", DONE), ("c", FAILED), ("d", DONE)), 1):
        clock[0] += 10
        tracker.update(name, Report(index, outcome))
    assert shown[-1].line() == "4/10 · 1 failed · e, f · 6 a minute · about 60 s left"
    last = written[-1]
    assert (last.done, last.failed, last.reused, last.running, last.left) == (3, 1, 1, 2, 60.0)
    tracker.end()
    assert (written[-1].state, written[-1].running) == ("stopped", 0)


def test_work_that_waits_at_the_engine_is_not_running() -> None:
    with ThreadPoolExecutor(1) as executor:
        tracker = Tracker(engine=ExecutorEngine(executor))
        for index, name in enumerate("ab"):
            tracker.update(name, Report(index))
        assert (tracker.status("running").running, tracker.status("running").names) == (1, ("a",))


def test_the_status_is_written_again_while_nothing_ends(clock: list[float]) -> None:
    written: list[Status] = []
    tracker = Tracker(None, lambda data: written.append(msgspec.json.decode(data, type=Status)))
    tracker.expect(2)
    tracker.update("a", Report(0))
    tracker.update("b", Report(1))  # too soon after the last
    assert [status.running for status in written] == [1]
    clock[0] += 3
    tracker.refresh()
    assert [status.running for status in written] == [1, 2]
    for index, name in enumerate("ab"):
        tracker.update(name, Report(index, DONE))
    tracker.end()
    assert written[-1].state == "done"
