"""One size of a benchmark: fresh starts of every file, then the race, and what both come to as a record."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.measurement import agreement, interleaving, sessions, statistics
from sardonyx.measurement.entrants import Contestant, opened, told_of
from sardonyx.measurement.sessions import Isolated, Lane, Pace, Timepiece
from sardonyx.records.bench import Point, Start, Timing
from sardonyx.records.progress import Progress
from sardonyx.runtime import Feeds, Value
from sardonyx.runtime.timed import Settings


@dataclass(frozen=True, slots=True)
class Planned:
    """A size to time models at."""

    sizes: dict[str, int]
    feeds: Feeds
    hint: str | None  # what to do where a model cannot be run on these


@dataclass(frozen=True, slots=True)
class Conditions:
    """What stays the same for all sizes."""

    settings: Settings
    clock: Timepiece
    isolate: bool
    seed: int


def started(
    contestants: Sequence[Contestant], planned: Planned, under: Conditions, times: int
) -> list[tuple[Start, ...]]:
    """Fresh starts of each file, in another order each time."""
    found: list[list[Start]] = [[] for _ in contestants]
    shuffle, order = random.Random(under.seed).shuffle, list(range(len(contestants)))
    for _ in range(times):
        shuffle(order)
        for place in order:
            with told_of(contestants[place].label, planned.hint):
                found[place].append(sessions.start(contestants[place].path, under.settings, planned.feeds))
    return [tuple(each) for each in found]


class Field:
    """All files, loaded and taking turns; the first is there a second time, as its own twin."""

    def __init__(self, contestants: Sequence[Contestant], under: Conditions, held: contextlib.ExitStack) -> None:
        self._contestants = contestants
        self._runners = (*contestants, contestants[0])
        self._under = under
        self._lanes: list[Lane] = []
        for each in self._runners:
            lane = opened(each, under.settings, isolate=under.isolate)
            held.callback(lane.close)
            self._lanes.append(lane)

    @property
    def processes(self) -> list[int]:
        """Where the files live, those that have a process of their own."""
        return [lane.process for lane in self._lanes if isinstance(lane, Isolated)]

    def race(self, planned: Planned, seconds: float, tell: Progress) -> interleaving.Race:
        """Let all take turns at one size; the contenders are called by their place."""
        slot = min(
            interleaving.SLOT, seconds / (interleaving.FEWEST * len(self._lanes))
        )  # so that little time is kept to as well
        pace = Pace(slot, self._under.clock)
        for lane, runner in zip(self._lanes, self._runners, strict=True):
            with told_of(runner.label, planned.hint):
                lane.feed(planned.feeds, pace)
        *turns, twin = [
            functools.partial(_turn, lane.turn, runner.label)
            for lane, runner in zip(self._lanes, self._runners, strict=True)
        ]
        named = {str(place): turn for place, turn in enumerate(turns)}
        return interleaving.race(named, twin=twin, seconds=seconds, seed=self._under.seed, tell=tell)

    def point(self, planned: Planned, race: interleaving.Race, starts: Sequence[tuple[Start, ...]]) -> Point:
        """What came out at one size."""
        reference = self._lanes[0].answers()
        timings = [self._timing(place, race, starts[place], reference) for place in range(len(self._contestants))]
        inputs = {name: _shape(value) for name, value in planned.feeds.items()}
        return Point(planned.sizes, inputs, race.floor(), tuple(timings))

    def _timing(self, place: int, race: interleaving.Race, starts: tuple[Start, ...], reference: list[Any]) -> Timing:
        times = race.seconds[str(place)]
        spread = statistics.spread(times)
        return Timing(
            label=self._contestants[place].label,
            seconds=times,
            median=spread.median,
            low_quartile=spread.low_quartile,
            high_quartile=spread.high_quartile,
            low_whisker=spread.low_whisker,
            high_whisker=spread.high_whisker,
            against_first=race.comparison(str(place)) if place else None,
            starts=starts,
            disagrees=agreement.difference(self._lanes[place].answers(), reference) if place else None,
        )


def _turn(turn: Callable[[], float], label: str) -> float:
    with told_of(label):
        return turn()


def _shape(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return "list" if isinstance(value, list) else "none"
