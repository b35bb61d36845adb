"""Records found: in files, in folders, or at hand in Python, each recognised by what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sardonyx import gate, records
from sardonyx.analysis_record import Analysis
from sardonyx.bench_record import Benchmark
from sardonyx.errors import UsageError
from sardonyx.export_record import Export
from sardonyx.profile_record import Profile
from sardonyx.record import Run

Record = Run | Export | Benchmark | Profile | Analysis
Source = str | Path | Record
HOW = "`sardonyx optimize MODEL --record run.json` writes one, and `--run FOLDER` a folder with all that belongs to it"
_SHOWN = (Run, Export, Benchmark, Profile, Analysis)


@dataclass(frozen=True, slots=True)
class Found:
    """One record, and where it was."""

    record: Record
    path: Path | None = None  # None: at hand in Python

    @property
    def place(self) -> str:
        """What messages call it."""
        return f"the {type(self.record).__name__} at hand" if self.path is None else str(self.path)

    @property
    def name(self) -> str:
        """What notes call it."""
        return self.place if self.path is None else self.path.name


@dataclass(frozen=True, slots=True)
class Pile:
    """Records that were given together, of which others may belong to each run."""

    place: str
    found: tuple[Found, ...]
    folder: bool = False
    left_out: tuple[str, ...] = ()  # what could not be read of a folder, and why


def piles(sources: Sequence[Source]) -> list[Pile]:
    """A pile for each folder, and one for everything that was named by itself.

    Where no run was named by itself, what was named may belong to the run of any of the folders.

    Raises:
        UsageError: what was named is not there, or is no record that a report shows.
    """
    loose: list[Found] = []
    made: list[Pile] = []
    for source in sources:
        if not isinstance(source, (str, Path)):
            loose.append(Found(source))
        elif Path(source).is_dir():
            made.append(_in_folder(Path(source)))
        else:
            loose.append(_in_file(Path(source)))
    alone = Pile("what was given", tuple(loose))
    if made and not any(runs_of(alone)):
        return [replace(pile, found=(*pile.found, *loose)) for pile in made]
    return [*([alone] if loose else []), *made]


def _in_file(path: Path) -> Found:
    """The record in a file that was named."""
    found = records.document(path, str(path), HOW)
    kind = _kind(found)
    if kind is None:
        raise UsageError(f"{path} is no record of sardonyx", hint=HOW)
    if kind.record not in _SHOWN:
        raise UsageError(f"{path} is {kind.title}, and a report shows an optimization", hint=HOW)
    return Found(records.converted(found, kind.record, kind.title, str(path), HOW), path)


def _in_folder(folder: Path) -> Pile:
    """Every record in a folder that a report shows; files of others are passed over, records of ours are told of."""
    found: list[Found] = []
    left_out: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            held = records.document(path, path.name, HOW)
        except UsageError:
            continue  # somebody else's file
        kind = _kind(held)
        if kind is None or kind.record not in _SHOWN:
            continue
        try:
            found.append(Found(records.converted(held, kind.record, kind.title, path.name, HOW), path))
        except UsageError as error:
            left_out.append(f"{error.message}: left out")
    return Pile(str(folder), tuple(found), folder=True, left_out=tuple(left_out))


def _kind(document: dict[str, Any]) -> gate.Kind | None:
    wanted = records.recognised(document, [each.record for each in gate.kinds()])
    return next((each for each in gate.kinds() if each.record is wanted), None)


def runs_of(pile: Pile) -> Iterator[tuple[Found, Run]]:
    """Each run of a pile, with what holds it; one that an export holds again is told once."""
    told: set[str | None] = set()
    for each in sorted(pile.found, key=lambda found: isinstance(found.record, Export)):  # runs themselves first
        run = each.record if isinstance(each.record, Run) else _of_export(each.record)
        if run is None or (run.result.sha256 is not None and run.result.sha256 in told and not _is_run(each)):
            continue
        told.add(run.result.sha256)
        yield each, run


def _is_run(found: Found) -> bool:
    return isinstance(found.record, Run)


def _of_export(record: Record) -> Run | None:
    return record.optimized if isinstance(record, Export) else None
