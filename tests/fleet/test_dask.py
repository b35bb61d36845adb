"""Work on a real Dask cluster: the same outcomes as here, although workers and the scheduler are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest

from fleet.planted_work import Planted
from fleet.test_execution import outcomes, spans
from sardonyx.errors import UsageError
from sardonyx.fleet import engines
from sardonyx.fleet.engines import LocalEngine, connect
from sardonyx.fleet.work import Needs, Outcome

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


class Cluster:
    """A scheduler and workers, as processes of this machine."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self._log = (folder / "dask.txt").open("ab")
        self._scheduler: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_scheduler(self) -> None:
        self._scheduler = self._start("scheduler", "--host", self.address, "--no-dashboard", "--no-show")

    def kill_scheduler(self) -> None:
        assert self._scheduler is not None
        os.killpg(self._scheduler.pid, signal.SIGKILL)
        self._scheduler.wait()

    def start_worker(self, resources: str = "") -> None:
        words = ("--resources", resources) if resources else ()
        self.workers.append(
            self._start("worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard", *words)
        )

    def kill_worker(self) -> None:
        worker = self.workers.pop(0)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def close(self) -> None:
        for process in (*self.workers, self._scheduler):
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._log.close()

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), str(ROOT / "src")))}
        command = [sys.executable, "-m", "dask", *words]
        return subprocess.Popen(command, env=env, start_new_session=True, stdout=self._log, stderr=self._log)


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", getattr(request, "param", "3"))
    cluster = Cluster(tmp_path)
    cluster.start_scheduler()
    yield cluster
    cluster.close()


def begun(log: Path, count: int = 1) -> None:
    """Wait until some work has begun."""
    until = time.monotonic() + 60
    while (not log.exists() or log.read_text().count("begins") < count) and time.monotonic() < until:
        time.sleep(0.02)


def meanwhile(do: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=do)
    thread.start()
    return thread


