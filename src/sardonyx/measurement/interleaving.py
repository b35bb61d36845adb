"""Contenders that take turns until the answer is clear: what makes timings of a shared machine comparable.

Every round runs each contender for one short slot, in another random order each time, and the reference twice, the
second time as a session of its own where the caller has one: how far those two lie apart is what this machine, now,
cannot tell from noise. Looking at the result while it comes in and stopping when one likes it would find differences
that are not there. So the race is looked at only now and then, at set rounds; it ends early when all intervals are
narrow, or when every verdict would stand at a far stricter level than the one it is told at.
`benchmarks/believable.py` shows how often such verdicts are wrong.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sardonyx.measurement.statistics import Estimate, estimate
from sardonyx.records.bench import Comparison, Finding

if TYPE_CHECKING:
    from sardonyx.records.progress import Progress

SLOT = 0.05  # seconds that one contender works within a round: what is shorter is repeated
FEWEST = 12  # rounds, however long they take
STRICT = 0.999  # level at which a verdict may end the race early
# Smallest floor. Sessions of one file differ for as long as they live, by where their memory happens to lie: half a
# percent is common, and two sessions of the reference alone cannot show how far a third may be off.
LEAST = 0.012
EVEN = 0.5  # the floor is how far apart the reference's two sessions are at even odds, or further
_NEXT_LOOK = 1.5  # times the rounds of the last look

Run = Callable[[], float]  # one slot of work; answers the seconds that one run of it takes
Now = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Race:
    """What a race measured: seconds a run, round by round."""

    reference: str
    seconds: dict[str, tuple[float, ...]]
    twin: tuple[float, ...]  # the reference's second slot of each round
    spent: float  # seconds that it took, warming up included
    seed: int

    @property
    def rounds(self) -> int:
        """How often everyone ran."""
        return len(self.twin)

    def floor(self) -> float:
        """The relative difference that the reference showed against itself in these rounds, at least `LEAST`."""
        return max(LEAST, self.against_itself().difference(EVEN))

    def comparison(self, name: str, against: str | None = None) -> Comparison:
        """One contender over another, by default over the reference."""
        return self.estimate(name, against).comparison(floor=self.floor())

    def estimate(self, name: str, against: str | None = None) -> Estimate:
        """The same without a verdict; who is compared with the reference is so with both of its slots."""
        ours, theirs = self.seconds[name], self.seconds[against or self.reference]
        if name == self.reference and against is not None:
            return estimate(theirs, ours, self.twin, seed=self.seed).turned()
        if against in (None, self.reference) and name != self.reference:
            return estimate(ours, theirs, self.twin, seed=self.seed)
        return estimate(ours, theirs, seed=self.seed)

    def against_itself(self) -> Estimate:
        """The reference's first slots over its second ones."""
        return estimate(self.seconds[self.reference], self.twin, seed=self.seed)


def slot(run: Callable[[], object], *, seconds: float = SLOT, now: Now = time.perf_counter) -> Run:
    """Repeats a run for a short while and answers the seconds that its fastest run took.

    What disturbs a run only ever adds to it, so the fastest of a slot is the least disturbed one. Measured on two
    cores with eight other jobs, intervals from the fastest runs were a third as wide as from the slots' medians where
    a run took 5 ms, and a tenth narrower at 15 ms; on an idle machine they are alike. Means were always the widest.
    The price: slots say nothing of runs that are slow now and then by themselves, and who is twice as fast has twice as
    many runs to be lucky with, which flatters it by about a third of the jitter of a run; a verdict never hangs on it.

    Args:
        run: what is timed.
        seconds: how long to go on.
        now: the clock. For one thread, `time.thread_time` leaves out what the system gave to others.
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
    narrow: float = 0.01,
    twin: Run | None = None,
    seed: int = 0,
    tell: Progress | None = None,
    now: Now = time.perf_counter,
) -> Race:
    """Let contenders take turns.

    Args:
        runs: one slot of work each, by name; the first is the reference.
        seconds: after which no new round begins, once there are `FEWEST`.
        narrow: the race ends early when every interval is so narrow: its upper end over its lower end, less one.
        twin: the reference once more, as a session of its own; without it the reference itself runs twice a round,
            which shows the noise of the machine, but not what two sessions of one file differ by.
        seed: of the order within the rounds, and of the intervals.
        tell: hears how far the race is.
        now: the clock that `seconds` is counted by.
    """
    reference, began, look = next(iter(runs)), now(), FEWEST
    took: dict[str, list[float]] = {name: [] for name in runs}
    again: list[float] = []
    turns = [(run, took[name]) for name, run in runs.items()] + [(twin or runs[reference], again)]
    shuffle = random.Random(seed).shuffle
    with _undisturbed():
        for run, _ in turns:
            run()  # the first slot of a session allocates and warms up; it does not count
        while True:
            shuffle(turns)
            for run, times in turns:
                times.append(run())
            spent = now() - began
            if tell is not None:
                tell(f"round {len(again)}", min(1.0, spent / seconds) if seconds else 1.0)
            over = len(again) >= FEWEST and spent >= seconds
            if over or len(again) >= look:
                so_far = Race(reference, {name: tuple(each) for name, each in took.items()}, tuple(again), spent, seed)
                if over or _settled(so_far, narrow):
                    return so_far
                look = math.ceil(look * _NEXT_LOOK)


def _settled(race: Race, narrow: float) -> bool:
    """Whether more rounds would change little: every interval narrow, or its verdict beyond a far stricter doubt."""
    known = race.against_itself().comparison().width <= narrow
    floor = race.floor()
    others = [name for name in race.seconds if name != race.reference]
    for name in others:
        found = race.estimate(name)
        clear = found.comparison(floor=floor, level=STRICT).finding is not Finding.SAME
        if not clear and not (known and found.comparison().width <= narrow):
            return False
    return known or bool(others)


@contextmanager
def _undisturbed() -> Generator[None]:
    """No collection of garbage while someone is timed."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
