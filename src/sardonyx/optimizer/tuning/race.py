"""Load models and time them against each other on this machine, on the same inputs and with the same settings.

Loading a model already shows which kernels the runtime uses. If two models use the same kernels on the same sizes, the
runtime's own optimizations have removed the difference, and there is nothing to time.
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
from sardonyx.runtime.timed import Settings, TimedModel
from sardonyx.verification.subject import Model, Subject

WARM = 1  # runs between the first run and the first timed one
Kernels = Counter[str]
_KERNEL_KEYS = ("op_name", "provider", "input_type_shape", "output_type_shape")


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """A model in the runtime, ready to run."""

    kernels: Kernels  # the kernels of one run
    once: float  # approximate seconds of one run
    load: float  # seconds of loading and warming up
    run: Run


class Ground:
    """Loads and times contenders on the same inputs and with the same settings.

    A model with one CPU thread runs in the calling thread, so that its CPU time can be counted without the time of
    other processes. On a shared machine this gives much narrower intervals.

    Args:
        feeds: The inputs of every run.
        settings: Threads and provider.
        folder: An empty folder for the runtime's profiles.
        seed: Seed of the order within rounds.
        progress: Called with how far a race is.
    """

    def __init__(self, feeds: Feeds, settings: Settings, folder: Path, seed: int, progress: Progress) -> None:
        self._feeds = feeds
        self._settings = settings
        self._folder = folder
        self._seed = seed
        self._progress = progress
        single = settings.threads == 1 and settings.provider == "cpu"
        self._clock = time.thread_time if single else time.perf_counter
        self.clock = "cpu" if single else "wall"
        self._slot = SLOT  # seconds of one slot of a race, waiting included

    def load(self, model: Model) -> Contender:
        """Load a model into the runtime, run it and warm it up.

        Raises:
            RuntimeFailure: The runtime cannot load or run the model.
        """
        began = time.perf_counter()
        timed = Subject(model).open(lambda source: TimedModel(source, self._settings, profile=self._folder / "first"))
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
        """Time contenders in turns; the first is the reference."""
        runs = {name: contender.run for name, contender in contenders.items()}
        result = race(
            runs, seconds=seconds, seed=self._seed, progress=lambda _, fraction: self._progress(what, fraction)
        )
        self._slot = result.spent / _slots(len(runs), result.rounds)
        return result

    def least(self, contenders: int, once: float) -> float:
        """Return the seconds of the shortest race, estimated from the last one because a busy machine is slower."""
        return _slots(contenders, FEWEST) * max(self._slot, once)


def _slots(contenders: int, rounds: int) -> int:
    """Return the slots of a race: two per round for the reference, one for the others, and one each to warm up."""
    return (rounds + 1) * (contenders + 1)


def kernels_of(profile: Path) -> Kernels:
    """Return the kernels of one run and the sizes they ran on, from the runtime's profile."""
    events: list[Any] = json.loads(profile.read_text(encoding="utf-8"))
    kernels: Kernels = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            kernels[json.dumps([event["args"].get(key) for key in _KERNEL_KEYS])] += 1
    return kernels
