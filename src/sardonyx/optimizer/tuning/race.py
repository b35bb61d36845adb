"""Models made, loaded and raced against each other on this machine, on the same inputs, under the same settings.

Loading tells already which kernels the runtime ends up with: where two models end up with the same ones on the same
sizes, its own optimizations have made up for the difference, and there is nothing to time.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sardonyx.measurement.interleaving import FEWEST, SLOT, Race, Run, race, slot
from sardonyx.optimizer.candidates import Progress
from sardonyx.runtime import Feeds
from sardonyx.runtime.timed import Settings, Timed
from sardonyx.verification.subject import Model, Subject

WARM = 1  # runs after the first one and before anything is timed
Kernels = Counter[str]
_TELLING = ("op_name", "provider", "input_type_shape", "output_type_shape")


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """A model in the runtime, ready to run."""

    kernels: Kernels  # what one run of it is made of
    once: float  # seconds that a run takes, roughly
    load: float  # seconds that making it ready took
    run: Run


class Ground:
    """Where contenders meet: their inputs, their settings, and a folder for what the runtime writes.

    A model on one thread of the processor runs in the thread that asks for it, so that its own time can be counted
    without the time in which the system let something else run: on a machine that others use, that tells far more.

    Args:
        feeds: the inputs of every run.
        settings: threads and provider.
        folder: empty, for the runtime's profiles.
        seed: of the order within rounds.
        tell: hears how far a race is.
    """

    def __init__(self, feeds: Feeds, settings: Settings, folder: Path, seed: int, tell: Progress) -> None:
        self._feeds = feeds
        self._settings = settings
        self._folder = folder
        self._seed = seed
        self._tell = tell
        alone = settings.threads == 1 and settings.provider == "cpu"
        self._clock = time.thread_time if alone else time.perf_counter
        self.clock = "cpu" if alone else "wall"
        self._slot = SLOT  # seconds that one slot of a race takes, waiting included

    def load(self, model: Model) -> Contender:
        """Bring a model into the runtime and run it for the first time.

        Raises:
            RuntimeFailure: where the runtime does not take it or cannot run it.
        """
        began = time.perf_counter()
        timed = Subject(model).open(lambda source: Timed(source, self._settings, profile=self._folder / "first"))
        run = timed.ready(self._feeds)
        run()
        profile = timed.end_profile()
        kernels = kernels_of(profile)
        profile.unlink()
        for _ in range(WARM):
            run()
        loaded = time.perf_counter()
        run()
        once = time.perf_counter() - loaded
        return Contender(kernels, once, loaded - began, slot(run, now=self._clock))

    def race(self, contenders: Mapping[str, Contender], *, seconds: float, what: str) -> Race:
        """Let contenders take turns; the first is the reference."""
        runs = {name: contender.run for name, contender in contenders.items()}
        found = race(runs, seconds=seconds, seed=self._seed, tell=lambda _, fraction: self._tell(what, fraction))
        self._slot = found.spent / _slots(len(runs), found.rounds)
        return found

    def least(self, contenders: int, once: float) -> float:
        """Seconds that the shortest race takes, going by the last one: on a busy machine all takes longer."""
        return _slots(contenders, FEWEST) * max(self._slot, once)


def _slots(contenders: int, rounds: int) -> int:
    """Slots of a race: the reference has two a round, and everyone one to warm up."""
    return (rounds + 1) * (contenders + 1)


def kernels_of(profile: Path) -> Kernels:
    """The kernels of one run and the sizes they run on, from the runtime's profile of it."""
    events: list[Any] = json.loads(profile.read_text(encoding="utf-8"))
    found: Kernels = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            found[json.dumps([event["args"].get(key) for key in _TELLING])] += 1
    return found
