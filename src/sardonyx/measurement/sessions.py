"""Where a model waits for its turns: a session in this process, or (in `isolated.py`) one in a process of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.measurement.interleaving import SLOT, Run, slot
from sardonyx.records.bench import Start
from sardonyx.runtime import Feeds, Value
from sardonyx.runtime.timed import Settings, Timed
from sardonyx.runtime.worker_process import Died, Worker


class Timepiece(StrEnum):
    """Which time counts."""

    WALL = "wall"  # what passes
    CPU = "cpu"  # what the processor spends on the thread that runs the model: what it spends on others is left out


@dataclass(frozen=True, slots=True)
class Pace:
    """How a turn is taken."""

    seconds: float = SLOT
    clock: Timepiece = Timepiece.WALL


class Lane(Protocol):
    """A loaded model that can be timed."""

    def feed(self, feeds: Feeds, pace: Pace) -> float:
        """Run on these from now on, at this pace; the seconds that the first of those runs took."""
        ...

    def turn(self) -> float:
        """One short slot of runs; seconds a run."""
        ...

    def answers(self) -> list[Value]:
        """What the model says to its feeds."""
        ...

    def close(self) -> None:
        """Give everything back; nothing is asked of it afterwards."""
        ...


class Here:
    """A model in this process."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self._model = Timed(path, settings)
        self.load_seconds = self._model.load_seconds
        self._answers: list[Value] = []
        self._turn: Run | None = None

    def feed(self, feeds: Feeds, pace: Pace) -> float:
        """Run on these from now on, at this pace."""
        missing = next((name for name in self._model.inputs if name not in feeds), None)
        if missing is not None:
            raise UsageError(
                f"nothing is given for its input {missing!r}", hint="all files are run on the inputs of the first one"
            )
        run = self._model.ready(feeds)
        began = time.perf_counter()
        self._answers = run()
        seconds = time.perf_counter() - began
        now = time.thread_time if pace.clock is Timepiece.CPU else time.perf_counter
        self._turn = slot(run, seconds=pace.seconds, now=now)
        return seconds

    def turn(self) -> float:
        """One short slot of runs."""
        assert self._turn is not None, "a lane is fed before it takes turns"
        return self._turn()

    def answers(self) -> list[Value]:
        """What the model said to its feeds the first time."""
        return self._answers

    def close(self) -> None:
        """Drop the session."""
        self._turn = None
        self._answers = []
        del self._model


# A model in a process of its own: for turns that share no memory with other models, and for honest first times.
#
# Load time, first run and peak memory are those of a fresh process in either mode of `bench`: in a process that has
# loaded a model before, the allocator and the file cache of the system make each of them look better.

_WORKER = "sardonyx.measurement.worker"


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
