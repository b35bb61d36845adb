"""The cells of a study on disk: one file for each, written atomically.

The file name ends in a hash of everything that can change the answer: the model's bytes, the options of the cell, the
code of sardonyx, the runtime, and for timed cells the machine. A changed option therefore finds no file, and a file
that is found only has to be checked for damage.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from sardonyx.atomic_write import Draft, explained
from sardonyx.errors import OutputError
from sardonyx.records.environment import environment
from sardonyx.studies.experiment import Cell, Outcome

FOLDER = "cells"
_RENDERING = ("cli", "reporting")  # packages that do not change answers
_LONGEST = 60  # characters of a model's name in a file name


class _StoredCell(Struct, frozen=True):
    """The contents of a cell's file."""

    cell: dict[str, Any]  # for people who open the file
    outcome: msgspec.Raw
    checksum: str  # of the bytes of the outcome


class CellStore:
    """The stored cells of a study.

    Args:
        folder: the folder of the study.
        code: a hash of the code that computes the cells.
    """

    def __init__(self, folder: Path, code: str) -> None:
        self._folder, self._code = folder / FOLDER, code
        with explained(str(self._folder)):
            self._folder.mkdir(parents=True, exist_ok=True)
            for partial in self._folder.rglob(".*.part"):  # left by a run that was killed while writing
                partial.unlink()

    def find(self, cell: Cell, model: str) -> Outcome | None:
        """Return the stored outcome of a cell for a model with this hash; None if it failed, is damaged or missing."""
        try:
            stored = msgspec.json.decode(self._path(cell, model).read_bytes(), type=_StoredCell)
            if stored.checksum != _checksum(stored.outcome):
                return None
            outcome = msgspec.json.decode(stored.outcome, type=Outcome)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return outcome if outcome.answer is not None else None

    def store(self, cell: Cell, model: str, outcome: Outcome) -> None:
        """Write the outcome of a cell, replacing an earlier one."""
        path = self._path(cell, model)
        encoded = msgspec.Raw(msgspec.json.encode(outcome))
        data = msgspec.json.encode(_StoredCell(asdict(cell), encoded, _checksum(encoded)))
        with explained(str(path)):
            path.parent.mkdir(exist_ok=True)
            with Draft(str(path)) as draft:
                with open(draft.fileno(), "wb", closefd=False) as stream:
                    stream.write(data)
                draft.commit(replace=True)

    def _path(self, cell: Cell, model: str) -> Path:
        name = ".".join(_plain(part) for part in (cell.model, cell.key) if part)
        return self._folder / _plain(cell.experiment) / f"{name}.{cell_hash(cell, model, self._code)}.json"


def cell_hash(cell: Cell, model: str, code: str) -> str:
    """Return a hash of everything that can change the answer of a cell; `model` and `code` are hashes themselves."""
    here = environment()
    parts: list[Any] = [cell.experiment, cell.key, cell.options, cell.timed, model, code, here.packages]
    if cell.timed:
        parts += [here.platform, here.cpus]
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


@contextlib.contextmanager
def locked(folder: Path) -> Generator[None]:
    """Lock a folder for one study; the operating system releases the lock however the process ends.

    Raises:
        OutputError: another study has locked it.
    """
    with explained(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "ab")  # noqa: SIM115 - closed below
    with file:
        try:
            _lock(file.fileno())
        except OSError:
            raise OutputError(
                f"another study is running in {folder}", hint="wait for it, or use another folder with `output`"
            ) from None
        yield


def _lock(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _checksum(outcome: msgspec.Raw) -> str:
    return hashlib.sha256(bytes(outcome)).hexdigest()[:16]


def _plain(text: str) -> str:
    """Return a name that every file system accepts; the hash in the file name keeps it unique."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)[:_LONGEST]


def code_hash() -> str:
    """Return a hash of the code that computes cells; the version alone does not change with every edit."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in _RENDERING:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
