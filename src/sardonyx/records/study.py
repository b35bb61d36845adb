"""The record of `study`: tables, findings with the table that supports each, and failures."""

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
