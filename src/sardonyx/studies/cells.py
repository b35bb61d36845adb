"""The cells of a study on disk: one file each, whole or not at all, under a name that says what its answer depends on.

A name ends in a hash of everything that can change the answer: the model's bytes, the options of the cell, our own
code, the runtime, and for what is timed the machine. So a changed option finds no file and computes anew, and a file
that is found needs no further question than whether it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from sardonyx.errors import OutputError
from sardonyx.ir.io import Draft, explained
from sardonyx.records.environment import environment
from sardonyx.studies.experiment import Cell, Outcome

FOLDER = "cells"
_RENDERING = ("cli", "reporting")  # packages that change no answer
_LONGEST = 60  # characters of a model's name within a file's


@dataclass(frozen=True, slots=True)
class _Kept:
    """A cell's file."""

    cell: dict[str, Any]  # for people who look into the folder
    outcome: msgspec.Raw
    checksum: str  # of the outcome as it is written


class Shelf:
    """The cells that a folder keeps.

    Args:
        folder: of the study.
        code: a hash of the code that computes the cells.
    """

    def __init__(self, folder: Path, code: str) -> None:
        self._folder, self._code = folder / FOLDER, code
        with explained(str(self._folder)):
            self._folder.mkdir(parents=True, exist_ok=True)
            for begun in self._folder.rglob(".*.part"):  # of a run that was killed while it wrote
                begun.unlink()

    def find(self, cell: Cell, model: str) -> Outcome | None:
        """What is kept of a cell about a model of this hash; nothing where it failed, is damaged, or is not there."""
        try:
            kept = msgspec.json.decode(self._path(cell, model).read_bytes(), type=_Kept)
            if kept.checksum != _checksum(kept.outcome):
                return None
            outcome = msgspec.json.decode(kept.outcome, type=Outcome)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return outcome if outcome.answer is not None else None

    def keep(self, cell: Cell, model: str, outcome: Outcome) -> None:
        """Write a cell down, over what was kept of it before."""
        path = self._path(cell, model)
        encoded = msgspec.Raw(msgspec.json.encode(outcome))
        data = msgspec.json.encode(_Kept(asdict(cell), encoded, _checksum(encoded)))
        with explained(str(path)):
            path.parent.mkdir(exist_ok=True)
            with Draft(str(path)) as draft:
                with open(draft.fileno(), "wb", closefd=False) as stream:
                    stream.write(data)
                draft.commit(replace=True)

    def _path(self, cell: Cell, model: str) -> Path:
        name = ".".join(_plain(part) for part in (cell.model, cell.key) if part)
        return self._folder / _plain(cell.experiment) / f"{name}.{identity(cell, model, self._code)}.json"


def identity(cell: Cell, model: str, code: str) -> str:
    """A hash of everything that can change the answer of a cell about a model of this hash, computed by this code."""
    here = environment()
    told: list[Any] = [cell.experiment, cell.key, cell.options, cell.timed, model, code, here.packages]
    if cell.timed:
        told += [here.platform, here.cpus]
    return hashlib.sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()[:16]


@contextlib.contextmanager
def alone_in(folder: Path) -> Generator[None]:
    """Hold a folder for one study; the system lets go of it however the process ends.

    Raises:
        OutputError: where another study holds it.
    """
    with explained(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "ab")  # noqa: SIM115 - closed below, after what is done under it
    with file:
        try:
            _lock(file.fileno())
        except OSError:
            raise OutputError(
                f"another study is at work in {folder}", hint="wait for it, or give another folder with -o"
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
    """A name that every file system takes; the hash keeps apart what becomes alike here."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)[:_LONGEST]


def our_code() -> str:
    """A hash of this package, since a version stands for many states of it while it is worked on."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in _RENDERING:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
