"""Cells computed in processes of their own: several at once, and one that dies takes only its cell along."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import msgspec

from sardonyx.runtime.worker_process import Died, Worker
from sardonyx.studies.experiment import Outcome
from sardonyx.studies.worker import Order

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # sums do not depend on the cores then
_PATIENCE = 0.5  # seconds between looks at the keyboard, where waiting cannot be interrupted


@dataclass(frozen=True, slots=True)
class Report:
    """A cell was begun, or has ended where it has an outcome."""

    index: int  # among the orders
    outcome: Outcome | None = None


def carried_out(orders: Sequence[Order], jobs: int) -> Generator[Report]:
    """Compute all orders, `jobs` at once, and report as it goes; closing the generator ends all processes."""
    waiting = deque(enumerate(orders))
    reports: queue.Queue[Report | BaseException] = queue.Queue()
    crew = [_Member(waiting, reports) for _ in range(min(jobs, len(orders)))]
    try:
        for member in crew:
            member.start()
        left = len(orders)
        while left:
            try:
                report = reports.get(timeout=_PATIENCE)
            except queue.Empty:
                continue
            if isinstance(report, BaseException):
                raise report
            left -= report.outcome is not None
            yield report
    finally:
        waiting.clear()
        for member in crew:
            member.stop()


class _Member(threading.Thread):
    """One process at a time, fed by a thread of ours: blocking reads are what works on every system."""

    def __init__(self, waiting: deque[tuple[int, Order]], reports: queue.Queue[Report | BaseException]) -> None:
        super().__init__(daemon=True)
        self._waiting, self._reports = waiting, reports
        self._worker: Worker | None = None
        self._stopped = False
        self._lock = threading.Lock()  # a process is not begun while we are being stopped

    def run(self) -> None:
        """Take orders until none is left."""
        try:
            while self._waiting:
                try:
                    index, order = self._waiting.popleft()
                except IndexError:
                    return
                self._reports.put(Report(index))
                self._reports.put(Report(index, self._ask(order)))
        except BaseException as error:  # told where it is waited for
            self._reports.put(error)
        finally:
            self._end()

    def stop(self) -> None:
        """End the process, whatever it is doing, and the thread with it."""
        with self._lock:
            self._stopped = True
            if self._worker is not None:
                self._worker.kill()
        if self.is_alive():
            self.join()

    def _ask(self, order: Order) -> Outcome:
        worker = self._at_work()
        if worker is None:
            return Outcome(None, "stopped", 0.0)
        try:
            return msgspec.json.decode(worker.ask(order), type=Outcome)
        except Died as error:
            self._end()
            return Outcome(None, f"its process {error}", 0.0)

    def _at_work(self) -> Worker | None:
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
