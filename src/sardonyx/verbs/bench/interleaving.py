"""Time contenders in turns until the result is clear, which makes timings on a shared machine comparable.

Every round runs each contender for one short slot, in a new random order, and the reference twice, the second time in
a session of its own if the caller has one: the difference between the two is what this machine cannot distinguish from
noise at this time. Stopping as soon as a difference appears would find differences that do not exist (optional
stopping). The result is therefore evaluated only at fixed rounds, and the race ends early only if all intervals are
narrow, or if every finding also holds at a far stricter level than the reported one.
`benchmarks/believable.py` measures how often such findings are wrong.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from sardonyx.common import gc_pause
from sardonyx.records.bench import Comparison, Finding
from sardonyx.verbs.bench.statistics import Estimate, estimate

if TYPE_CHECKING:
    from sardonyx.records.progress import Progress

SLOT_SECONDS = 0.05  # of one slot, in which short runs are repeated
MIN_ROUNDS = 12  # rounds that always take place
# The same if 12 take longer than allowed and than `SLOW_SECONDS`; intervals are wider, and cover as often.
MIN_SLOW_ROUNDS = 6
SLOW_SECONDS = 3.0
EARLY_STOP_LEVEL = 0.999  # level at which a finding may end the race early
# Smallest noise floor. Sessions of one file differ permanently by where their memory is placed: half a percent is
# common, and two sessions of the reference do not show how far a third may be off.
MIN_NOISE_FLOOR = 0.012
NOISE_FLOOR_LEVEL = 0.5  # level of the interval of the reference's two sessions that gives the noise floor
_EVALUATION_GROWTH = 1.5  # ratio of the rounds of successive evaluations

Run = Callable[[], float]  # runs one slot and returns the seconds of one run
Now = Callable[[], float]


class Race(Struct, frozen=True):
    """The measurements of a race: seconds of one run in every round."""

    reference: str
    seconds: dict[str, tuple[float, ...]]
    twin: tuple[float, ...]  # the reference's second slot of each round
    spent: float  # seconds of the whole race, including warming up
    seed: int

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return len(self.twin)

    def floor(self) -> float:
        """Return the noise floor: the relative difference of the reference from itself, at least `MIN_NOISE_FLOOR`."""
        return max(MIN_NOISE_FLOOR, self.against_itself().difference(NOISE_FLOOR_LEVEL))

    def comparison(self, name: str, against: str | None = None) -> Comparison:
        """Compare one contender with another, by default with the reference."""
        return self.estimate(name, against).comparison(floor=self.floor())

    def estimate(self, name: str, against: str | None = None) -> Estimate:
        """Estimate the ratio of two contenders; comparisons with the reference use both of its slots."""
        ours, theirs = self.seconds[name], self.seconds[against or self.reference]
        if name == self.reference and against is not None:
            return estimate(theirs, ours, self.twin, seed=self.seed).inverse()
        if against in (None, self.reference) and name != self.reference:
            return estimate(ours, theirs, self.twin, seed=self.seed)
        return estimate(ours, theirs, seed=self.seed)

    def against_itself(self) -> Estimate:
        """Estimate the ratio of the reference's first slots to its second ones."""
        return estimate(self.seconds[self.reference], self.twin, seed=self.seed)


def slot(run: Callable[[], object], *, seconds: float = SLOT_SECONDS, now: Now = time.perf_counter) -> Run:
    """Return a function that repeats a run for a short time and returns the seconds of the fastest one.

    Disturbances only ever add time, so the fastest run of a slot is the least disturbed. On two cores with eight other
    jobs, intervals from the fastest runs were a third as wide as from medians of slots for runs of 5 ms, and a tenth
    narrower at 15 ms; on an idle machine they were alike. Means were always the widest. The disadvantages: slots do not
    show runs that are occasionally slow by themselves, and a contender that is twice as fast has twice as many runs to
    take the fastest from, which favours it by about a third of the jitter of a run, well below the noise floor.

    Args:
        run: The function to time.
        seconds: The length of a slot.
        now: The clock. For one thread, `time.thread_time` does not count time given to other processes.
    """

    def once() -> float:
        began = last = now()
        fastest = math.inf
        while True:
            run()
            after = now()
            fastest, last = min(fastest, after - last), after
            if after - began + fastest / 2 >= seconds:
                return fastest

    return once


def race(
    runs: Mapping[str, Run],
    *,
    seconds: float,
    fewest: int = MIN_ROUNDS,
    narrow: float = 0.01,
    twin: Run | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    now: Now = time.perf_counter,
) -> Race:
    """Time contenders in turns.

    Args:
        runs: A function per contender that runs one slot, by name; the first is the reference.
        seconds: The time after which no new round begins, once there are `fewest`.
        fewest: The rounds that always take place.
        narrow: The race ends early if every interval is this narrow: its upper end over its lower end, minus one.
        twin: The reference in a second session. Without it the reference's only session runs twice a round, which
            shows the noise of the machine but not the difference between two sessions of one file.
        seed: Seed of the order within the rounds, and of the intervals.
        progress: Called with how far the race is.
        now: The clock for `seconds`.
    """
    reference, began, look = next(iter(runs)), now(), fewest
    times: dict[str, list[float]] = {name: [] for name in runs}
    again: list[float] = []
    turns = [(run, times[name]) for name, run in runs.items()] + [(twin or runs[reference], again)]
    shuffle = random.Random(seed).shuffle
    gc.collect()
    with gc_pause.paused():
        for run, _ in turns:
            run()  # the first slot of a session allocates and warms up; it does not count
        while True:
            shuffle(turns)
            for run, seconds_of_run in turns:
                seconds_of_run.append(run())
            spent = now() - began
            if progress is not None:
                progress(f"round {len(again)}", min(1.0, spent / seconds) if seconds else 1.0)
            over = len(again) >= fewest and spent >= seconds
            if over or len(again) >= look:
                rounds = {name: tuple(values) for name, values in times.items()}
                so_far = Race(reference, rounds, tuple(again), spent, seed)
                if over or _is_clear(so_far, narrow):
                    return so_far
                look = math.ceil(look * _EVALUATION_GROWTH)


def _is_clear(race: Race, narrow: float) -> bool:
    """Return whether every interval is narrow, or its finding also holds at the strict level."""
    floor_is_narrow = race.against_itself().comparison().width <= narrow
    floor = race.floor()
    others = [name for name in race.seconds if name != race.reference]
    for name in others:
        estimate = race.estimate(name)
        decided = estimate.comparison(floor=floor, level=EARLY_STOP_LEVEL).finding is not Finding.SAME
        if not decided and not (floor_is_narrow and estimate.comparison().width <= narrow):
            return False
    return floor_is_narrow or bool(others)
