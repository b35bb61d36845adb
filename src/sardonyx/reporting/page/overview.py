"""The overview of several models: a row for each, and how much each pass did on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from sardonyx.records.run import PassRecord
from sardonyx.reporting import formatting
from sardonyx.reporting.bench import ratio
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.run_changes import changes
from sardonyx.reporting.study.heat import strength
from sardonyx.reporting.verdict import verification
from sardonyx.reporting.writers import html


class Row(Struct, frozen=True):
    """One model."""

    place: int
    bundle: RunBundle

    @property
    def time(self) -> str:
        """The time of the result as a multiple of that of the source, with its interval."""
        return "not timed" if self.bundle.compared is None else ratio(self.bundle.compared)

    @property
    def verification(self) -> str:
        """The result of the verification."""
        return verification(self.bundle.run.verdict)


class Cell(Struct, frozen=True):
    """What one pass did on one model."""

    written: str
    heat: int  # percent
    good: bool  # less of it than before
    hover: str


class Matrix(Struct, frozen=True):
    """Passes by models, in one measure."""

    id: str
    title: str
    lines: tuple[tuple[str, tuple[Cell | None, ...]], ...]  # None: the pass did not run there
    totals: tuple[str, ...]


class _Measure(Struct, frozen=True):
    id: str
    title: str
    of: Callable[[PassRecord], int]  # negative if there is less than before
    whole: Callable[[RunBundle], int]
    write: Callable[[int], str]


_MEASURES = (
    _Measure(
        "nodes",
        "change in nodes",
        lambda record: record.nodes,
        lambda bundle: bundle.run.before.nodes,
        formatting.change,
    ),
    _Measure(
        "rewrites",
        "rewrites",
        lambda record: record.rewrites,
        lambda bundle: sum(record.rewrites for record in bundle.run.passes),
        lambda number: formatting.count(number) if number else "·",
    ),
    _Measure(
        "bytes",
        "change in bytes",
        lambda record: record.bytes,
        lambda bundle: bundle.run.before.bytes,
        formatting.size_change,
    ),
)


def overview(bundles: Sequence[RunBundle]) -> Section | None:
    """Return the overview of several models, or None for a single one."""
    if len(bundles) < 2:
        return None
    markup = rendered(
        "overview",
        rows=[Row(place, bundle) for place, bundle in enumerate(bundles)],
        matrices=[_matrix(bundles, measure) for measure in _MEASURES],
    )
    return Section("overview", "All models", markup)


def _matrix(bundles: Sequence[RunBundle], measure: _Measure) -> Matrix:
    records = [{record.name: record for record in bundle.run.passes} for bundle in bundles]
    names = dict.fromkeys(record.name for bundle in bundles for record in bundle.run.passes)
    active = [name for name in names if any(name in by_name and by_name[name].rewrites for by_name in records)]
    lines = tuple(
        (name, tuple(_cell(own.get(name), bundle, measure) for own, bundle in zip(records, bundles, strict=True)))
        for name in active
    )
    totals = tuple(measure.write(sum(map(measure.of, bundle.run.passes))) for bundle in bundles)
    return Matrix(measure.id, measure.title, lines, totals)


def _cell(record: PassRecord | None, bundle: RunBundle, measure: _Measure) -> Cell | None:
    if record is None:
        return None
    number, whole = measure.of(record), measure.whole(bundle) or 1
    hover = f"{record.name} on {bundle.label}: {measure.title} {measure.write(number)} of {formatting.count(whole)}"
    heat = round(60 * strength(abs(number) / whole))
    return Cell(measure.write(number), heat, number <= 0 or measure.id == "rewrites", formatting.one_line(hover))


# What changed from one run to another, first on a page of both.


def compared(first: RunBundle, second: RunBundle) -> Section:
    """Return the sentence, what differs besides the results, and a table for each kind of change."""
    changed = changes(first, second)
    markup = rendered("compared", changes=changed, tables=html.write(changed.sections), first=first, second=second)
    return Section("compared", "What changed", markup)
