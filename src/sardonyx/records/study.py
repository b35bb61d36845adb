"""The records over many models: of `study` (tables, findings and failures) and of one command on many models."""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Environment

Entry = str | int | float | bool | None  # of a table; None is unknown


class Table(msgspec.Struct, frozen=True):
    """Rows of entries under named columns; one row is one observation."""

    name: str  # a file name without its extension: "attribution"
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    about: str = ""  # how the numbers were obtained, in one or two sentences
    timed: bool = False  # some entries are measured times, which differ from run to run

    def named_rows(self) -> list[dict[str, Entry]]:
        """Return each row as a mapping from column to entry."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Finding(msgspec.Struct, frozen=True):
    """One sentence that the data support, and the table with these data."""

    text: str
    table: str
    certain: bool = True  # False: the data are too few or too noisy for more; the text says so


class Failure(msgspec.Struct, frozen=True):
    """A cell that could not be computed, and the reason in one line."""

    experiment: str
    model: str
    reason: str


class Study(Record, frozen=True, tag="study"):
    """One study over a set of models."""

    title = "a study"
    environment: Environment
    options: dict[str, Any]
    models: tuple[str, ...]
    tables: tuple[Table, ...]
    findings: tuple[Finding, ...]
    failures: tuple[Failure, ...]
    cells: int  # pieces of work, failed ones included
    seconds: dict[str, float]  # computing time by experiment, over all cells, also those of earlier runs
    notes: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()  # that timed cells ran on; each cell ran on one of them


class ModelRow(msgspec.Struct, frozen=True):
    """One model of a command about many."""

    name: str  # of its results in the folder
    source: str
    status: str  # "done" | "reused": computed by an earlier run | "failed" | "not run"
    code: int = 0  # exit code of the command for this model alone
    reason: str = ""  # why it failed, in one line
    hint: str | None = None
    seconds: float = 0.0
    peak: int = 0  # bytes of memory, sampled; 0: unknown
    estimate: int = 0  # bytes of memory that were expected; 0: unknown
    attempts: int = 1
    machine: int | None = None  # index in `machines`; None: unknown
    files: tuple[str, ...] = ()  # in the folder: the model, its weights, its record
    numbers: dict[str, Any] = {}  # of its record; the names depend on the command

    @property
    def has_result(self) -> bool:
        """Whether there is a result, although it may have failed verification or a gate."""
        return bool(self.numbers)


class Fleet(Record, frozen=True, tag="fleet"):
    """A command about many models."""

    title = "a summary of many models"
    command: str  # "optimize", "verify", "quantize" or "inspect"
    options: tuple[str, ...]  # words of the command line that every model got
    environment: Environment
    folder: str | None  # of the results; None: nothing was written
    machines: tuple[str, ...]  # descriptions of those that did the work
    models: tuple[ModelRow, ...]
    seconds: float = 0.0  # from the first model to the last
    notes: tuple[str, ...] = ()
