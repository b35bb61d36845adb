"""The interface of an experiment: cells that are computed and stored one by one, and tables and findings from them.

A cell is the smallest piece of work that a killed study does not repeat. It runs in a worker process (several at once
unless it is timed), gets nothing but its own fields, and returns plain JSON data. Tables and findings are computed from
the answers alone, so that a resumed study has the same result as an uninterrupted one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct, field

from sardonyx.records.study import Finding, Table

SECONDS = 12.0
Answer = dict[str, Any]  # of one cell, as JSON: tuples become lists, and numbers that are not finite become None


class Subject(Struct, frozen=True):
    """A model of the study."""

    name: str
    path: Path  # an ONNX file
    family: str | None = None  # its true architecture family, for models of the built-in zoo


NO_MODEL = Subject("", Path())  # the subject of cells that need no model


class Cell(Struct, frozen=True):
    """One piece of work; equal cells have equal answers, except for measured times."""

    experiment: str
    model: str  # name of its Subject; "" if it needs none
    key: str  # distinguishes the cells of one experiment and model
    options: dict[str, Any] = field(default_factory=dict[str, Any])  # everything that changes the answer, as JSON
    timed: bool = False  # must run alone on the machine


class StudyOptions(Struct, frozen=True):
    """The options of a study; experiments copy those that matter to them into their cells."""

    target: str = "portable"
    seed: int = 0
    threads: int = 1  # of timed runs
    seconds: float = SECONDS  # time limit for the measurements of one timed cell
    thorough: bool = False  # more seeds, sizes and shuffles

    def only(self, *names: str) -> dict[str, Any]:
        """Return some options, as options of a cell; those left out must not change its answer."""
        return {name: getattr(self, name) for name in names}


class Outcome(Struct, frozen=True):
    """The outcome of a cell: its answer, or the reason why there is none."""

    answer: Answer | None
    reason: str | None  # one line if it failed, otherwise None
    seconds: float


class CellAnswer(Struct, frozen=True):
    """A cell, its model and its answer."""

    cell: Cell
    subject: Subject
    answer: Answer


class Experiment(ABC):
    """An experiment: one file of `experiments/` with one instance in the list `experiments.ALL`."""

    name: ClassVar[str]  # for `only` and `skip`, and the folder of its cells
    uses: ClassVar[tuple[str, ...]] = ()  # earlier experiments in the list whose tables it reads
    of_models: ClassVar[bool] = True  # False: it needs no model, and `cells` is called once with NO_MODEL

    @abstractmethod
    def cells(self, subject: Subject, options: StudyOptions) -> Sequence[Cell]:
        """Return the cells for one model, without any heavy computation."""

    @abstractmethod
    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Compute the answer of one cell from its fields and the model's file."""

    def then(self, subject: Subject, answers: Sequence[CellAnswer], options: StudyOptions) -> Sequence[Cell]:
        """Return further cells for a model that depend on the answers of the first ones."""
        return ()

    @abstractmethod
    def tables(
        self, answers: Sequence[CellAnswer], options: StudyOptions, others: Mapping[str, Table]
    ) -> Sequence[Table]:
        """Return all answers of this experiment as tables; `others` are the tables of earlier experiments."""

    def findings(self, tables: Mapping[str, Table]) -> Sequence[Finding]:
        """Return the conclusions of this experiment from all tables of the study."""
        return ()
