"""The result of tuning as a part of the record of `optimize`: every measurement, and what each decided."""

from __future__ import annotations

import msgspec


class Question(msgspec.Struct, frozen=True):
    """One measurement: the effect of a change of some units on the best model so far."""

    units: tuple[str, ...]
    does: str  # "undo" | "add" | "restore": the change of these units
    finding: str  # "faster" | "slower" | "no difference" | "same kernels" (nothing to time) | a failure
    ratio: float | None  # time with the change divided by time without; None: not timed
    low: float | None  # ends of the confidence interval
    high: float | None
    floor: float | None  # relative noise: smaller differences are not significant
    rounds: int
    seconds: float  # spent on it, with building and loading the model
    accepted: bool  # whether the change was adopted


class Decision(msgspec.Struct, frozen=True):
    """The choice for one unit of the tuned model: a fusion pass, or all cleanup passes of one family."""

    unit: str
    passes: tuple[str, ...]
    family: str
    rewrites: int  # in the untuned result; 0 if it was not applied there
    choice: str  # "kept" | "undone" | "added" | "left out" | "not examined"
    question: int | None  # index in `questions` of the measurement that decided it


class Pace(msgspec.Struct, frozen=True):
    """The time of one model relative to the source, all measured in the same rounds."""

    name: str  # "source" | "untuned" | "tuned"
    nodes: int
    milliseconds: float  # median of its rounds
    ratio: float  # to the source
    low: float
    high: float
    finding: str


class Tuning(msgspec.Struct, frozen=True):
    """How a result was tuned on a machine."""

    chosen: str  # name of the entry of `standing` that is the result
    why: str
    standing: tuple[Pace, ...]  # of the final measurement
    gain: float | None  # time of the tuned model divided by that of the untuned one; None: tuning changed nothing
    floor: float  # relative noise of the final measurement
    decisions: tuple[Decision, ...]
    questions: tuple[Question, ...]
    sizes: dict[str, int]  # of the dynamic dimensions
    threads: int
    provider: str
    clock: str  # "cpu": CPU time of the model's thread | "wall": elapsed time
    budget: float  # seconds allowed
    seconds: float  # seconds spent
    load: float | None  # runnable processes before the start; None: not reported by the system
    notes: tuple[str, ...] = ()

    @property
    def unexamined(self) -> tuple[str, ...]:
        """The units for which no time was left."""
        return tuple(decision.unit for decision in self.decisions if decision.choice == "not examined")

    @property
    def latency_ratio(self) -> float:
        """The time of the result divided by the time of the source."""
        return next(pace.ratio for pace in self.standing if pace.name == self.chosen)
