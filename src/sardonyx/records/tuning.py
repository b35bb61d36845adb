"""What tuning found, as plain frozen data: every question it put to the machine, and what each answer decided."""

from __future__ import annotations

import msgspec


class Question(msgspec.Struct, frozen=True):
    """One measurement: what a change of some units does to the best that was known until then."""

    units: tuple[str, ...]
    does: str  # "undo" | "add" | "restore": what is done to these units
    finding: (
        str  # "faster" | "slower" | "no difference" | "same kernels": the runtime runs the same either way | a failure
    )
    ratio: float | None  # time with the change over time without; None: nothing had to be timed
    low: float | None  # ends of the interval
    high: float | None
    floor: float | None  # relative difference that this machine cannot tell from none
    rounds: int
    seconds: float  # that the answer took, making and loading the model included
    accepted: bool  # whether the change was made


class Decision(msgspec.Struct, frozen=True):
    """What became of one unit in the tuned model: a fusion, or the clean-up passes of one family together."""

    unit: str
    passes: tuple[str, ...]
    family: str
    rewrites: int  # that it made in the untuned result; 0 where it was left out of that
    choice: str  # "kept" | "undone" | "added" | "left out" | "not examined"
    question: int | None  # the one that decided it, by its place in `questions`


class Pace(msgspec.Struct, frozen=True):
    """How fast one of the models is beside the source, all of them timed in one race."""

    name: str  # "source" | "untuned" | "tuned"
    nodes: int
    milliseconds: float  # median of its rounds
    ratio: float  # to the source
    low: float
    high: float
    finding: str


class Tuning(msgspec.Struct, frozen=True):
    """How a result was fitted to a machine."""

    chosen: str  # the one of `standing` that is the result
    why: str
    standing: tuple[Pace, ...]  # in the last race
    gain: float | None  # time of the tuned model over that of the untuned one; None: tuning changed nothing
    floor: float  # relative difference that could not be told from none in the last race
    decisions: tuple[Decision, ...]
    questions: tuple[Question, ...]
    sizes: dict[str, int]  # of the dims that inputs leave open
    threads: int
    provider: str
    clock: str  # "cpu": the time that the model's own thread used | "wall": all time that passed
    budget: float  # seconds allowed
    seconds: float  # seconds spent
    load: float | None  # of the machine before, in running processes; None: the system does not say
    notes: tuple[str, ...] = ()

    @property
    def unexamined(self) -> tuple[str, ...]:
        """Units that there was no time for."""
        return tuple(each.unit for each in self.decisions if each.choice == "not examined")

    @property
    def latency_ratio(self) -> float:
        """Time of the result over time of the source."""
        return next(pace.ratio for pace in self.standing if pace.name == self.chosen)
