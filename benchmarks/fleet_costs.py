"""What running work costs: overhead against a plain loop, and how far a coordinator, a scheduler and a store scale.

For benchmarks/fleet.py. The simulated workers are Dask workers with threads in one process. They do everything that
workers do except for the computation itself, in place of which they sleep.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fleet_cluster import Cluster, cluster, cpu_seconds, end, environment, wait_for_workers
from sardonyx.fleet.engines import DaskEngine, Engine, LocalEngine, connect, run_all
from sardonyx.fleet.work import Answer, Task

Row = dict[str, Any]
OBJECTS = 10  # Dask workers of a simulation at most; more threads in each beyond
CELLS = 10  # for each simulated worker
ROUNDS = 3  # of the measurement of overhead
IDLE = 3.0  # seconds in which the CPU time of idle processes is measured
WRITES = 200  # of each size to a store


class Pause(Task):
    """Work that computes, or sleeps, for some time."""

    def __init__(self, number: int, seconds: float, *, busy: bool = False) -> None:
        self.number, self.seconds, self.busy = number, seconds, busy

    @property
    def name(self) -> str:
        """Return its number."""
        return f"pause-{self.number}"

    def compute(self, folder: Path) -> Answer:
        """Use CPU time, or sleep."""
        del folder
        if self.busy:
            until = time.thread_time() + self.seconds
            while time.thread_time() < until:
                sum(range(1000))
        else:
            time.sleep(self.seconds)
        return {"number": self.number}


# ------------------------------------------------------------------------------------------ overhead


def overhead(folder: Path, length: float, cells: int, *, busy: bool, rounds: int = ROUNDS) -> list[Row]:
    """Compare a plain loop, the local engine and Dask, each with one worker, in turns.

    Args:
        folder: for logs.
        length: seconds of a cell.
        cells: how many in each turn.
        busy: whether cells compute; otherwise they sleep.
        rounds: how many turns of each.
    """
    works = [Pause(number, length, busy=busy) for number in range(cells)]
    with cluster(folder, 1) as made:
        engines: dict[str, Engine] = {"local": LocalEngine(1), "dask": connect(made.address)}
        try:
            return _overhead_rows(engines, works, rounds)
        finally:
            for engine in engines.values():
                engine.close()


def _overhead_rows(engines: dict[str, Engine], works: Sequence[Pause], rounds: int) -> list[Row]:
    first = {name: _timed(lambda engine=engine: _require_all(works[:1], engine)) for name, engine in engines.items()}
    plain: list[float] = []
    walls: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        plain.append(_timed(lambda: _loop(works)))
        for name, engine in engines.items():
            walls[name].append(_timed(lambda engine=engine: _require_all(works, engine)))
    each = statistics.median(plain) / len(works)
    return [
        {
            "engine": name,
            "busy": works[0].busy,
            "cells": len(works),
            "rounds": rounds,
            "seconds": each,
            "start": max(0.0, first[name] - each),  # of the child process that the first cell needs
            "overhead": statistics.median(wall / loop - 1 for wall, loop in zip(taken, plain, strict=True)),
            "cost": statistics.median(wall - loop for wall, loop in zip(taken, plain, strict=True)) / len(works),
        }
        for name, taken in walls.items()
    ]


def _loop(works: Sequence[Task]) -> None:
    for work in works:
        with tempfile.TemporaryDirectory() as folder:
            work.compute(Path(folder))


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# ------------------------------------------------------------------------------------------ simulated workers


def simulate(folder: Path, workers: int, seconds: Sequence[float], cells: int | None = None) -> Row:
    """Run sleeping cells on Dask's scheduler with many simulated workers.

    Args:
        folder: for logs.
        workers: how many.
        seconds: measured times of cells, drawn from at random.
        cells: how many; None: several for each worker.
    """
    rng = random.Random(workers)
    works = [Pause(number, rng.choice(seconds)) for number in range(cells or CELLS * workers)]
    made = Cluster(folder, 0)
    simulated = None
    try:
        words = [sys.executable, str(Path(__file__)), made.address, str(workers)]
        with (folder / "simulated.log").open("wb") as log:
            simulated = subprocess.Popen(words, stdout=log, stderr=log, env=environment(), start_new_session=True)
        wait_for_workers(made.address, workers)
        engine = connect(made.address)
        try:
            return _simulated_row(workers, works, engine, made.scheduler.pid, simulated.pid)
        finally:
            engine.close()
    finally:
        if simulated is not None:
            end(simulated)
        made.close()


def _simulated_row(workers: int, works: Sequence[Pause], engine: DaskEngine, scheduler: int, others: int) -> Row:
    def used() -> dict[str, float]:
        measured = {"scheduler": cpu_seconds(scheduler), "workers": cpu_seconds(others)}
        return measured | {"coordinator": time.process_time()}

    before = used()
    idle = _timed(lambda: time.sleep(IDLE))
    start = used()
    wall = _timed(lambda: _require_all(works, engine))
    after = used()
    beats = {name: (start[name] - before[name]) / idle for name in start}  # heartbeats cost time without cells, too
    costs = {name: max(1e-6, after[name] - start[name] - beats[name] * wall) / len(works) for name in start}
    mean = sum(work.seconds for work in works) / len(works)
    longest = max(work.seconds for work in works)
    return {
        "workers": workers,
        "cells": len(works),
        "mean": mean,
        "longest": longest,
        "wall": wall,
        "efficiency": mean * len(works) / (workers * wall),
        "against_best": max(longest, mean * len(works) / workers) / wall,  # no schedule is shorter
        "cpu": costs,
        "idle": beats,
        "limit": {name: mean * (1 - beats[name]) / costs[name] for name in ("scheduler", "coordinator")},
    }


def _require_all(works: Sequence[Task], engine: Engine) -> None:
    outcomes = [report.outcome for report in run_all(works, engine) if report.outcome is not None]
    done = sum(outcome.answer is not None for outcome in outcomes)
    if done != len(works):
        raise AssertionError(f"{len(works) - done} of {len(works)} failed: {outcomes[0].reason}")


class _Sleeping:
    """Takes the place of the child processes of a worker."""

    def run(self, work: Pause, folder: Path, limits: Any) -> Any:
        """Compute in this thread."""
        from sardonyx.fleet.work import Outcome

        del limits
        return Outcome(work.compute(folder), None, 0.0)


async def be_workers(address: str, count: int) -> None:
    """Be Dask workers with this many threads in all, until the scheduler ends."""
    from distributed import Worker

    from sardonyx.fleet import work as isolation

    isolation._CHILDREN = _Sleeping()  # type: ignore[assignment]
    sys.setswitchinterval(0.1)  # threads that wait for the interpreter wake up this often
    isolation.machine()  # it is kept; a thousand threads would all find it out at once
    objects = min(count, OBJECTS)
    shares = [count // objects + (number < count % objects) for number in range(objects)]
    workers = [Worker(address, nthreads=share, name=number, dashboard=False) for number, share in enumerate(shares)]
    for worker in workers:
        await worker
    await asyncio.gather(*(worker.finished() for worker in workers))


# ------------------------------------------------------------------------------------------ the store


def writes(url: str, sizes: Sequence[int], count: int = WRITES) -> list[Row]:
    """Return the time of writing and of finding one result in a store."""
    from sardonyx.fleet.storage import open_store

    store = open_store(url)
    return [_write_row(store, size, count) for size in sizes]


def _write_row(store: Any, size: int, count: int) -> Row:
    data = random.Random(size).randbytes(size)
    names = [f"{size}/{number}.json" for number in range(count)]
    written = sorted(_timed(lambda name=name: store.write(name, data)) for name in names)
    read = [_timed(lambda name=name: store.read(name)) for name in names]
    listed = _timed(lambda: store.names(f"{size}/"))
    slow = written[int(0.95 * count)]
    return {
        "bytes": size,
        "cells": count,
        "write": statistics.median(written),
        "slow": slow,
        "read": statistics.median(read),
        "list": listed,
    }


if __name__ == "__main__":
    asyncio.run(be_workers(sys.argv[1], int(sys.argv[2])))
