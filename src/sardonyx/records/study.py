"""What a study found, as plain data: tables, findings that name the table they rest on, and what could not be run."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

import msgspec

from sardonyx.records.run import Environment

STUDY_VERSION = 1

Entry = str | int | float | bool | None  # of a table; None is "not known"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of entries under named columns; one row is one observation, so that it can be read by any tool."""

    name: str  # a file name without ending: "attribution"
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    about: str = ""  # how the numbers were got, in a sentence or two
    timed: bool = False  # some entries are measured times, so that another run gives other numbers


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence that the data support, and the table that shows it."""

    text: str
    table: str
    certain: bool = True  # False: the data are too few or too noisy to say more; the text says so


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that could not be computed, and why, in one line."""

    experiment: str
    model: str
    reason: str


@dataclass(frozen=True)
class Study:
    """One study over a set of models."""

    environment: Environment
    options: dict[str, Any]
    models: tuple[str, ...]
    tables: tuple[Table, ...]
    findings: tuple[Finding, ...]
    failures: tuple[Failure, ...]
    cells: int  # pieces of work, failed ones included
    seconds: dict[str, float]  # spent computing, by experiment, over all cells whenever they were computed
    notes: tuple[str, ...] = ()
    schema_version: int = field(default=STUDY_VERSION)

    def to_json(self) -> bytes:
        """The record as JSON, whatever a subclass carries beside it."""
        return msgspec.json.encode({f.name: getattr(self, f.name) for f in fields(Study)})

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """A record read back."""
        return msgspec.json.decode(data, type=cls)


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of a Study."""
    return msgspec.json.schema(Study)
