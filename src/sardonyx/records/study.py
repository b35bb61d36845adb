"""What a study found, as plain data: tables, findings that name the table they rest on, and what could not be run."""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Environment

Entry = str | int | float | bool | None  # of a table; None is "not known"


class Table(msgspec.Struct, frozen=True):
    """Rows of entries under named columns; one row is one observation, so that it can be read by any tool."""

    name: str  # a file name without ending: "attribution"
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    about: str = ""  # how the numbers were got, in a sentence or two
    timed: bool = False  # some entries are measured times, so that another run gives other numbers


class Finding(msgspec.Struct, frozen=True):
    """One sentence that the data support, and the table that shows it."""

    text: str
    table: str
    certain: bool = True  # False: the data are too few or too noisy to say more; the text says so


class Failure(msgspec.Struct, frozen=True):
    """A cell that could not be computed, and why, in one line."""

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
    seconds: dict[str, float]  # spent computing, by experiment, over all cells whenever they were computed
    notes: tuple[str, ...] = ()
