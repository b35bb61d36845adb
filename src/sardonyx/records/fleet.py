"""The record of a command about many models: how each ended, with the numbers that its own record has in full."""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Environment


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
