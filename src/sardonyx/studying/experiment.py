"""What an experiment is: cells that can be computed one by one and kept, and what all of them together say.

A cell is the smallest piece of work that a killed study does not repeat. It is run in a process of its own (several at
once unless it is timed), gets nothing but its own fields, and answers plain data that JSON can hold. Tables and
findings are worked out from the answers alone, so that a resumed study says what an uninterrupted one would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sardonyx.study_record import Finding, Table

Answer = dict[str, Any]  # of one cell: what JSON can hold


@dataclass(frozen=True, slots=True)
class Subject:
    """A model of the study."""

    name: str
    path: Path  # an ONNX file
    family: str | None = None  # what it is known to be, where the study's own zoo made it


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of work; equal cells have equal answers, except for what is timed."""

    experiment: str
    model: str  # name of its Subject; "" where the cell is about none
    key: str  # tells the cells of one experiment and model apart
    options: dict[str, Any] = field(default_factory=dict[str, Any])  # whatever changes the answer
    timed: bool = False  # must run alone on the machine
    needs: tuple[str, ...] = ()  # experiments whose answers about this model it is handed, as `run`'s `before`


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user wants of a study; experiments take from it what concerns them."""

    target: str = "portable"
    seed: int = 0
    threads: int = 1
    seconds: float = 10.0  # the most that one timed comparison may take
    thorough: bool = False  # more seeds, sizes and shuffles


@dataclass(frozen=True, slots=True)
class Answered:
    """A cell with its answer, about its model."""

    cell: Cell
    subject: Subject
    answer: Answer


class Experiment(Protocol):
    """One file of `experiments/`; each has one instance in the explicit list `experiments.ALL`."""

    @property
    def name(self) -> str:
        """As the user asks for it with --only, and the folder its cells are kept in."""
        ...

    def cells(self, subject: Subject, asked: Asked) -> Sequence[Cell]:
        """The work on one model, planned without running anything heavy."""
        ...

    def run(self, cell: Cell, subject: Subject, asked: Asked, before: Mapping[str, Answer]) -> Answer:
        """Compute one cell. `before` has the answers it needs, by "experiment/key"."""
        ...

    def tables(self, answers: Sequence[Answered], asked: Asked) -> Sequence[Table]:
        """All answers of this experiment as tables, in the order they were planned."""
        ...

    def findings(self, tables: Mapping[str, Table], asked: Asked) -> Sequence[Finding]:
        """What the tables of the whole study let this experiment say."""
        ...
