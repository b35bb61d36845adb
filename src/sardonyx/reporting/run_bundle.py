"""Everything that is known of one optimized model: its Run, and whatever other records lie beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeVar

from msgspec.structs import replace

from sardonyx.records.analysis import Analysis, Form
from sardonyx.records.bench import Benchmark, Point
from sardonyx.records.export import Export
from sardonyx.records.profile import Profile, ProfiledModel
from sardonyx.records.run import Run

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class RunBundle:
    """One run and the records of the same two files; None where there is none."""

    label: str  # short name of the model
    run: Run
    export: Export | None = None  # of the source
    bench: Benchmark | None = None  # the source's time is the reference
    profile: Profile | None = None
    analysis: Analysis | None = None  # of both files
    notes: tuple[str, ...] = ()  # what a reader should know of the records: one that was left out, and why

    @property
    def profiled(self) -> tuple[ProfiledModel, ProfiledModel] | None:
        """Where the time goes before and after."""
        return None if self.profile is None else self._two(self.profile.models, lambda each: each.path or each.label)

    @property
    def forms(self) -> tuple[Form, Form] | None:
        """What the files cost before and after."""
        return None if self.analysis is None else self._two(self.analysis.forms, lambda each: each.name)

    @property
    def point(self) -> Point | None:
        """The times of both files at the first size that was measured: of the source, then of the result."""
        if self.bench is None or (two := self._two(self.bench.files, lambda each: each.path or each.label)) is None:
            return None
        before, after = map(self.bench.files.index, two)
        timings = self.bench.points[0].timings
        if before:
            return None  # the result was compared with another file than the source
        return replace(self.bench.points[0], timings=(timings[before], timings[after]))

    def _two(self, items: Sequence[_Item], path: Callable[[_Item], str]) -> tuple[_Item, _Item] | None:
        """Those of the source and of the result: by their paths, or by the names of their files."""
        for key in (str, _name):
            wanted = [key(each.path or "") for each in (self.run.source, self.run.result)]
            found = {key(path(each)): each for each in items}
            if wanted[0] != wanted[1] and all(each in found for each in wanted):
                return found[wanted[0]], found[wanted[1]]
        return None


def _name(path: str) -> str:
    return PurePath(path).name
