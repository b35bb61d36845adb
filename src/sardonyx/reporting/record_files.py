"""Records found: in files, in folders, or at hand in Python, each file's kind by its tag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, cast

from sardonyx.errors import UsageError
from sardonyx.records import reading
from sardonyx.records.analysis import Analysis
from sardonyx.records.bench import Benchmark
from sardonyx.records.export import Export
from sardonyx.records.profile import Profile
from sardonyx.records.run import Artifact, Run
from sardonyx.reporting.run_bundle import RunBundle

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
    record = reading.read_file(path, str(path), HOW)
    if not isinstance(record, _SHOWN):
        raise UsageError(f"{path} is {record.title}, and a report shows an optimization", hint=HOW)
    return Found(record, path)


def _in_folder(folder: Path) -> Pile:
    """Every record in a folder that a report shows; other files are skipped, records that cannot be read are named."""
    found: list[Found] = []
    left_out: list[str] = []
    shown = {each.record_tag() for each in _SHOWN}
    for path in sorted(folder.glob("*.json")):
        if reading.tag_of(path) not in shown:
            continue
        try:
            record = reading.read_file(path, path.name, HOW)
        except UsageError as error:
            left_out.append(f"{error.message}: left out")
            continue
        found.append(Found(cast("Record", record), path))  # the tag says so
    return Pile(str(folder), tuple(found), folder=True, left_out=tuple(left_out))


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


# Which record belongs to which run: by the hashes of the files, or by their names where a record has no hashes.

_FIELDS: tuple[tuple[type[Record], str], ...] = (
    (Run, "run"),
    (Export, "export"),
    (Benchmark, "bench"),
    (Profile, "profile"),
    (Analysis, "analysis"),
)


def _field_of(record: Record) -> str:
    """Where a Dossier keeps it; a verb may hand out a subclass that carries more."""
    return next(field for kind, field in _FIELDS if isinstance(record, kind))


def run_bundles(piles: Iterable[Pile]) -> list[RunBundle]:
    """One for each run, with names that tell them apart.

    Raises:
        UsageError: there is no run, or a folder holds several.
    """
    made = [each for pile in piles for each in _of_pile(pile)]
    return list(_told_apart(made))


def _of_pile(pile: Pile) -> Iterator[tuple[RunBundle, Found]]:
    runs = list(runs_of(pile))
    if not runs:
        raise UsageError(_nothing(pile), hint=HOW)
    if pile.folder and len(runs) > 1:
        names = ", ".join(found.place for found, _run in runs)
        hint = "name the records themselves, or give each run a folder of its own"
        raise UsageError(f"{pile.place} holds several runs: {names}", hint=hint)
    others = [each for each in pile.found if not any(each is found for found, _run in runs)]
    taken: set[int] = set()
    for found, run in runs:
        dossier = RunBundle(_label(found, run), run, notes=pile.left_out)
        if isinstance(found.record, Export):
            dossier = replace(dossier, export=found.record)
        for each in others:
            if not belongs(each.record, run):
                continue
            taken.add(id(each))
            field = _field_of(each.record)
            if getattr(dossier, field) is None:
                dossier = _with(dossier, field, each.record)
            else:
                dossier = replace(dossier, notes=(*dossier.notes, f"{each.name}: {each.record.title} came before it"))
        yield replace(dossier, notes=(*dossier.notes, *_strangers(others, taken, len(runs)))), found


def _with(dossier: RunBundle, field: str, record: Record) -> RunBundle:
    fitting: dict[str, Any] = {field: record}
    return replace(dossier, **fitting)


def _strangers(others: Sequence[Found], taken: set[int], runs: int) -> Iterator[str]:
    """What belongs to no run, told where it is plain which run it should have belonged to."""
    for each in others if runs == 1 else ():
        if id(each) not in taken:
            yield f"{each.name} is {each.record.title} of other files: left out"


def belongs(record: Record, run: Run) -> bool:
    """Whether a record is about the files of a run: about both, or, for an export, about the source."""
    match record:
        case Export():
            return _is_same(run.source, record.result.path, record.result.sha256)
        case Benchmark():
            files = [(each.path or each.label, each.sha256) for each in record.files]
        case Profile():
            files = [(each.path or each.label, None) for each in record.models]
        case Analysis():
            files = [(each.name, None) for each in record.forms]
        case _:
            return False
    return all(any(_is_same(side, *each) for each in files) for side in (run.source, run.result))


def _is_same(artifact: Artifact, path: str | None, sha256: str | None) -> bool:
    if artifact.sha256 is not None and sha256 is not None:
        return artifact.sha256 == sha256
    return path is not None and artifact.path is not None and PurePath(path).name == PurePath(artifact.path).name


def _label(found: Found, run: Run) -> str:
    """The short name of a model: of the file that a reader knows."""
    artifact = run.result if isinstance(found.record, Export) else run.source
    return PurePath(artifact.path).name.removesuffix(".onnx") if artifact.path else "model"


def _told_apart(made: Sequence[tuple[RunBundle, Found]]) -> Iterator[RunBundle]:
    """Two runs of one model are told apart by where their records are: by files, by folders, or by number."""
    labels = [dossier.label for dossier, _found in made]
    for place, (dossier, _found) in enumerate(made):
        alike = [at for at, label in enumerate(labels) if label == dossier.label]
        if len(alike) > 1:
            dossier = replace(dossier, label=f"{dossier.label} ({_whereabouts(place, alike, made)})")
        yield dossier


def _whereabouts(place: int, alike: Sequence[int], made: Sequence[tuple[RunBundle, Found]]) -> str:
    paths = {at: found.path for at in alike if (found := made[at][1]).path is not None}
    for names in ({at: path.stem for at, path in paths.items()}, {at: path.parent.name for at, path in paths.items()}):
        if len(set(names.values())) == len(alike):
            return names[place]
    return str(place + 1)


def _nothing(pile: Pile) -> str:
    if pile.left_out:
        return pile.left_out[0].removesuffix(": left out")
    if not pile.found:
        return f"there is no run in {pile.place}"
    kinds = ", ".join(f"{each.place} is {each.record.title}" for each in pile.found[:3])
    return f"a report shows an optimization, and there is none: {kinds}"
