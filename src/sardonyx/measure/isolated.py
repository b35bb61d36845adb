"""A model in a process of its own: for turns that share no memory with other models, and for honest first times.

Load time, first run and peak memory are those of a fresh process in either mode of `bench`: in a process that has
loaded a model before, the allocator and the file cache of the system make each of them look better.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sardonyx.bench_record import Start
from sardonyx.errors import RuntimeFailure
from sardonyx.measure.lanes import Pace
from sardonyx.runtime import Feeds, Value
from sardonyx.runtime.timed import Settings
from sardonyx.workers import Died, Worker

_WORKER = "sardonyx.measure.worker"


class Isolated:
    """A model in a worker process. Close it, or use it as a context."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self._worker = Worker(_WORKER)
        try:
            self.load_seconds: float = self._ask("load", str(path), settings)
        except BaseException:
            self.close()
            raise
        self.peak_bytes: int | None = None  # until the first run after the latest feeding

    @property
    def process(self) -> int:
        """The number of its process."""
        return self._worker.process

    def feed(self, feeds: Feeds, pace: Pace) -> float:
        """Run on these from now on, at this pace; the seconds that the first of those runs took."""
        seconds, self.peak_bytes = self._ask("feed", dict(feeds), pace)
        return seconds

    def turn(self) -> float:
        """One short slot of runs, by the worker's own clock."""
        return self._ask("turn")

    def answers(self) -> list[Value]:
        """What the model says to its feeds."""
        return self._ask("answers")

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._worker.close()

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, *request: Any) -> Any:
        try:
            state, *reply = self._worker.ask(request)
        except Died as error:
            raise RuntimeFailure(f"the process that runs it {error}") from error
        if state == "failed":
            kind, message, hint = reply
            raise kind(message, hint=hint)
        return reply[0]


def start(path: Path, settings: Settings, feeds: Feeds) -> Start:
    """Load a model and run it once, in a process that does nothing else."""
    with Isolated(path, settings) as fresh:
        first = fresh.feed(feeds, Pace())
        return Start(fresh.load_seconds, first, fresh.peak_bytes)
