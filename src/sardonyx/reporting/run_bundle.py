"""All records of one model: its Run and the other records of the same files, or a Quantization without a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sardonyx.records.analysis import Analysis, Form
from sardonyx.records.bench import Benchmark, Comparison, Point
from sardonyx.records.export import Export
from sardonyx.records.inspection import Inspection
from sardonyx.records.location import Location
from sardonyx.records.outside import OutsideRecord
from sardonyx.records.profile import Profile, ProfiledModel
from sardonyx.records.quantization import Quantization
from sardonyx.records.run import Run

_Item = TypeVar("_Item")


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
    outside: tuple[OutsideRecord, ...] = ()  # of commands of other packages
    inspection: Inspection | None = None  # of the source, on the page of a model file: the run is then a dry one
    name: str = ""  # of its file or folder, if another run has the same model
    notes: tuple[str, ...] = ()  # about the records: which were left out, and why

    @property
    def profiled(self) -> tuple[ProfiledModel, ProfiledModel] | None:
        """The profiles before and after, or None."""
        return (
            None if self.profile is None else _two(self.run, self.profile.models, lambda each: each.path or each.label)
        )

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
    def point(self) -> Point | None:
        """The times of source and result at the first measured size, or None."""
        return None if self.bench is None else _point(self.run, self.bench)

    @property
    def timed(self) -> Benchmark | None:
        """The benchmark of source and result alone, at the first measured size, or None."""
        return None if self.bench is None or self.point is None else _of_two(self.run, self.bench, self.point)

    @property
    def compared(self) -> Comparison | None:
        """The time of the result against that of the source, or None."""
        return None if self.point is None else self.point.timings[1].against_first


def _point(made: Run | Quantization, bench: Benchmark) -> Point | None:
    two = _two(made, bench.files, lambda file: file.path or file.label)
    if two is None:
        return None
    before, after = map(bench.files.index, two)
    timings = bench.points[0].timings
    if before:
        return None  # the result was compared with another file than the source
    return replace(bench.points[0], timings=(timings[before], timings[after]))


def _of_two(made: Run, bench: Benchmark, point: Point) -> Benchmark:
    files = _two(made, bench.files, lambda file: file.path or file.label)
    assert files is not None, "a point has the times of both files"
    return replace(bench, files=files, points=(point,))


def _two(made: Run | Quantization, items: Sequence[_Item], path: Callable[[_Item], str]) -> tuple[_Item, _Item] | None:
    """Return the items of source and result, matched by path or by file name, or None if one is missing."""
    for key in (str, _name):
        source, result = (key(artifact.path or "") for artifact in (made.source, made.result))
        by_path = {key(path(item)): item for item in items}
        if source != result and source in by_path and result in by_path:
            return by_path[source], by_path[result]
    return None


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
        return None if self.bench is None else _point(self.quantization, self.bench)


def _name(path: str) -> str:
    return PurePath(path).name
