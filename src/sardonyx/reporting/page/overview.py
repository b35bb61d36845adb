"""Several models at a glance: a row for each, and which pass did how much on which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sardonyx.records.bench import Comparison
from sardonyx.records.run import PassRecord
from sardonyx.reporting import formatting
from sardonyx.reporting.bench import ratio
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.run_changes import changes
from sardonyx.reporting.study.heat import strength
from sardonyx.reporting.verdict import proof


@dataclass(frozen=True, slots=True)
class Row:
    """One model."""

    place: int
    dossier: RunBundle
    compared: Comparison | None  # None: not timed

    @property
    def time(self) -> str:
        """The result's time as a multiple of the source's, with its interval."""
        return "not timed" if self.compared is None else ratio(self.compared)

    @property
    def proven(self) -> str:
        """What the proof amounts to."""
        return proof(self.dossier.run.verdict)


@dataclass(frozen=True, slots=True)
class Cell:
    """What one pass did on one model."""

    written: str
    heat: int  # percent
    good: bool  # less of it than before
    hover: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """Passes by models, in one measure."""

    id: str
    title: str
    lines: tuple[tuple[str, tuple[Cell | None, ...]], ...]  # None: the pass did not run there
    totals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Measure:
    id: str
    title: str
    of: Callable[[PassRecord], int]  # what there is less of counts below zero
    whole: Callable[[RunBundle], int]
    write: Callable[[int], str]


_MEASURES = (
    _Measure(
        "nodes", "change in nodes", lambda each: each.nodes, lambda each: each.run.before.nodes, formatting.change
    ),
    _Measure(
        "rewrites",
        "rewrites",
        lambda each: each.rewrites,
        lambda each: sum(record.rewrites for record in each.run.passes),
        lambda number: formatting.count(number) if number else "·",
    ),
    _Measure(
        "bytes", "change in bytes", lambda each: each.bytes, lambda each: each.run.before.bytes, formatting.size_change
    ),
)


def overview(dossiers: Sequence[RunBundle]) -> Section | None:
    """What comes first on a page of several models; nothing for one."""
    if len(dossiers) < 2:
        return None
    html = rendered(
        "overview",
        rows=[Row(place, each, _compared(each)) for place, each in enumerate(dossiers)],
        matrices=[_matrix(dossiers, each) for each in _MEASURES],
    )
    return Section("overview", "All models", html)


def _compared(dossier: RunBundle) -> Comparison | None:
    return None if dossier.point is None else dossier.point.timings[1].against_first


def _matrix(dossiers: Sequence[RunBundle], measure: _Measure) -> Matrix:
    did = [{each.name: each for each in dossier.run.passes} for dossier in dossiers]
    names = dict.fromkeys(each.name for dossier in dossiers for each in dossier.run.passes)
    busy = [name for name in names if any(name in each and each[name].rewrites for each in did)]
    lines = tuple(
        (name, tuple(_cell(each.get(name), dossier, measure) for each, dossier in zip(did, dossiers, strict=True)))
        for name in busy
    )
    totals = tuple(measure.write(sum(map(measure.of, dossier.run.passes))) for dossier in dossiers)
    return Matrix(measure.id, measure.title, lines, totals)


def _cell(record: PassRecord | None, dossier: RunBundle, measure: _Measure) -> Cell | None:
    if record is None:
        return None
    number, whole = measure.of(record), measure.whole(dossier) or 1
    hover = f"{record.name} on {dossier.label}: {measure.title} {measure.write(number)} of {formatting.count(whole)}"
    heat = round(60 * strength(abs(number) / whole))
    return Cell(measure.write(number), heat, number <= 0 or measure.id == "rewrites", formatting.one_line(hover))


# What changed from one run to another, as the first thing on a page of both.


def compared(first: RunBundle, second: RunBundle) -> Section:
    """The sentence, what differs besides, and a table for each thing that changed."""
    html = rendered("compared", found=changes(first, second), first=first, second=second)
    return Section("compared", "What changed", html)
