"""A machine that is not there: seeded timings with the disturbances that real ones show, and a clock that obeys.

What the statistics promise is proven on these, where the truth is known and a year of runs takes a minute. The
disturbances are those of shared machines: jitter of every run, a drift of the whole machine, single runs that take far
longer, bursts of other work that last for seconds, clocks with coarse ticks, and sessions of one file that differ a
little for as long as they live.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from sardonyx.verbs.bench import interleaving
from sardonyx.verbs.bench.interleaving import Race


@dataclass(frozen=True)
class Noise:
    """How a machine disturbs what runs on it; all shares are relative to the undisturbed time."""

    jitter: float = 0.02  # deviation of the logarithm of every run
    drift: float = 0.0  # how far the whole machine goes up and down within a minute
    spikes: float = 0.0  # share of runs that take between once and five times as long again
    bursts: float = 0.0  # share of the time in which other work slows every run by a third, for seconds at a time
    tick: float = 0.0  # seconds by which the clock goes on
    session: float = 0.0  # how far apart two sessions of one file lie at most


NOISES = {
    "quiet": Noise(jitter=0.005),
    "jitter": Noise(jitter=0.05),
    "drift": Noise(drift=0.3),
    "spikes": Noise(spikes=0.1),
    "bursts": Noise(jitter=0.03, bursts=0.3),
    "coarse clock": Noise(tick=0.0001),
    "sessions": Noise(jitter=0.01, session=0.01),
    "everything": Noise(jitter=0.04, drift=0.2, spikes=0.05, bursts=0.2, tick=0.0001, session=0.01),
}


class Machine:
    """Runs that take as long as they are told, disturbed; time passes only as they run."""

    def __init__(self, noise: Noise, seed: int) -> None:
        self.time = 0.0
        self._noise, self._draw = noise, random.Random(seed)
        self._busy, self._until = False, 0.0
        self._phase = self._draw.random() * 2 * math.pi

    def now(self) -> float:
        """The time, as its clock tells it."""
        tick = self._noise.tick
        return math.floor(self.time / tick) * tick if tick else self.time

    def session(self, seconds: float) -> Callable[[], None]:
        """A file opened to be run, which stays a little faster or slower than another session of it would be."""
        of_its_own = seconds * (1 + self._draw.uniform(-0.5, 0.5) * self._noise.session)
        return lambda: self._run(of_its_own)

    def _run(self, seconds: float) -> None:
        noise, draw = self._noise, self._draw
        factor = math.exp(draw.gauss(0, noise.jitter)) * (1 + noise.drift * math.sin(self.time / 10 + self._phase) / 2)
        if draw.random() < noise.spikes:
            factor *= 1 + draw.uniform(1, 5)
        if noise.bursts:
            factor *= self._burst()
        self.time += seconds * factor

    def _burst(self) -> float:
        while self.time >= self._until:
            self._busy = not self._busy
            share = self._noise.bursts if self._busy else 1 - self._noise.bursts
            self._until += self._draw.expovariate(1 / (6 * share))
        return 1.33 * math.exp(self._draw.gauss(0, 0.1)) if self._busy else 1.0


def simulated(noise: Noise, *, ratio: float, run: float, seconds: float, seed: int) -> Race:
    """A whole race of a file and another that truly takes `ratio` times as long."""
    machine = Machine(noise, seed)
    sessions = (machine.session(run), machine.session(run), machine.session(run * ratio))
    one, twin, other = (interleaving.slot(session, now=machine.now) for session in sessions)
    return interleaving.race({"one": one, "other": other}, twin=twin, seconds=seconds, seed=seed, now=machine.now)
