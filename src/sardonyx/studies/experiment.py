"""What an experiment is: cells that can be computed one by one and kept, and what all of them together say.

A cell is the smallest piece of work that a killed study does not repeat. It is run in a process of its own (several at
once unless it is timed), gets nothing but its own fields, and answers plain data that JSON can hold. Tables and
findings are worked out from the answers alone, so that a resumed study says what an uninterrupted one would.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from sardonyx.records.study import Finding, Table

SECONDS = 12.0
Answer = dict[str, Any]  # of one cell: what JSON can hold; tuples come back as lists, and what is not finite as None


@dataclass(frozen=True, slots=True)
class Subject:
    """A model of the study."""

    name: str
    path: Path  # an ONNX file
    family: str | None = None  # what it is known to be, where the study's own zoo made it


NO_MODEL = Subject("", Path())  # what a cell is about that is about none


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of work; equal cells have equal answers, except for what is timed."""

    experiment: str
    model: str  # name of its Subject; "" where the cell is about none
    key: str  # tells the cells of one experiment and model apart
    options: dict[str, Any] = field(default_factory=dict[str, Any])  # whatever changes the answer, as JSON holds it
    timed: bool = False  # must run alone on the machine


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user wants of a study; experiments put into their cells what concerns them."""

    target: str = "portable"
    seed: int = 0
    threads: int = 1  # of timed runs
    seconds: float = SECONDS  # the most that one timed cell may measure
    thorough: bool = False  # more seeds, sizes and shuffles

    def only(self, *names: str) -> dict[str, Any]:
        """Some of it, as options of a cell: what is left out does not change the answer."""
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a cell: its answer, or why there is none."""

    answer: Answer | None
    reason: str | None  # in one line, where it failed
    seconds: float


@dataclass(frozen=True, slots=True)
class Answered:
    """A cell with its answer, about its model."""

    cell: Cell
    subject: Subject
    answer: Answer


class Experiment(ABC):
    """One file of `experiments/`; each has one instance in the explicit list `experiments.ALL`."""

    name: ClassVar[str]  # as the user asks for it with --only, and the folder its cells are kept in
    uses: ClassVar[tuple[str, ...]] = ()  # experiments, earlier in the list, whose tables it builds on
    of_models: ClassVar[bool] = True  # False: there is no model in it, and `cells` is asked once, about NO_MODEL

    @abstractmethod
    def cells(self, subject: Subject, asked: Asked) -> Sequence[Cell]:
        """The work on one model, planned without running anything heavy."""

    @abstractmethod
    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Compute one cell from what is in it and the model's file."""

    def then(self, subject: Subject, answers: Sequence[Answered], asked: Asked) -> Sequence[Cell]:
        """Further cells, which can be planned only when the first ones about this model are answered."""
        return ()

    @abstractmethod
    def tables(self, answers: Sequence[Answered], asked: Asked, others: Mapping[str, Table]) -> Sequence[Table]:
        """All answers of this experiment as tables; `others` are those of the experiments before it."""

    def findings(self, tables: Mapping[str, Table], asked: Asked) -> Sequence[Finding]:
        """What the tables of the whole study let this experiment say."""
        return ()
