"""Everything that is known of one optimized model: its Run, and whatever other records lie beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeVar

from sardonyx.analysis_record import Analysis, Form
from sardonyx.bench_record import Benchmark, Point
from sardonyx.export_record import Export
from sardonyx.profile_record import Profile, ProfiledModel
from sardonyx.record import Artifact, Run

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Dossier:
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
        """The times of both files, at the first size that was measured: of the source first, then of the result."""
        if self.bench is None or self._two(self.bench.files, lambda each: each.path or each.label) is None:
            return None
        return self.bench.points[0]

    def _two(self, items: Sequence[_Item], path: Callable[[_Item], str]) -> tuple[_Item, _Item] | None:
        """Those of the source and of the result, by the names of their files."""
        named = {PurePath(path(each)).name: each for each in items}
        before, after = (named.get(_file(each)) for each in (self.run.source, self.run.result))
        return None if before is None or after is None else (before, after)


def _file(artifact: Artifact) -> str:
    return PurePath(artifact.path or "").name