def test_a_cluster_gives_what_this_machine_gives(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_worker("timing=1,memory=2")
    kinds = ("answer", "fail", "crash", "answer")
    (tmp_path / "here").mkdir()
    here = [Planted(tmp_path / "here/log", index, does) for index, does in enumerate(kinds)]
    there = [
        Planted(tmp_path / "log", index, does, needs=Needs(10**12, index == 0)) for index, does in enumerate(kinds)
    ]
    local = outcomes(here, LocalEngine(1))
    remote = outcomes(there, connect(cluster.address))
    assert [outcome.reason for outcome in remote] == [outcome.reason for outcome in local]
    assert [outcome.attempts for outcome in remote] == [outcome.attempts for outcome in local]
    assert [outcome.answer and outcome.answer["parent"] for outcome in remote] == [
        cluster.workers[0].pid if does == "answer" else None for does in kinds
    ]
    assert all((tmp_path / f"result-{index}").read_text() == f"result {index}" for index in (0, 3))
    times = spans(tmp_path / "log")
    assert times[0][0] >= times[3][1]  # the timed one is the last


@pytest.mark.parametrize("cluster", ["0"], indirect=True)  # Dask gives up at once: it also counts work that only waited
def test_work_of_a_killed_worker_runs_again(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_worker()
    cluster.start_worker()

    def kill() -> None:
        begun(tmp_path / "log", 2)
        cluster.kill_worker()

    thread = meanwhile(kill)
    ended = outcomes([Planted(tmp_path / "log", index, seconds=1.0) for index in range(4)], connect(cluster.address))
    thread.join()
    assert [outcome.reason for outcome in ended] == [None] * 4
    assert len((tmp_path / "log").read_text().splitlines()) == 9  # one began twice: nothing else was done again
    assert set(spans(tmp_path / "log")) == {0, 1, 2, 3}


def test_a_restarted_scheduler_gets_the_work_again(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_worker()

    def restart() -> None:
        begun(tmp_path / "log", 2)
        cluster.kill_scheduler()
        cluster.kill_worker()
        cluster.start_scheduler()
        cluster.start_worker()

    thread = meanwhile(restart)
    ended = outcomes([Planted(tmp_path / "log", index, seconds=0.5) for index in range(4)], connect(cluster.address))
    thread.join()
    assert [outcome.reason for outcome in ended] == [None] * 4


class Ended:
    """A Dask future of work that has ended, whose result cannot be fetched."""

    def __init__(self, error: BaseException, status: str) -> None:
        self._error, self.status = error, status

    def result(self) -> Outcome:
        raise self._error


@pytest.mark.parametrize("lost", [CancelledError(), asyncio.CancelledError(), OSError("Stream is closed")])
def test_work_that_ended_when_the_scheduler_was_lost_is_submitted_again(lost: BaseException) -> None:
    answer = Future[Outcome]()
    engines._answer(answer, Ended(lost, "finished"))
    assert isinstance(answer.exception(timeout=0), CancelledError)


def test_work_that_failed_with_an_error_of_the_system_is_not_submitted_again() -> None:
    answer = Future[Outcome]()
    engines._answer(answer, Ended(OSError("No space left on device"), "error"))
    assert str(answer.exception(timeout=0)) == "No space left on device"


def test_two_workers_of_a_machine_for_timed_work_are_an_error(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_worker("timing=1")
    cluster.start_worker("timing=1")
    works = [Planted(tmp_path / "log", 0, seconds=12.0)]
    with pytest.raises(UsageError, match=r"2 Dask workers on 127.0.0.1 declare the resource timing"):
        outcomes(works * 8, connect(cluster.address))


def test_a_cluster_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_CONNECT_SECONDS", 1.0)
    with pytest.raises(UsageError, match=r"there is no Dask scheduler at tcp://127.0.0.1:1: OSError"):
        connect("tcp://127.0.0.1:1")
    with pytest.raises(UsageError, match=r"nothing.py:make is not a Dask cluster: FileNotFoundError"):
        connect("nothing.py:make")


# The commands of docs/fleet.md: who can connect.

PAGE = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")


def documented(start: str) -> list[str]:
    """The words of the only command of the page that begins with a text."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(start))
    return shlex.split(line)[1:]


@contextlib.contextmanager
def running(tmp_path: Path, *commands: list[str], **variables: str) -> Iterator[list[int]]:
    """Start `dask` with words of the page, and yield the processes."""
    with (tmp_path / "dask.txt").open("ab") as log:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "dask", *words],
                env=os.environ | variables | {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), str(ROOT / "src")))},
                start_new_session=True,
                stdout=log,
                stderr=log,
            )
            for words in commands
        ]
        try:
            yield [process.pid for process in processes]
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def connected(address: str) -> engines.DaskEngine:
    """Connect as soon as there is a worker."""
    until = time.monotonic() + 60
    while True:
        try:
            engine = connect(address)
            break
        except UsageError:
            assert time.monotonic() < until
            time.sleep(0.2)
    engine._client.wait_for_workers(1, timeout=60)
    return engine


def listening(process: int) -> set[str]:
    """The addresses on which a process and its children listen, as the kernel writes them."""
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    rows = [line.split() for line in lines]
    sockets = {f"socket:[{row[9]}]": row[1].partition(":")[0] for row in rows if row[3] == "0A"}
    waiting, found = [process], set[str]()
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}")
        for task in (folder / "task").iterdir():
            waiting += map(int, (task / "children").read_text().split())
        for descriptor in (folder / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(sockets.get(os.readlink(descriptor), ""))
    return found - {""}


def test_the_documented_cluster_of_one_machine_listens_on_no_network(tmp_path: Path) -> None:
    port = free_port()
    scheduler, worker = (
        [word.replace("8786", port).replace(":8787", ":0") for word in documented(start)]
        for start in ("dask scheduler --host", "dask worker tcp://")
    )
    worker[worker.index("--nworkers") + 1] = "1"
    with running(tmp_path, scheduler, worker) as processes, contextlib.closing(connected(worker[1])):
        assert [listening(process) for process in processes] == [{"0100007F"}] * 2


@pytest.mark.campaign  # half a minute
def test_nobody_gets_into_the_documented_cluster_without_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask.config
    import distributed as _  # noqa: F401 (it sets the defaults)

    openssl = next(line for line in PAGE.splitlines() if line.startswith("openssl "))
    for folder in (tmp_path, tmp_path / "other"):
        folder.mkdir(exist_ok=True)
        subprocess.run(shlex.split(openssl), cwd=folder, check=True, capture_output=True)
    (text,) = re.findall(r"```yaml\n(# ~/.config/dask/tls.yaml\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "tls.yaml").write_text(text.replace("/etc/dask/tls", str(tmp_path)))
    port = free_port()
    scheduler, worker = (
        [word.replace("8786", port).replace(":8787", ":0").replace("head", "127.0.0.1") for word in documented(start)]
        for start in ("dask scheduler --protocol tls", "dask worker tls://")
    )
    monkeypatch.setattr(engines, "_CONNECT_SECONDS", 3.0)

    def trusting(ca: Path, own: Path) -> Any:
        return dask.config.set(
            {
                "distributed.comm.tls.ca-file": str(ca / "cert.pem"),
                "distributed.comm.tls.client.cert": str(own / "cert.pem"),
                "distributed.comm.tls.client.key": str(own / "key.pem"),
            }
        )

    with running(tmp_path, scheduler, worker, DASK_CONFIG=str(tmp_path / "tls.yaml")):
        with trusting(tmp_path, tmp_path):
            (outcome,) = outcomes([Planted(tmp_path / "log", 0)], connected(worker[1]))
            assert outcome.reason is None
        with trusting(tmp_path, tmp_path / "other"), pytest.raises(UsageError, match="is no Dask scheduler"):
            connect(worker[1])
        for address in (worker[1], worker[1].replace("tls:", "tcp:")):  # without any certificate
            # In a process of its own: a client that cannot be made leaves Dask's event loop of a process unusable.
            command = [sys.executable, "-m", "sardonyx", "inspect", "a.onnx", "b.onnx", "--cluster", address]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
            assert done.returncode == 2, done.stderr
            assert f"error: there is no Dask scheduler at {address}: " in done.stderr
