"""Run work on an engine (child processes here, an executor, a Dask cluster), and report the progress."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import queue
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.errors import RuntimeFailure, SardonyxError, UsageError, reason
from sardonyx.fleet.work import ChildPool, Limits, Needs, Outcome, Task, isolated
from sardonyx.frontend.installed import require_installed
from sardonyx.records.progress import duration

_Client = Any  # distributed.Client, whose types are incomplete
# Works for each place of a cluster that are submitted before they can run, so that no worker waits.
_QUEUED_PER_PLACE = 2
_CONNECT_SECONDS = 10.0
_RECONNECT_SECONDS = 300.0  # in which a restarted scheduler must answer
_BYTES_PER_GB = 1e9


class Engine(ABC):
    """Runs work."""

    address = ""  # of a dashboard
    places = 1  # tasks that run at once; what is submitted beyond them waits

    @abstractmethod
    def has_room(self, needs: Needs, running: Collection[Needs]) -> bool:
        """Return whether to submit work with these needs beside that which has not ended; True if there is none."""

    @abstractmethod
    def submit(self, task: Task, limits: Limits, begun: Callable[[], None]) -> Future[Outcome]:
        """Start work, or put it in the queue of the engine; `begun` is called when it begins, from any thread."""

    def recover(self) -> None:
        """Prepare to submit again after futures were cancelled, or raise an error if that is impossible."""
        raise RuntimeFailure("the executor cancelled work", hint="repeat the command to continue")

    @abstractmethod
    def close(self) -> None:
        """End all work and free what the engine holds."""


class LocalEngine(Engine):
    """Child processes of this process: as many as there are cores, unless a number is given.

    The estimates of tasks that run at once add up to no more than `memory` bytes, or what is free now.
    """

    def __init__(self, workers: int | None = None, memory: int | None = None) -> None:
        self.places = workers or os.cpu_count() or 1
        self._memory = memory or _free_memory()
        self._children = ChildPool()
        self._threads = ThreadPoolExecutor(self.places)

    def has_room(self, needs: Needs, running: Collection[Needs]) -> bool:
        """Return whether a process and enough memory are free."""
        if not running:
            return True
        every = (needs, *running)
        if any(each.timed for each in every) or len(running) >= self.places:
            return False
        return self._memory is None or sum(each.memory for each in every) <= self._memory

    def submit(self, task: Task, limits: Limits, begun: Callable[[], None]) -> Future[Outcome]:
        """Run work in a thread that waits for a child process."""

        def run() -> Outcome:
            begun()
            return isolated(task, limits, self._children)

        return self._threads.submit(run)

    def close(self) -> None:
        """End all child processes."""
        self._children.close()
        self._threads.shutdown(wait=True, cancel_futures=True)


class ExecutorEngine(Engine):
    """Any executor; it belongs to the caller, who also says how much it takes at once."""

    def __init__(self, executor: Executor, places: int | None = None) -> None:
        self._executor = executor
        self.places = places or getattr(executor, "_max_workers", None) or os.cpu_count() or 1

    def has_room(self, needs: Needs, running: Collection[Needs]) -> bool:
        """Return whether the queue of the executor is short."""
        if any(each.timed for each in (needs, *running)):
            return not running
        return len(running) < _QUEUED_PER_PLACE * self.places

    def submit(self, task: Task, limits: Limits, begun: Callable[[], None]) -> Future[Outcome]:
        """Give the work to the executor."""
        begun()
        return self._executor.submit(isolated, task, limits)

    def close(self) -> None:
        """Leave the executor to the caller."""


class DaskEngine(Engine):
    """A Dask cluster.

    Workers may declare the resources `timing=1` (one worker of a machine; timed work then runs on these, one at a time
    on each) and `memory=GB` (estimates of tasks that run at once on a worker do not add up to more).

    `connect` returns a new client, after the scheduler was restarted; `cluster` is closed at the end.
    """

    def __init__(self, client: _Client, connect: Callable[[], _Client] | None = None, cluster: Any = None) -> None:
        self._client, self._connect, self._cluster = client, connect, cluster
        self.address: str = str(client.dashboard_link or "")
        self._looked = 0.0
        self._resources: dict[str, float] = {}  # the most that any worker has of each
        self._timers = 0  # machines with a worker for timed work
        self._refresh_workers()

    def has_room(self, needs: Needs, running: Collection[Needs]) -> bool:
        """Return whether the queue is short; timed work begins when other work has ended."""
        self._refresh_workers()
        most = max(self._timers, 1) if needs.timed else _QUEUED_PER_PLACE * self.places
        return len(running) < most and all(each.timed == needs.timed for each in running)

    def submit(self, task: Task, limits: Limits, begun: Callable[[], None]) -> Future[Outcome]:
        """Submit work with the resources that it needs and that workers declare."""
        begun()
        wanted: dict[str, float] = {}
        if task.needs.timed and "timing" in self._resources:
            wanted["timing"] = 1
        if task.needs.memory and "memory" in self._resources:  # more than any worker has would wait for ever
            wanted["memory"] = min(task.needs.memory / _BYTES_PER_GB, self._resources["memory"])
        answer = Future[Outcome]()
        answer.set_running_or_notify_cancel()
        submitted = self._client.submit(isolated, task, limits, pure=False, resources=wanted or None)
        submitted.add_done_callback(partial(_answer, answer))
        return answer

    def recover(self) -> None:
        """Connect again, within some minutes."""
        until = time.monotonic() + _RECONNECT_SECONDS
        while True:
            try:
                if self._client.status != "running":
                    self._client = self._connect() if self._connect is not None else self._client
                self._looked = 0.0
                self._refresh_workers()
                return
            except Exception as error:
                if time.monotonic() > until or self._connect is None:
                    raise RuntimeFailure(
                        f"the connection to the Dask scheduler is lost: {reason(error)}",
                        hint="start it again and repeat the command to continue",
                    ) from error
                time.sleep(1)

    def close(self) -> None:
        """Disconnect, and end the cluster if it was made for this; work that waits on another cluster is forgotten."""
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()

    def _refresh_workers(self) -> None:
        """Find out what the workers declare, every few seconds."""
        if time.monotonic() - self._looked < 5:
            return
        workers: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        self.places = max(1, sum(worker["nthreads"] for worker in workers.values()))
        self._resources = {}
        timers = Counter[str]()
        for worker in workers.values():
            declared: dict[str, float] = worker.get("resources") or {}
            timers[worker["host"]] += bool(declared.get("timing"))
            for name, amount in declared.items():
                self._resources[name] = max(amount, self._resources.get(name, 0))
        self._timers = sum(count > 0 for count in timers.values())
        for host, count in timers.items():
            if count > 1:
                raise UsageError(
                    f"{count} Dask workers on {host} declare the resource timing",
                    hint="declare it for one worker of each machine: timed work must run alone",
                )
        self._looked = time.monotonic()


def _answer(answer: Future[Outcome], ended: Any) -> None:
    """Give the result of a Dask future to another one.

    Dask's own executor gives none if the scheduler is lost between the end of the work and the transfer of its result.
    """
    import asyncio

    try:
        outcome = ended.result()
    except (asyncio.CancelledError, CancelledError) as error:
        answer.set_exception(CancelledError(reason(error)))
    except Exception as error:
        is_lost = isinstance(error, OSError) and ended.status != "error"  # the connection failed, not the work
        answer.set_exception(CancelledError(reason(error)) if is_lost else error)
    else:
        answer.set_result(outcome)


def open_engine(
    workers: int | None, memory: int | None, cluster: str | None, executor: Executor | None = None
) -> Engine:
    """Return a Dask cluster, an executor, or otherwise processes of this machine: see `LocalEngine`."""
    if cluster is not None:
        return connect(cluster)
    return LocalEngine(workers, memory) if executor is None else ExecutorEngine(executor)


def connect(cluster: str) -> DaskEngine:
    """Connect to a Dask cluster.

    Args:
        cluster: the address of a scheduler (`tcp://host:8786`), a scheduler file, or `FILE.py:NAME` or `MODULE:NAME` of
            a function or class that returns a cluster.

    Raises:
        UsageError: Dask is not installed, or there is no such cluster.
    """
    require_installed("distributed", "a cluster needs", extra="fleet")
    _quiet()
    made = None if "://" in cluster or Path(cluster).is_file() else _made(cluster)

    def client() -> _Client:
        from distributed import Client

        if made is None and Path(cluster).is_file():
            return Client(scheduler_file=cluster, timeout=_CONNECT_SECONDS, set_as_default=False)
        return Client(cluster if made is None else made, timeout=_CONNECT_SECONDS, set_as_default=False)

    try:
        return DaskEngine(client(), client, made)
    except (OSError, TimeoutError, ValueError, TypeError) as error:  # TypeError: Dask has no certificate for tls://
        start = "start one with `dask scheduler`, and workers with `dask worker ADDRESS`"
        raise UsageError(
            f"there is no Dask scheduler at {cluster}: {reason(error)}",
            hint=f"{start}; docs/fleet.md shows how, also with certificates",
        ) from error


def _made(cluster: str) -> object:
    """Return the cluster that a function or class makes."""
    place, _, name = cluster.rpartition(":")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None, "it has the ending of a module"
            assert spec.loader is not None, "so it has a loader"
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        return getattr(module, name)()
    except Exception as error:  # whatever the code of the user raises
        raise UsageError(
            f"{cluster} is not a Dask cluster: {reason(error)}",
            hint="give tcp://HOST:PORT, a scheduler file, or FILE.py:FUNCTION that returns a cluster",
        ) from error


def _quiet() -> None:
    """Keep Dask's own messages off the terminal; what they say of lost connections becomes a reason or one error."""
    import logging

    import distributed as _  # noqa: F401 (it sets levels of its own when it is imported)

    loggers = ("distributed", "distributed.deploy.ssh", "distributed.client", "distributed.scheduler")
    for name in (*loggers, "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _free_memory() -> int | None:
    """Return the bytes of memory that are free or can be freed; None where it is not known."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


MAX_ATTEMPTS = 2  # of work whose process dies
_POLL_SECONDS = 0.5  # seconds; waiting for a queue without a limit cannot be interrupted on every system


class Report(Struct, frozen=True):
    """Work has begun, or has ended if there is an outcome."""

    index: int  # among the tasks
    outcome: Outcome | None = None
    found: bool = False  # an earlier run, or another one at the same time, has computed it


def run_all(
    tasks: Sequence[Task],
    engine: Engine,
    limits: Limits | None = None,
    find: Callable[[int], Outcome | None] = lambda _index: None,
    idle: Callable[[], object] = lambda: None,
) -> Generator[Report]:
    """Run all tasks, timed ones last, and yield reports until each has ended; closing the engine ends all work.

    `find` returns the stored outcome of the work with an index: it is called right before the work would run. `idle` is
    called every half second in which nothing begins or ends.
    """
    limits, running = limits or Limits(), dict[int, Needs]()  # by index: tasks that were submitted and have not ended
    waiting = deque(sorted(range(len(tasks)), key=lambda index: tasks[index].needs.timed))
    attempts, begun = dict[int, int](), set[int]()
    events: queue.SimpleQueue[tuple[int, Future[Outcome] | None]] = queue.SimpleQueue()  # None: the work has begun
    while waiting or running:
        while waiting and engine.has_room(tasks[waiting[0]].needs, running.values()):
            index = waiting.popleft()
            if index not in attempts and (found := find(index)) is not None:
                yield Report(index, found, found=True)
                continue
            running[index] = tasks[index].needs
            attempts[index] = attempts.get(index, 0) + 1
            submitted = engine.submit(tasks[index], limits, lambda index=index: events.put((index, None)))
            submitted.add_done_callback(lambda future, index=index: events.put((index, future)))
        if not running:
            continue
        try:
            index, future = events.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            idle()
            continue
        if future is None:
            if index not in begun:  # another attempt is not another beginning
                begun.add(index)
                yield Report(index)
            continue
        del running[index]
        outcome = _outcome(future)
        if outcome is None:  # the engine forgot it: this is no attempt
            engine.recover()
            attempts[index] -= 1
            waiting.appendleft(index)
        elif outcome.died and attempts[index] < MAX_ATTEMPTS:
            waiting.append(index)
        else:
            yield Report(index, replace(outcome, attempts=attempts[index]))


def _outcome(future: Future[Outcome]) -> Outcome | None:
    """Return the outcome of work, also if the engine failed; None if the engine cancelled it."""
    try:
        return future.result()
    except CancelledError:
        return None
    except SardonyxError:
        raise
    except Exception as error:  # of the engine
        died = type(error).__name__ == "KilledWorker"  # of Dask, also if the work only waited on workers that died
        return Outcome(None, "every worker that ran it died" if died else reason(error), 0.0, died=died)


STATUS = "status.json"
_STATUS_SECONDS = 2.0  # between two writes of the status
_MIN_ENDED_TASKS = 3  # tasks that must have ended before the remaining time is estimated
_MAX_NAMES = 3  # names of running tasks that are shown


class Status(Struct, frozen=True):
    """How far a run is; the contents of `status.json`."""

    state: str  # running, done, or stopped
    total: int
    done: int  # includes those that an earlier run computed
    reused: int
    failed: int
    running: int
    names: tuple[str, ...]  # of some that are running
    seconds: float  # since this run began
    left: float | None  # estimated seconds
    per_minute: float
    updated: str
    coordinator: str  # machine and process
    dashboard: str = ""

    def line(self) -> str:
        """Return the status in one line."""
        parts = [f"{self.done + self.failed}/{self.total}"]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.running} running"] if self.running > len(self.names) else [", ".join(self.names)]
        parts += [f"{self.per_minute:.0f} a minute"] if self.per_minute >= 1 else []
        parts += [f"about {duration(self.left)} left"] if self.left is not None else []
        return " · ".join(filter(None, parts))


class Tracker:
    """Counts reports, shows the status when it changes and every half second, and writes it as `status.json`."""

    def __init__(
        self,
        show: Callable[[Status], object] | None = None,
        write: Callable[[bytes], object] | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._show, self._write, self._engine = show, write, engine
        self._total = self._done = self._reused = self._failed = 0
        self._running: Counter[str] = Counter()
        self._start = time.monotonic()
        self._written = -_STATUS_SECONDS

    def expect(self, count: int) -> None:
        """Add tasks to the total."""
        self._total += count

    def update(self, name: str, report: Report) -> None:
        """Count a report about the work with a name."""
        if report.outcome is None:
            self._running[name] += 1
        else:
            if not report.found:
                self._running -= Counter((name,))
            self._reused += report.found
            self._done += report.outcome.reason is None
            self._failed += report.outcome.reason is not None
        self.refresh()

    def refresh(self) -> None:
        """Show the status now, and write it if the last one is some seconds old."""
        status = self.status("running")
        if self._show is not None:
            self._show(status)
        if time.monotonic() - self._written >= _STATUS_SECONDS:
            self._save(status)

    def end(self) -> None:
        """Write the last status: done, or stopped before everything was."""
        self._save(self.status("done" if self._done + self._failed == self._total else "stopped"))

    def status(self, state: str) -> Status:
        """Return the status now."""
        seconds = time.monotonic() - self._start
        ended = self._done + self._failed
        computed = ended - self._reused
        known = computed >= _MIN_ENDED_TASKS and seconds > 0
        running = self._running.total() if state == "running" else 0
        running = running if self._engine is None else min(running, self._engine.places)  # others wait at the engine
        return Status(
            state,
            self._total,
            self._done,
            self._reused,
            self._failed,
            running,
            tuple(self._running)[: min(_MAX_NAMES, running)],
            round(seconds, 1),
            round(seconds / computed * (self._total - ended), 1) if known and state == "running" else None,
            round(60 * computed / seconds, 1) if known else 0.0,
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            f"{platform.node()}, process {os.getpid()}",
            self._engine.address if self._engine is not None else "",
        )

    def _save(self, status: Status) -> None:
        if self._write is not None:
            self._write(msgspec.json.format(msgspec.json.encode(status), indent=2) + b"\n")
        self._written = time.monotonic()
