"""Where a model waits for its turns: a session in this process, or (in `isolated.py`) one in a process of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from sardonyx.errors import UsageError
from sardonyx.measure.rounds import SLOT, Run, slot
from sardonyx.runtime import Feeds, Value
from sardonyx.runtime.timed import Settings, Timed


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
