"""A Dask cluster of real processes for benchmarks/fleet.py: a scheduler, workers, and faults on request.

As a preload of a worker (`dask worker --preload fleet_cluster.py`) it counts how often each piece of work is begun and
ended there, in the file that COUNTS names.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COUNTS = "FLEET_COUNTS"
PATIENCE = 60.0  # seconds for a process to start
_DASK = (sys.executable, "-m", "distributed.cli.dask_{}")


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that imports sardonyx and these benchmarks."""
    import sardonyx

    paths = (str(Path(sardonyx.__file__).parents[1]), str(HERE))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **more}


def free_port() -> int:
    """Return a port that nothing listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Cluster:
    """A scheduler and worker processes on this machine.

    Args:
        folder: for logs and the counts.
        workers: how many processes, each with one thread; 0: none.
        memory: gigabytes that each declares.
    """

    def __init__(self, folder: Path, workers: int = 2, memory: float = 8) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.counts = folder / "counts.log"
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard")
        self.workers = [
            self._start("worker", self.address, *_worker_words(memory, timing=number == 0, folder=folder))
            for number in range(workers)
        ]
        wait_for(lambda: _is_open(self.port), "the scheduler listens")

    def _start(self, kind: str, *words: str) -> subprocess.Popen[bytes]:
        number = len(list(self._folder.glob(f"{kind}-*.log")))
        command = [*_DASK[:2], _DASK[2].format(kind), *words]
        with (self._folder / f"{kind}-{number}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(**{COUNTS: str(self.counts)}),
                start_new_session=True,  # so that its own children end with it
            )

    def kill_worker(self) -> int | None:
        """Kill the process that runs the work of a worker; its nanny starts another one. Returns its number."""
        import psutil

        for worker in self.workers[:1]:
            self.workers.append(self.workers.pop(0))  # the next one next time
            for process in psutil.Process(worker.pid).children():
                if any("spawn_main" in word for word in process.cmdline()):
                    process.send_signal(signal.SIGKILL)
                    return process.pid
        return None

    def restart_scheduler(self) -> None:
        """Kill the scheduler and start another one at the same address."""
        self.scheduler.kill()
        self.scheduler.wait()
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard")

    def counted(self) -> dict[str, Counter[str]]:
        """Return how often each piece of work was begun and ended on a worker."""
        found: dict[str, Counter[str]] = {"begun": Counter(), "ended": Counter()}
        for line in self.counts.read_text().splitlines() if self.counts.exists() else ():
            kind, _, name = line.partition(" ")
            found[kind][name] += 1
        return found

    def close(self) -> None:
        """End all processes."""
        for process in (*self.workers, self.scheduler):
            end(process)


def _worker_words(memory: float, *, timing: bool, folder: Path) -> list[str]:
    resources = f"memory={memory:g}" + (",timing=1" if timing else "")  # one worker of a machine times
    words = ["--nthreads", "1", "--nworkers", "1", "--memory-limit", "0", "--no-dashboard", "--resources", resources]
    return [*words, "--local-directory", str(folder), "--preload", str(Path(__file__).resolve())]


def _is_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition: Any, what: str, seconds: float = PATIENCE) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: It does not, in this time.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group, and the group with it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def cluster(folder: Path, workers: int = 2, memory: float = 8) -> Generator[Cluster]:
    """Provide a cluster with all its workers connected, ended at the end."""
    made = Cluster(folder, workers, memory)
    try:
        wait_for_workers(made.address, workers)
        yield made
    finally:
        made.close()


def wait_for_workers(address: str, count: int) -> None:
    """Wait until this many threads of workers are connected."""
    from distributed import Client

    with Client(address, set_as_default=False, timeout=PATIENCE) as client:
        until = time.monotonic() + PATIENCE
        threads: Any = client.nthreads
        while sum(threads().values()) < count:
            if time.monotonic() > until:
                raise TimeoutError(f"{count} workers")
            time.sleep(0.1)


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process and its children have used."""
    import psutil

    total = 0.0
    one = psutil.Process(process)
    for each in (one, *one.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def dask_setup(worker: Any) -> None:
    """Count the work of a Dask worker; Dask calls it for a preload."""
    del worker
    place = os.environ.get(COUNTS)
    if place is None:
        return
    from sardonyx.fleet import work as isolation

    plain = isolation.isolated

    def counting(work: Any, *rest: Any, **more: Any) -> Any:
        _note(place, f"begun {work.name}")
        outcome = plain(work, *rest, **more)
        _note(place, f"ended {work.name}")
        return outcome

    isolation.isolated = counting


def _note(place: str, line: str) -> None:
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
