"""Work ends once, as done or with its reason, whatever happens to the process that runs it."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet.planted_work import Planted
from sardonyx.errors import RuntimeFailure
from sardonyx.fleet.engines import Engine, ExecutorEngine, LocalEngine, Report, run_all
from sardonyx.fleet.work import Limits, Needs, Outcome, Task, isolated
from sardonyx.runtime import worker_process

pytestmark = pytest.mark.slow


def outcomes(works: Sequence[Task], engine: Engine, limits: Limits | None = None) -> list[Outcome]:
    """The outcome of each work; there is exactly one."""
    found: dict[int, Outcome] = {}
    with contextlib.closing(engine):
        for report in run_all(works, engine, limits):
            if report.outcome is not None:
                assert report.index not in found
                found[report.index] = report.outcome
    return [found[index] for index in range(len(works))]


def spans(log: Path) -> dict[int, tuple[float, float]]:
    """The beginning and end of each work that has ended."""
    begins: dict[int, float] = {}
    result: dict[int, tuple[float, float]] = {}
    for line in log.read_text().splitlines():
        index, what, when, _ = line.split()
        if what == "begins":
            begins[int(index)] = float(when)
        else:
            result[int(index)] = (begins[int(index)], float(when))
    return result


def test_every_kind_of_failure_ends_one_work_alone(tmp_path: Path) -> None:
    kinds = ("answer", "fail", "raise", "crash", "kill", "hang", "grow", "answer")
    works = [Planted(tmp_path / "log", index, does) for index, does in enumerate(kinds)]
    ended = outcomes(works, LocalEngine(2), Limits(3.0, 300_000_000))
    reasons = [outcome.reason for outcome in ended]
    assert reasons[0] is reasons[7] is None
    assert reasons[1] == "this model cannot be read"
    assert str(reasons[2]).startswith("KeyError: 'nothing' (planted_work.py:")
    assert str(reasons[3]).startswith("its process was killed (SIGSEGV)")
    assert str(reasons[4]).startswith("its process was killed (SIGKILL)")
    assert reasons[5] == "it did not end within 3 s"
    assert reasons[6] == "it needed more than the 0.3 GB that it may use"
    assert [outcome.attempts for outcome in ended] == [1, 1, 1, 2, 2, 1, 1, 1]
    assert ended[6].answer is None
    assert "this is printed" in ended[0].log
    assert "this is printed before the crash" in ended[3].log
    assert ended[6].peak > 300_000_000
    assert sorted(path.name for path in tmp_path.glob("result-*")) == ["result-0", "result-7"]


def test_code_that_gives_up_is_the_reason_of_its_work(tmp_path: Path) -> None:
    works = [Planted(tmp_path / "log", index, does) for index, does in enumerate(("exit", "interrupt", "answer"))]
    exit_, interrupt, answer = outcomes(works, LocalEngine(1))
    assert str(exit_.reason).startswith("SystemExit: 3 (planted_work.py:")
    assert str(interrupt.reason).startswith("KeyboardInterrupt: (planted_work.py:")
    assert (exit_.attempts, interrupt.attempts, answer.reason) == (1, 1, None)
    pids = {line.split()[3] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(pids) == 1, "the process is used again"


def test_a_child_that_closed_its_pipes_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    monkeypatch.setattr(worker_process, "_EXIT_SECONDS", 0.5)
    works = [Planted(tmp_path / "log", index, does) for index, does in enumerate(("close_pipes", "close_input") * 2)]
    ended = outcomes(works, LocalEngine(1))
    assert [outcome.reason for outcome in ended] == ["its process does not answer any more", None] * 2
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("does", ["leave", "leave_and_kill", "leave_and_hang"])
def test_what_a_child_starts_and_writes_ends_with_it(tmp_path: Path, does: str, temporary: Path) -> None:
    (outcome,) = outcomes([Planted(tmp_path / "log", 0, does)], LocalEngine(1), Limits(2.0))
    expected = {"leave": "None", "leave_and_kill": "its process was killed (SIGKILL)"}
    assert str(outcome.reason) == expected.get(does, "it did not end within 2 s")
    for process in (tmp_path / "processes-0").read_text().split():
        wait_for(lambda process=process: not is_running(int(process)))
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("does", ["leave", "leave_and_hang"])
def test_a_killed_command_leaves_no_process_and_its_files_are_deleted_by_the_next(
    tmp_path: Path, does: str, temporary: Path
) -> None:
    code = (
        "from sardonyx.fleet.work import *; from fleet.planted_work import *; import sys, time;"
        f"isolated(Planted(Path({str(tmp_path / 'log')!r}), 0, {does!r}), Limits()); print('done', flush=True);"
        "time.sleep(60)"
    )
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary)}
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | paths, stdout=subprocess.PIPE)
    assert process.stdout is not None
    started = tmp_path / "processes-0"
    wait_for(lambda: started.exists() and list(temporary.rglob("file")) != [])
    if does == "leave":
        assert process.stdout.readline() == b"done\n"
    process.kill()
    process.communicate()
    for left in started.read_text().split():
        wait_for(lambda left=left: not is_running(int(left)))
    assert list(temporary.iterdir())
    (mine := temporary / "mine").mkdir()
    outcomes([Planted(tmp_path / "log", 1)], LocalEngine(1))
    assert list(temporary.iterdir()) == [mine]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for what happens soon after a signal."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_running(process: int) -> bool:
    """Whether a process exists and is not one that nobody has waited for."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty TMPDIR."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_a_crash_that_does_not_happen_again_is_no_failure(tmp_path: Path) -> None:
    with contextlib.closing(LocalEngine(1)) as engine:
        begun, ended = run_all([Planted(tmp_path / "log", 0, "crash_once")], engine)
    assert begun == Report(0)  # once, although there are two attempts
    assert ended.outcome is not None
    assert ended.outcome.reason is None
    assert ended.outcome.attempts == 2


