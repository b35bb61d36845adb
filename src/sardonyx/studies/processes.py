"""Compute cells in worker processes, several at once, and report progress; if a process dies, only its cell fails."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence

import msgspec
from msgspec import Struct

from sardonyx.records.progress import Progress
from sardonyx.runtime.worker_process import Worker, WorkerDied
from sardonyx.studies.experiment import Cell, Outcome
from sardonyx.studies.worker import Task

_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)  # so that sums do not depend on the number of cores
_POLL = 0.5  # seconds; waiting for a queue without a limit cannot be interrupted on every system
_ENOUGH = 3  # cells that must have ended before the remaining time is estimated


class Report(Struct, frozen=True):
    """A cell has begun, or has ended if there is an outcome."""

    index: int  # among the tasks
    outcome: Outcome | None = None


def compute_all(tasks: Sequence[Task], jobs: int) -> Generator[Report]:
    """Compute all tasks, `jobs` at once, and yield reports; closing the generator ends all processes."""
    waiting = deque(enumerate(tasks))
    reports: queue.Queue[Report | BaseException] = queue.Queue()
    threads = [_WorkerThread(waiting, reports) for _ in range(min(jobs, len(tasks)))]
    try:
        for thread in threads:
            thread.start()
        remaining = len(tasks)
        while remaining:
            try:
                report = reports.get(timeout=_POLL)
            except queue.Empty:
                continue
            if isinstance(report, BaseException):
                raise report
            remaining -= report.outcome is not None
            yield report
    finally:
        waiting.clear()
        for thread in threads:
            thread.stop()


class _WorkerThread(threading.Thread):
    """Sends tasks to one worker process; a thread for each, since blocking reads work on every system."""

    def __init__(self, waiting: deque[tuple[int, Task]], reports: queue.Queue[Report | BaseException]) -> None:
        super().__init__(daemon=True)
        self._waiting, self._reports = waiting, reports
        self._worker: Worker | None = None
        self._stopped = False
        self._lock = threading.Lock()  # so that no process is started while the thread is being stopped

    def run(self) -> None:
        """Compute tasks until none is left."""
        try:
            while self._waiting:
                try:
                    index, task = self._waiting.popleft()
                except IndexError:
                    return
                self._reports.put(Report(index))
                self._reports.put(Report(index, self._ask(task)))
        except BaseException as error:  # raised in `compute_all`
            self._reports.put(error)
        finally:
            self._end()

    def stop(self) -> None:
        """End the process, whatever it is doing, and the thread."""
        with self._lock:
            self._stopped = True
            if self._worker is not None:
                self._worker.kill()
        if self.is_alive():
            self.join()

    def _ask(self, task: Task) -> Outcome:
        worker = self._running_worker()
        if worker is None:
            return Outcome(None, "stopped", 0.0)
        try:
            return msgspec.json.decode(worker.ask(task), type=Outcome)
        except WorkerDied as error:
            self._end()
            return Outcome(None, f"its process {error}", 0.0)

    def _running_worker(self) -> Worker | None:
        with self._lock:
            if self._stopped:
                return None
            if self._worker is None:
                self._worker = Worker("sardonyx.studies.worker", dict.fromkeys(_ONE_THREAD, "1"))
            return self._worker

    def _end(self) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


class StudyProgress:
    """Calls a progress callback as cells begin and end: how many are done, what is running, and the time remaining.

    Args:
        total: number of cells in this part of the study, including stored ones.
        missing: number of cells to compute now.
        progress: the callback.
    """

    def __init__(self, total: int, missing: int, progress: Progress | None) -> None:
        self._total, self._missing, self._progress = total, missing, progress
        self._ended = 0
        self._running: dict[tuple[str, str, str], str] = {}
        self._start = time.monotonic()

    def update(self, cell: Cell, *, ended: bool) -> None:
        """Report that a cell has begun or ended."""
        name = (cell.experiment, cell.model, cell.key)
        if ended:
            self._running.pop(name, None)
            self._ended += 1
        else:
            self._running[name] = f"{cell.experiment} of {cell.model}" if cell.model else cell.experiment
        if self._progress is not None:
            self._progress(self._line(), (self._total - self._missing + self._ended) / self._total)

    def _line(self) -> str:
        done = f"{self._total - self._missing + self._ended}/{self._total}"
        running = ", ".join(dict.fromkeys(self._running.values()))
        return " · ".join(filter(None, (done, running, self._remaining())))

    def _remaining(self) -> str:
        if self._ended < _ENOUGH:
            return ""
        seconds = (time.monotonic() - self._start) / self._ended * (self._missing - self._ended)
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"
