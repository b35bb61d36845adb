"""The interface of an experiment: cells that are computed and stored one by one, and tables and findings from them.

A cell is the smallest piece of work that a killed study does not repeat. It runs in a child process (several at once
unless it is timed), gets nothing but its own fields, and returns plain JSON data. Tables and findings are computed from
the answers alone, so that a resumed study has the same result as an uninterrupted one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

from sardonyx.fleet.sources import download
from sardonyx.fleet.storage import Store
from sardonyx.fleet.work import Answer, Needs, Work, estimated_memory
from sardonyx.records.study import Finding, Table

SECONDS = 12.0  # for the measurements of one timed cell
_MODEL = "model"  # the folder that a model at a URL is copied to


class Subject(Struct, frozen=True):
    """A model of the study."""

    name: str
    path: Path  # an ONNX file; of a model at a URL, its name
    family: str | None = None  # its true architecture family, for models of the built-in zoo
    url: str | None = None


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


class CellWork(Work):
    """A cell as a piece of work.

    Args:
        experiment: computes the answer.
        cell: the cell.
        subject: its model.
        makes: the store and the name of the model, if the cell makes it.
    """

    def __init__(
        self, experiment: Experiment, cell: Cell, subject: Subject, makes: tuple[Store, str] | None = None
    ) -> None:
        self._experiment, self._cell, self._makes = experiment, cell, makes
        path = subject.path.absolute()  # a worker of a cluster has another working directory
        self._subject = replace(subject, path=path)
        files = [file for file in path.parent.glob(f"{path.name}*") if file.is_file()] if path.is_file() else []
        size = sum(file.stat().st_size for file in files)
        self._needs = Needs(estimated_memory(size), cell.timed)

    @property
    def name(self) -> str:
        """Return the experiment and the model."""
        return f"{self._cell.experiment} of {self._cell.model}" if self._cell.model else self._cell.experiment

    @property
    def needs(self) -> Needs:
        """Return what it needs of a machine; the memory is estimated from the size of the files."""
        return self._needs

    def fetch(self, folder: Path) -> None:
        """Copy a model at a URL."""
        if self._subject.url is not None and self._makes is None:
            download(self._subject.url, folder / _MODEL)

    def compute(self, folder: Path) -> Answer:
        """Run the experiment."""
        path, url = self._subject.path, self._subject.url
        if self._makes is not None:
            path = folder / path.name
        elif url is not None:
            path = folder / _MODEL / url.rpartition("/")[2]
        return self._experiment.run(self._cell, replace(self._subject, path=path))

    def publish(self, folder: Path, answer: Answer) -> None:
        """Move the model that the cell made to the store."""
        if self._makes is not None:
            store, name = self._makes
            store.upload(folder / self._subject.path.name, name)
