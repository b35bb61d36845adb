"""Cells computed in processes of their own: several at once, and one that dies takes only its cell along."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import msgspec

from sardonyx.studying.experiment import Outcome
from sardonyx.studying.worker import Order, receive, send

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
        self._process: subprocess.Popen[bytes] | None = None
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
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
        if self.is_alive():
            self.join()

    def _ask(self, order: Order) -> Outcome:
        process = self._at_work()
        if process is None:
            return Outcome(None, "stopped", 0.0)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            send(process.stdin, pickle.dumps(order))
            data = receive(process.stdout)
        except OSError:
            data = None
        if data is None:
            self._end()
            return Outcome(None, f"its process died: {_how(process.wait())}", 0.0)
        return msgspec.json.decode(data, type=Outcome)

    def _at_work(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopped:
                return None
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "sardonyx.studying.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=os.environ | dict.fromkeys(_ONE_THREAD, "1") | {"PYTHONPATH": os.pathsep.join(sys.path)},
                )
            return self._process

    def _end(self) -> None:
        """Close the process's input, at which it ends itself, and see it off."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue  # what was left to write has nobody to read it


def _how(code: int) -> str:
    if code >= 0:
        return f"it ended with code {code}"
    why = ", for want of memory perhaps" if code == -signal.SIGKILL else ""
    return f"signal {-code}{why}"
