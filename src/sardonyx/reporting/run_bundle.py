"""All records about one model, and the files and folders that they are read from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from sardonyx.errors import UsageError
from sardonyx.records import reading
from sardonyx.records.analysis import Analysis, Form
from sardonyx.records.bench import Benchmark, Comparison, Placement, Point, Profile, ProfiledModel
from sardonyx.records.comparison import Location
from sardonyx.records.export import Export
from sardonyx.records.inspection import Inspection
from sardonyx.records.outside import OutsideRecord, kind_of
from sardonyx.records.quantization import Quantization
from sardonyx.records.run import Artifact, Run

_Item = TypeVar("_Item")
SIDES = ("before", "after")  # the names of the two graphs in records of a model file


class RunBundle(Struct, frozen=True):
    """One run and the other records of its two files, each None if there is none."""

    label: str  # short name of the model
    run: Run
    export: Export | None = None  # of the source
    bench: Benchmark | None = None  # the source's time is the reference
    profile: Profile | None = None
    analysis: Analysis | None = None  # of both files
    location: Location | None = None  # of the result, compared with the source
    quantization: Quantization | None = None  # of the source or of the result
    placements: tuple[Placement, ...] = ()  # of the source or of the result
    outside: tuple[OutsideRecord, ...] = ()  # of commands of other packages
    inspection: Inspection | None = None  # of the source, on the page of a model file: the run is then a dry one
    name: str = ""  # of its file or folder, if another run has the same model
    notes: tuple[str, ...] = ()  # about the records: which were left out, and why

    @property
    def passed(self) -> bool:
        """Whether a file was written and no verification failed."""
        return self.run.status == "done" and (self.run.verdict is None or self.run.verdict.passed)

    @property
    def profiled(self) -> tuple[ProfiledModel, ProfiledModel] | None:
        """The profiles before and after, or None."""
        models = () if self.profile is None else self.profile.models
        return _two(self.run, models, lambda each: each.path or each.label)

    @property
    def forms(self) -> tuple[Form, Form] | None:
        """The costs before and after, or None."""
        if self.analysis is None:
            return None
        if self.inspection is not None:
            before, after = self.analysis.forms
            return before, after
        return _two(self.run, self.analysis.forms, lambda form: form.name)

    @property
    def devices(self) -> dict[str, tuple[Placement, Placement]]:
        """The placements before and after, by device."""
        by_device: dict[str, list[Placement]] = {}
        for each in self.placements:
            by_device.setdefault(each.device, []).append(each)
        if self.inspection is not None:
            return {device: (before, after) for device, (before, after) in by_device.items()}
        both = {device: _two(self.run, placed, lambda each: each.model) for device, placed in by_device.items()}
        return {device: two for device, two in both.items() if two is not None}

    @property
    def timed(self) -> Benchmark | None:
        """The benchmark of source and result alone, at the first measured size, or None."""
        return None if self.bench is None else _of_two(self.run, self.bench)

    @property
    def point(self) -> Point | None:
        """The times of source and result at the first measured size, or None."""
        return None if self.timed is None else self.timed.points[0]

    @property
    def compared(self) -> Comparison | None:
        """The time of the result against that of the source, or None."""
        return None if self.point is None else self.point.timings[1].against_first


def _of_two(made: Run | Quantization, bench: Benchmark) -> Benchmark | None:
    """Return the benchmark of source and result alone, at the first size; None if the source is not the reference."""
    files = _two(made, bench.files, lambda file: file.path or file.label)
    if files is None or bench.files.index(files[0]):
        return None
    timings = bench.points[0].timings
    point = replace(bench.points[0], timings=(timings[0], timings[bench.files.index(files[1])]))
    return replace(bench, files=files, points=(point,))


def _two(made: Run | Quantization, items: Sequence[_Item], path: Callable[[_Item], str]) -> tuple[_Item, _Item] | None:
    """Return the items of source and result, matched by path or by file name, or None if one is missing."""
    for key in (str, _file_name):
        source, result = (key(artifact.path or "") for artifact in (made.source, made.result))
        by_path = {key(path(item)): item for item in items}
        if source != result and source in by_path and result in by_path:
            return by_path[source], by_path[result]
    return None


def _file_name(path: str) -> str:
    return PurePath(path).name


class QuantizationBundle(Struct, frozen=True):
    """A quantization of a model that has no run, and the other records of its two files."""

    label: str  # short name of the model
    quantization: Quantization
    bench: Benchmark | None = None  # the source's time is the reference
    location: Location | None = None  # of the result, compared with the source
    name: str = ""  # of its file or folder, if another quantization has the same model
    notes: tuple[str, ...] = ()

    @property
    def point(self) -> Point | None:
        """The times of source and result at the first measured size, or None."""
        timed = None if self.bench is None else _of_two(self.quantization, self.bench)
        return None if timed is None else timed.points[0]


Record = Run | Export | Benchmark | Profile | Analysis | Location | Quantization | Placement | OutsideRecord
Source = str | Path | Record
HOW = "`sardonyx optimize MODEL --record run.json` writes one, and `--run FOLDER` a folder with all records"
_SHOWN = (Run, Export, Benchmark, Profile, Analysis, Location, Quantization, Placement, OutsideRecord)
_Bundle = TypeVar("_Bundle", RunBundle, QuantizationBundle)


class LocatedRecord(Struct, frozen=True):
    """A record and the file it was read from."""

    record: Record
    path: Path | None = None  # None: given as an object

    @property
    def place(self) -> str:
        """Its name in error messages."""
        return f"the given {type(self.record).__name__}" if self.path is None else str(self.path)

    @property
    def name(self) -> str:
        """Its name in notes."""
        return self.place if self.path is None else self.path.name


class RecordGroup(Struct, frozen=True):
    """Records that were given together: runs, and other records that may belong to them."""

    place: str
    records: tuple[LocatedRecord, ...]
    folder: bool = False
    left_out: tuple[str, ...] = ()  # records of a folder that could not be read, and why


def record_groups(sources: Sequence[Source]) -> list[RecordGroup]:
    """Return a group for each folder, and one for all files and objects.

    If there is no run among the files and objects, they may belong to the run of any of the folders.

    Raises:
        UsageError: a source does not exist, or is not a record that a report shows.
    """
    loose, folders = list[LocatedRecord](), list[RecordGroup]()
    for source in sources:
        if not isinstance(source, (str, Path)):
            loose.append(LocatedRecord(source))
        elif Path(source).is_dir():
            folders.append(_in_folder(Path(source)))
        else:
            record = reading.read_file(Path(source), str(source), HOW)
            if not isinstance(record, _SHOWN):
                shown = "and a report shows an optimization or a quantization"
                raise UsageError(f"{source} is {record.title}, {shown}", hint=HOW)
            loose.append(LocatedRecord(record, Path(source)))
    single = RecordGroup("the sources", tuple(loose))
    if folders and not any(runs_of(single)):
        return [replace(group, records=(*group.records, *loose)) for group in folders]
    return [*([single] if loose else []), *folders]


def _in_folder(folder: Path) -> RecordGroup:
    """Return the records of a folder that a report shows, and the names of those that cannot be read."""
    records, left_out = list[LocatedRecord](), list[str]()
    shown, known = {kind.record_tag() for kind in _SHOWN}, reading.kinds()
    for path in sorted(folder.glob("*.json")):
        tag = reading.tag_of(path)
        if tag in shown or (tag is not None and tag not in known and kind_of(tag) is not None):
            try:
                record = cast("Record", reading.read_file(path, path.name, HOW))  # by its tag
                records.append(LocatedRecord(record, path))
            except UsageError as error:
                left_out.append(f"{error.message}: left out")
    return RecordGroup(str(folder), tuple(records), folder=True, left_out=tuple(left_out))


def runs_of(group: RecordGroup) -> Iterator[tuple[LocatedRecord, Run]]:
    """Yield each run of a group with its record; a run that is also part of an export is yielded once."""
    seen: set[str | None] = set()
    for located in sorted(group.records, key=lambda item: isinstance(item.record, Export)):  # runs first
        record = located.record
        run = record if isinstance(record, Run) else record.optimized if isinstance(record, Export) else None
        if run is None or (run is not record and run.result.sha256 is not None and run.result.sha256 in seen):
            continue
        seen.add(run.result.sha256)
        yield located, run


# Which record belongs to which run: by the hashes of the files, or by their names if a record has no hashes.

_FIELDS: tuple[tuple[type[Record], str], ...] = (
    (Run, "run"),
    (Export, "export"),
    (Benchmark, "bench"),
    (Profile, "profile"),
    (Analysis, "analysis"),
    (Location, "location"),
    (Quantization, "quantization"),
    (Placement, "placements"),
    (OutsideRecord, "outside"),
)


def run_bundles(groups: Iterable[RecordGroup]) -> list[RunBundle]:
    """Return a bundle for each run, with distinct labels.

    Raises:
        UsageError: a group has neither a run nor a quantization, or a folder holds several runs.
    """
    return list(_distinct([pair for group in groups for pair in _of_group(group)]))


def quantization_bundles(groups: Iterable[RecordGroup]) -> list[QuantizationBundle]:
    """Return a bundle for each quantization of a model that has no run among the records, with distinct labels."""
    listed = list(groups)
    runs = [run for group in listed for _located, run in runs_of(group)]
    found: dict[int, tuple[QuantizationBundle, LocatedRecord]] = {}  # once, also if given beside several folders
    for group in listed:
        for located in group.records:
            record = located.record
            if isinstance(record, Quantization) and not any(belongs(record, run) for run in runs):
                others = [other.record for other in group.records if belongs(other.record, record)]
                bench = next((each for each in others if isinstance(each, Benchmark)), None)
                location = next((each for each in others if isinstance(each, Location)), None)
                bundle = QuantizationBundle(_model_name(record.source), record, bench, location, notes=group.left_out)
                found[id(located)] = bundle, located
    return list(_distinct(list(found.values())))


def _of_group(group: RecordGroup) -> Iterator[tuple[RunBundle, LocatedRecord]]:
    runs = list(runs_of(group))
    if not runs and not any(isinstance(located.record, Quantization) for located in group.records):
        raise UsageError(_nothing(group), hint=HOW)
    if group.folder and len(runs) > 1:
        names = ", ".join(located.place for located, _run in runs)
        hint = "name the records themselves, or give each run a folder of its own"
        raise UsageError(f"{group.place} contains several runs: {names}", hint=hint)
    others = [other for other in group.records if not any(other is located for located, _run in runs)]
    for located, run in runs:
        export = located.record if isinstance(located.record, Export) else None
        named = run.source if export is None else run.result  # by the exported file
        bundle = RunBundle(_model_name(named), run, export=export)
        notes = [*group.left_out]
        for other in others:
            record = other.record
            if belongs(record, run):
                field = next(field for kind, field in _FIELDS if isinstance(record, kind))
                given = getattr(bundle, field)
                if given is None or isinstance(given, tuple):
                    fitting: dict[str, Any] = {field: record if given is None else (*given, record)}
                    bundle = replace(bundle, **fitting)
                else:
                    notes.append(f"{other.name}: {record.title} is already given")
        if len(runs) == 1:  # quantizations have their own pages
            apart = [o for o in others if not belongs(o.record, run) and not isinstance(o.record, Quantization)]
            notes += [f"{other.name} is {other.record.title} of other files: left out" for other in apart]
        yield replace(bundle, notes=tuple(notes)), located


def belongs(record: Record, run: Run | Quantization) -> bool:
    """Return whether a record is about both files of a run, an export about the source, a quantization about one."""
    one: list[tuple[str | None, str | None]] = []  # the path and the hash of a file that is one of the two
    both: list[tuple[str | None, str | None]] = []  # of files among which both are
    match record:
        case Export():
            return _is_same(run.source, record.result.path, record.result.sha256)
        case Quantization():
            one = [(record.source.path, record.source.sha256)]
        case Placement():
            one = [(record.model, None)]
        case OutsideRecord():
            one = [(path, None) for path in record.models]
        case Benchmark():
            both = [(file.path or file.label, file.sha256) for file in record.files]
        case Profile():
            both = [(model.path or model.label, None) for model in record.models]
        case Analysis():
            both = [(form.name, None) for form in record.forms]
        case Location():
            both = [(model.name, None) for model in (record.first, record.second)]
        case _:
            return False
    found = [any(_is_same(side, *file) for file in one or both) for side in (run.source, run.result)]
    return any(found) if one else all(found)


def _is_same(artifact: Artifact, path: str | None, sha256: str | None) -> bool:
    if artifact.sha256 is not None and sha256 is not None:
        return artifact.sha256 == sha256
    return path is not None and artifact.path is not None and PurePath(path).name == PurePath(artifact.path).name


def _model_name(artifact: Artifact) -> str:
    return PurePath(artifact.path).name.removesuffix(".onnx") if artifact.path else "model"


def _distinct(pairs: Sequence[tuple[_Bundle, LocatedRecord]]) -> Iterator[_Bundle]:
    """Yield bundles with distinct labels: those of one model get the name of their file or folder, or a number."""
    labels = [bundle.label for bundle, _located in pairs]
    for place, (bundle, _located) in enumerate(pairs):
        alike = [at for at, label in enumerate(labels) if label == bundle.label]
        if len(alike) > 1:
            name = _whereabouts(place, alike, pairs)
            bundle = replace(bundle, label=f"{bundle.label} ({name})", name=name)
        yield bundle


def _whereabouts(place: int, alike: Sequence[int], pairs: Sequence[tuple[_Bundle, LocatedRecord]]) -> str:
    paths = {at: located.path for at in alike if (located := pairs[at][1]).path is not None}
    for names in ({at: path.stem for at, path in paths.items()}, {at: path.parent.name for at, path in paths.items()}):
        if len(set(names.values())) == len(alike):
            return names[place]
    return str(place + 1)


def locations_without_run(groups: Sequence[RecordGroup]) -> dict[str, Location]:
    """Return the records of `locate` by a distinct label if there are no runs and other records beside them."""
    found = [located.record for group in groups for located in group.records]
    locations = [record for record in found if isinstance(record, Location)]
    if len(locations) < len(found):
        return {}
    names = [PurePath(location.second.name).name for location in locations]
    labels = [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]
    return dict(zip(labels, locations, strict=True))


def _nothing(group: RecordGroup) -> str:
    if group.left_out:
        return group.left_out[0].removesuffix(": left out")
    if not group.records:
        return f"there is no run in {group.place}"
    kinds = ", ".join(f"{other.place} is {other.record.title}" for other in group.records[:3])
    return f"a report shows an optimization or a quantization, and there is none: {kinds}"
