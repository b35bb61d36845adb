"""One size of a benchmark: fresh starts of every model, the race, and the record of both."""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from sardonyx.measurement import interleaving, sessions, statistics
from sardonyx.measurement.entrants import Entrant, naming, open_session
from sardonyx.measurement.sessions import IsolatedSession, SlotOptions, TimedSession, TimingClock
from sardonyx.records.bench import Point, Start, Timing
from sardonyx.records.progress import Progress
from sardonyx.runtime import Array, Feeds, Value
from sardonyx.runtime.timed import Settings


class PlannedSize(Struct, frozen=True):
    """A size to time models at."""

    sizes: dict[str, int]
    feeds: Feeds
    hint: str | None  # shown if a model cannot be run on the feeds


class Conditions(Struct, frozen=True):
    """The settings shared by all sizes."""

    settings: Settings
    clock: TimingClock
    isolate: bool
    seed: int


def fresh_starts(
    entrants: Sequence[Entrant], planned: PlannedSize, times: int, conditions: Conditions, seconds: float
) -> list[tuple[Start, ...]]:
    """Start each model in a fresh process this many times, in a new order each time.

    There are fewer rounds of starts, but at least one, if these would take longer than `seconds`.
    """
    starts: list[list[Start]] = [[] for _ in entrants]
    shuffle, order = random.Random(conditions.seed).shuffle, list(range(len(entrants)))
    began = time.perf_counter()
    for number in range(times):
        if number and (time.perf_counter() - began) * (number + 1) / number > seconds:
            break
        shuffle(order)
        for index in order:
            with naming(entrants[index].label, planned.hint):
                starts[index].append(sessions.start(entrants[index].path, conditions.settings, planned.feeds))
    return [tuple(of_entrant) for of_entrant in starts]


class Sessions:
    """A session for every model, and a second one for the first model, which shows the noise."""

    def __init__(self, entrants: Sequence[Entrant], conditions: Conditions, stack: contextlib.ExitStack) -> None:
        self._entrants = entrants
        self._runners = (*entrants, entrants[0])
        self._conditions = conditions
        self._sessions: list[TimedSession] = []
        for runner in self._runners:
            session = open_session(runner, conditions.settings, isolate=conditions.isolate)
            stack.callback(session.close)
            self._sessions.append(session)

    @property
    def processes(self) -> list[int]:
        """The ids of the processes of isolated sessions."""
        return [session.process for session in self._sessions if isinstance(session, IsolatedSession)]

    def race(self, planned: PlannedSize, seconds: float, progress: Progress) -> interleaving.Race:
        """Time all models in turns at one size; contenders are named by their index."""
        # Shorter slots let the smallest number of rounds fit into little time.
        slot = min(interleaving.SLOT, seconds / (interleaving.FEWEST * len(self._sessions)))
        options = SlotOptions(slot, self._conditions.clock)
        a_round = 0.0
        for session, runner in zip(self._sessions, self._runners, strict=True):
            with naming(runner.label, planned.hint):
                a_round += max(slot, session.feed(planned.feeds, options))
        is_slow = interleaving.FEWEST * a_round > max(seconds, interleaving.SLOW)
        *turns, twin = [
            functools.partial(_turn, session.turn, runner.label)
            for session, runner in zip(self._sessions, self._runners, strict=True)
        ]
        runs = {str(index): turn for index, turn in enumerate(turns)}
        return interleaving.race(
            runs,
            twin=twin,
            seconds=seconds,
            fewest=interleaving.FEWEST_SLOW if is_slow else interleaving.FEWEST,
            seed=self._conditions.seed,
            progress=progress,
        )

    def point(self, planned: PlannedSize, race: interleaving.Race, starts: Sequence[tuple[Start, ...]]) -> Point:
        """Return the record of one size."""
        reference = self._sessions[0].outputs()
        timings = [self._timing(index, race, starts[index], reference) for index in range(len(self._entrants))]
        inputs = {name: _shape(value) for name, value in planned.feeds.items()}
        return Point(planned.sizes, inputs, race.floor(), tuple(timings))

    def _timing(self, index: int, race: interleaving.Race, starts: tuple[Start, ...], reference: list[Any]) -> Timing:
        times = race.seconds[str(index)]
        spread = statistics.spread(times)
        return Timing(
            label=self._entrants[index].label,
            seconds=times,
            median=spread.median,
            low_quartile=spread.low_quartile,
            high_quartile=spread.high_quartile,
            low_whisker=spread.low_whisker,
            high_whisker=spread.high_whisker,
            against_first=race.comparison(str(index)) if index else None,
            starts=starts,
            disagrees=output_difference(self._sessions[index].outputs(), reference) if index else None,
        )


def _turn(turn: Callable[[], float], label: str) -> float:
    with naming(label):
        return turn()


def _shape(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return "list" if isinstance(value, list) else "none"


# A benchmark of models that compute different things is misleading, and its numbers do not show it. The tolerance is
# loose; `verify` is stricter.

LOOSE = 0.05  # of the largest number of an output; lower precision and other kernels cause far less


def output_difference(ours: Sequence[Value], theirs: Sequence[Value]) -> str | None:
    """Return how outputs clearly differ from those of the first file, in one line; None if they do not."""
    if len(ours) != len(theirs):
        return f"it has {len(ours)} outputs, the first file has {len(theirs)}"
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True), 1):
        line = _of_values(mine, other)
        if line is not None:
            return f"output {index} {line}"
    return None


def _of_values(mine: Value, other: Value) -> str | None:
    if isinstance(mine, np.ndarray) and isinstance(other, np.ndarray):
        return _of_arrays(mine, other)
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        return next((line for pair in zip(mine, other, strict=True) if (line := _of_values(*pair))), None)
    return None if type(mine) is type(other) and not isinstance(mine, list) else "is of another kind"


def _of_arrays(mine: Array, other: Array) -> str | None:
    if mine.shape != other.shape:
        return f"has the shape {list(mine.shape)}, not {list(other.shape)}"
    if mine.dtype.kind not in "fiu" or other.dtype.kind not in "fiu":
        return None if mine.dtype.kind == other.dtype.kind else f"is {mine.dtype}, not {other.dtype}"
    ours, theirs = mine.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(finite, np.isfinite(ours)):
        return "is not finite where the first file's is, or the other way round"
    largest = _largest(theirs[finite])
    gap = _largest(ours[finite] - theirs[finite])
    if gap <= LOOSE * largest or gap <= 1e-6:
        return None
    return f"differs by up to {100 * gap / (largest or gap):.0f} % of its largest number"


def _largest(numbers: Any) -> float:
    return float(np.abs(numbers).max()) if numbers.size else 0.0