def test_memory_of_the_process_is_measured(tmp_path: Path) -> None:
    small, large = outcomes(
        [Planted(tmp_path / "log", 0, seconds=0.3), Planted(tmp_path / "log", 1, "grow")], LocalEngine(1), Limits(4.0)
    )
    assert 5e6 < small.peak < 2e8
    assert str(large.reason) == "it did not end within 4 s"


def test_estimated_memory_decides_what_runs_at_once(tmp_path: Path) -> None:
    needs = [Needs(memory) for memory in (600, 600, 300, 300, 5000)]
    works = [
        Planted(tmp_path / "log", index, "meet" if index in (2, 3) else "answer", seconds=0.5, needs=each)
        for index, each in enumerate(needs)
    ]
    ended = outcomes(works, LocalEngine(4, memory=1000), Limits(60.0))
    assert [outcome.reason for outcome in ended] == [None] * 5  # the two small ones ran at once
    times = spans(tmp_path / "log")
    for (a, first), (b, second) in itertools.combinations(enumerate(needs), 2):
        together = times[a][0] < times[b][1] and times[b][0] < times[a][1]
        assert not together or first.memory + second.memory <= 1000


def test_timed_work_runs_alone_and_last(tmp_path: Path) -> None:
    works = [Planted(tmp_path / "log", index, seconds=0.1, needs=Needs(0, index % 2 == 0)) for index in range(6)]
    outcomes(works, LocalEngine(3))
    times = spans(tmp_path / "log")
    timed = [times[index] for index in (0, 2, 4)]
    assert min(begin for begin, _ in timed) >= max(times[index][1] for index in (1, 3, 5))
    assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(timed))


def test_timed_work_of_two_commands_runs_one_after_the_other(tmp_path: Path) -> None:
    works = [Planted(tmp_path / "log", index, seconds=0.5, needs=Needs(timed=True)) for index in range(2)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda work: outcomes([work], LocalEngine(1)), works))
    first, second = sorted(spans(tmp_path / "log").values())
    assert second[0] >= first[1]


def test_any_executor_runs_the_same_work(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        engine = ExecutorEngine(executor)
        ended = outcomes([Planted(tmp_path / "log", index) for index in range(3)], engine)
    assert [outcome.answer and outcome.answer["index"] for outcome in ended] == [0, 1, 2]
    assert all(outcome.answer and outcome.answer["pid"] != os.getpid() for outcome in ended)


def test_an_executor_that_cancels_work_is_one_error(tmp_path: Path) -> None:
    executor = ThreadPoolExecutor(1)
    reports = run_all([Planted(tmp_path / "log", index, seconds=0.2) for index in range(3)], ExecutorEngine(executor))
    assert next(reports) == Report(0)
    executor.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(RuntimeFailure, match="the executor cancelled work"):
        list(reports)


def test_stored_work_is_found_right_before_it_would_run(tmp_path: Path) -> None:
    works = [Planted(tmp_path / "log", index, seconds=0.05) for index in range(4)]
    stored = Outcome({"index": "stored"}, None, 0.0)
    asked: list[int] = []

    def find(index: int) -> Outcome | None:
        asked.append(index)
        return stored if index == 2 else None

    with contextlib.closing(LocalEngine(1)) as engine:
        reports = [report for report in run_all(works, engine, find=find) if report.outcome is not None]
    assert [(report.index, report.found) for report in reports] == [(0, False), (1, False), (2, True), (3, False)]
    assert asked == [0, 1, 2, 3]
    assert set(spans(tmp_path / "log")) == {0, 1, 3}


def test_closing_the_engine_ends_what_runs(tmp_path: Path) -> None:
    engine = LocalEngine(2)
    reports: Iterator[Report] = run_all([Planted(tmp_path / "log", index, "hang") for index in range(4)], engine)
    next(reports)
    engine.close()  # returns although both hang


def test_a_worker_with_other_code_refuses(tmp_path: Path) -> None:
    outcome = isolated(Planted(tmp_path / "log", 0), Limits(code="another"))
    assert "has another version of sardonyx" in str(outcome.reason)
    assert not (tmp_path / "log").exists()
