"""The overview of several runs: a row for each model, the history of each, and how much each pass did on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from sardonyx.records.run import PassRecord
from sardonyx.reporting import formatting
from sardonyx.reporting.bench import finding, ratio
from sardonyx.reporting.history import History, ends, histories, history_section, measured, recent
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots.trend import trend
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
    def run_label(self) -> str:
        """The name of the run if all are of one model, otherwise that of the model."""
        return self.bundle.name or self.bundle.label

    @property
    def time(self) -> str:
        """The time of the result as a multiple of that of the source, with its interval."""
        return "not timed" if self.bundle.compared is None else ratio(self.bundle.compared)

    @property
    def finding(self) -> str:
        """What the times allow to claim."""
        return "" if self.bundle.compared is None else finding(self.bundle.compared)

    @property
    def caveats(self) -> str:
        """Under which conditions it was timed."""
        bench = self.bundle.bench
        if bench is None or self.bundle.compared is None:
            return ""
        threads = formatting.plural(int(bench.options["threads"]), "thread")
        return f"{threads}, busy machine" if bench.machine.busy is not None else threads

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
    """Return the overview of several runs, or None for a single one.

    Several models have a row each, of their newest run. The runs of one model have a line each in its history.
    """
    if len(bundles) < 2:
        return None
    models = histories(bundles)
    places = {id(bundle): place for place, bundle in enumerate(recent(bundles))}
    compared = [history.latest for history in models] if len(models) > 1 else recent(bundles)
    columns = [Row(places[id(bundle)], bundle) for bundle in compared]
    markup = rendered(
        "overview",
        rows=columns if len(models) > 1 else [],
        histories=[_history(history, places) for history in models if len(history.runs) > 1],
        columns=columns,
        matrices=[_matrix(compared, measure) for measure in _MEASURES],
    )
    title = "All models" if len(models) > 1 else f"History of {formatting.name(models[0].model)}"
    return Section("overview", title, markup)


def _history(history: History, places: Mapping[int, int]) -> dict[str, Any]:
    """Return the plots and the table of the runs of one model."""

    def link(bundle: RunBundle) -> str:
        place = places.get(id(bundle))
        return "" if place is None else f"#section=verdict&model={place}"

    section = history_section(history, link)
    plots = [
        (tracked.measure.heading, ends(history, tracked), trend(history, tracked).inline(narrowest=0))
        for tracked in measured(history)
    ]
    return {"title": section.title, "plots": plots, "table": html.write(section.blocks)}


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
