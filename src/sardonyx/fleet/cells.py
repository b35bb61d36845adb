"""The stored cells of a study: one file for each, written atomically.

The file name ends in a hash of everything that can change the answer: the model's bytes, the options of the cell, the
code of sardonyx, and the runtime. A changed option therefore finds no file, and a file that is found only has to be
checked for damage, and for timed cells for the machine. Several studies may share a store at the same time: equal cells
have equal answers, and each file is replaced as a whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict

from sardonyx.common.atomic_write import explained
from sardonyx.fleet.storage import Store, open_store
from sardonyx.fleet.work import Outcome
from sardonyx.records.environment import environment

FOLDER = "cells"
LOGS = "logs"  # what cells printed
_MAX_NAME = 60  # characters of a model's name in a file name: file systems allow 255 in all
_NOT_STORED = ("log", "died")  # of an outcome
_DAMAGED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what a file of random bytes raises


class Cell(Struct, frozen=True):
    """One piece of work; equal cells have equal answers, except for measured times."""

    experiment: str
    model: str  # name of its Subject; "" if it needs none
    key: str  # distinguishes the cells of one experiment and model
    options: dict[str, Any] = field(default_factory=dict[str, Any])  # everything that changes the answer, as JSON
    timed: bool = False  # must run alone on the machine


class _StoredCell(Struct, frozen=True):
    """The contents of a cell's file."""

    cell: dict[str, Any]  # for people who open the file
    outcome: msgspec.Raw
    checksum: str  # of the bytes of the outcome


class CellStore:
    """The stored cells of a study, in a store or at its folder or URL; `code` is a hash of what computes them."""

    def __init__(self, store: Store | str | Path, code: str) -> None:
        self._store = open_store(store) if isinstance(store, (str, Path)) else store
        self._code = code
        self._loaded: dict[str, bytes | None] = {}
        folder = self._store.path(FOLDER)
        if folder is not None:
            with explained(folder):
                folder.mkdir(parents=True, exist_ok=True)  # it shows that the folder is one of a study
        self._store.remove_abandoned()

    def load(self, cells: Iterable[tuple[Cell, str]]) -> None:
        """Read many cells at once, each with the hash of its model, so that `find` has no need to wait for each.

        A cell that is missing now is read again by `find`: another study may have stored it since.
        """
        if self._store.path(FOLDER) is not None:
            return  # a file on a disk is read in microseconds
        there = set(self._store.names(f"{FOLDER}/"))
        names = [name for name in (self._name(cell, model) for cell, model in cells) if name in there]
        self._loaded = dict(zip(names, self._store.read_all(names), strict=True))

    def find(self, cell: Cell, model: str, machine: str | None = None) -> Outcome | None:
        """Return the stored outcome of a cell, by the hash of its model.

        None if it is missing or damaged, if it failed, or if it was timed on another machine than the given one.
        """
        name = self._name(cell, model)
        data = self._loaded.pop(name, None) or self._store.read(name)
        outcome = None if data is None else _decode(data)
        if outcome is None or outcome.answer is None:
            return None
        return outcome if not cell.timed or machine in (None, outcome.machine) else None

    def store(self, cell: Cell, model: str, outcome: Outcome) -> None:
        """Write the outcome of a cell, and what it printed to a file of its own.

        It replaces an earlier outcome, but a failure replaces no answer.
        """
        if outcome.answer is None and self.find(cell, model) is not None:
            return  # another study computed it in the meantime
        fields = {name: value for name, value in asdict(outcome).items() if name not in _NOT_STORED}
        encoded = msgspec.Raw(msgspec.json.encode(fields))
        data = msgspec.json.encode(_StoredCell(asdict(cell), encoded, _checksum(encoded)))
        self._store.write(self._name(cell, model), data)
        if outcome.log.strip():
            self._store.write(f"{LOGS}/{self._name(cell, model).partition('/')[2]}.txt", outcome.log.encode())

    def _name(self, cell: Cell, model: str) -> str:
        file = ".".join(_plain(part) for part in (cell.model, cell.key) if part)
        return f"{FOLDER}/{_plain(cell.experiment)}/{file}.{cell_hash(cell, model, self._code)}.json"


def cell_hash(cell: Cell, model: str, code: str) -> str:
    """Return a hash of everything that can change the answer of a cell; `model` and `code` are hashes themselves."""
    parts = [cell.experiment, cell.key, cell.options, cell.timed, model, code, environment().packages]
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def _decode(data: bytes) -> Outcome | None:
    """Return the outcome in a file; None if the file is damaged."""
    try:
        stored = msgspec.json.decode(data, type=_StoredCell)
        return (
            msgspec.json.decode(stored.outcome, type=Outcome) if stored.checksum == _checksum(stored.outcome) else None
        )
    except _DAMAGED:
        return None


def stored_models(store: Store, experiment: str, names: Iterable[str]) -> set[str]:
    """Return which of some models have a stored cell of an experiment; of a damaged cell, only its file name counts."""
    folder = f"{FOLDER}/{_plain(experiment)}/"
    known: set[str] = set()
    damaged: set[str] = set()
    files = store.names(folder)
    for file, data in zip(files, store.read_all(files), strict=True):
        try:
            known.add(msgspec.json.decode(data or b"", type=_StoredCell).cell.get("model", ""))
        except _DAMAGED:
            damaged.add(file.removeprefix(folder).partition(".")[0])
    return {name for name in names if name in known or _plain(name) in damaged}


def _checksum(outcome: msgspec.Raw) -> str:
    return hashlib.sha256(bytes(outcome)).hexdigest()[:16]


def _plain(text: str) -> str:
    """Return a name that every file system accepts; the hash in the file name keeps it unique."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)[:_MAX_NAME]
