"""How far a run over many models is: for the table on the terminal, and for others in `status.json`."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable

import msgspec
from msgspec import Struct

from sardonyx.fleet.engines import Engine
from sardonyx.fleet.execution import Report
from sardonyx.records.progress import duration

STATUS = "status.json"
_EVERY = 2.0  # seconds between two writes of the status
_ENOUGH = 3  # works that must have ended before the remaining time is estimated
_MAX_NAMES = 3  # names of running works that are shown


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
    """Counts reports, shows the status, and writes it.

    Args:
        show: called with the status when it changes, and every half second.
        write: writes the bytes of `status.json`.
        engine: where the work runs.
    """

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
        self._written = -_EVERY

    def expect(self, count: int) -> None:
        """Add works to the total."""
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
        if time.monotonic() - self._written >= _EVERY:
            self._save(status)

    def end(self) -> None:
        """Write the last status: done, or stopped before everything was."""
        self._save(self.status("done" if self._done + self._failed == self._total else "stopped"))

    def status(self, state: str) -> Status:
        """Return the status now."""
        seconds = time.monotonic() - self._start
        ended = self._done + self._failed
        computed = ended - self._reused
        known = computed >= _ENOUGH and seconds > 0
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
