"""Contenders that take turns until the answer is clear: what makes timings of a shared machine comparable.

Every round runs each contender for one short slot, in another random order each time, and the reference twice, the
second time as a session of its own where the caller has one: how far those two lie apart is what this machine, now,
cannot tell from noise. Looking at the result while it comes in and stopping when one likes it would find differences
that are not there. So the race is looked at only at set times; it ends early when all intervals are narrow, or when
every verdict would stand at a far stricter level than the one it is told at.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sardonyx.ledger import Progress
from sardonyx.measure import statistics
from sardonyx.measure.statistics import Comparison, Finding

SLOT = 0.05  # seconds that one contender works within a round: what is shorter is repeated
FEWEST = 12  # rounds, however long they take
STRICT = 0.999  # level at which a verdict may end the race early
LEAST = 0.01  # smallest floor: sessions of one file differ about so much by where their memory happens to lie
_NEXT_LOOK = 1.3  # times the rounds of the last look

Run = Callable[[], float]  # one slot of work; answers the seconds that one run of it takes
Now = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Race:
    """What a race measured: seconds a run, round by round."""

    reference: str
    seconds: dict[str, tuple[float, ...]]  # of the reference: the geometric mean of its two slots in a round
    twins: tuple[tuple[float, ...], tuple[float, ...]]  # the reference's first and second slot of each round
    spent: float  # seconds that all rounds took
    seed: int

    @property
    def rounds(self) -> int:
        """How often everyone ran."""
        return len(self.twins[0])

    def floor(self, level: float = statistics.LEVEL) -> float:
        """The relative difference that two sessions of the reference showed in these rounds, at least `LEAST`."""
        return max(LEAST, statistics.noise_floor(*self.twins, level=level, seed=self.seed))

    def comparison(self, name: str, against: str | None = None, *, level: float = statistics.LEVEL) -> Comparison:
        """One contender over another, by default over the reference."""
        theirs = self.seconds[against or self.reference]
        return statistics.compare(self.seconds[name], theirs, floor=self.floor(level), level=level, seed=self.seed)


def slot(run: Callable[[], object], *, seconds: float = SLOT, now: Now = time.perf_counter) -> Run:
    """Repeats a run for a short while and answers the seconds that its fastest run took.

    What disturbs a run only ever adds to it, so the fastest of a slot is the least disturbed one.
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
    reference = next(iter(runs))
    turns = [*runs.items(), ("", twin or runs[reference])]
    took: dict[str, list[float]] = {name: [] for name, _ in turns}
    shuffle, began, look = random.Random(seed).shuffle, now(), FEWEST

    def so_far() -> Race:
        first, second = tuple(took[reference]), tuple(took[""])
        both = tuple(math.sqrt(one * two) for one, two in zip(first, second, strict=True))
        others = {name: tuple(took[name]) for name in runs if name != reference}
        return Race(reference, {reference: both} | others, (first, second), now() - began, seed)

    with _undisturbed():
        for _, run in turns:
            run()  # the first slot of a session allocates and warms up; it does not count
        while True:
            shuffle(turns)
            for name, run in turns:
                took[name].append(run())
            rounds, spent = len(took[""]), now() - began
            if tell is not None:
                tell(f"round {rounds}", min(1.0, spent / seconds) if seconds else 1.0)
            if rounds >= FEWEST and spent >= seconds:
                return so_far()
            if rounds >= look:
                if _settled(so_far(), narrow):
                    return so_far()
                look = math.ceil(look * _NEXT_LOOK)


def _settled(race: Race, narrow: float) -> bool:
    """Whether more rounds would change little: every interval narrow, or its verdict beyond a far stricter doubt."""
    twins_are_narrow = statistics.compare(*race.twins, seed=race.seed).width <= narrow
    for name in race.seconds:
        if name == race.reference:
            continue
        if twins_are_narrow and race.comparison(name).width <= narrow:
            continue
        if race.comparison(name, level=STRICT).finding is Finding.SAME:
            return False
    return twins_are_narrow or len(race.seconds) > 1


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
