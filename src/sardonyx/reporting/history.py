"""Runs of one model at different times: one line per run, newest first, with the trend of each number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TypeVar

from msgspec import Struct

from sardonyx.records.base import Record
from sardonyx.records.provenance import lineage
from sardonyx.records.run import Run
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.bench import milliseconds, ratio, size
from sardonyx.reporting.document import Column, Row, Span, Tone, View, text_column
from sardonyx.reporting.measures import Measure, Reading
from sardonyx.reporting.module_rows import listed, module_cell, module_rows
from sardonyx.reporting.record_kinds import BENCHMARK, NEEDS_VERDICT, RUN
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import verification

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Other = TypeVar("_Other")
_ROWS_SHOWN = 200  # rows of a table
_BENCH = Span("sardonyx bench FIRST.onnx SECOND.onnx", code=True)


class Changes(Struct, frozen=True):
    """Two runs side by side."""

    sentence: str
    apart: tuple[str, ...]  # what differs besides the results: files, options, versions
    sections: tuple[doc.Section, ...]  # the numbers, then everything that differs


def changes(first: RunBundle, second: RunBundle) -> Changes:
    """Return everything that differs between two runs."""
    one, two = first.run, second.run
    compared = (_operators(one, two), _passes(one, two), _modules(one, two), _skipped(one, two), _undone(one, two))
    differing = tuple(section for section in compared if not doc.is_empty(section))
    rows: list[tuple[str, ...]] = []
    for measure in RUN.declared:  # except how many fewer, and differences, which need their tolerance
        before, after = measure.read(one), measure.read(two)
        given = measure.name not in NEEDS_VERDICT and not measure.name.endswith("_removed")
        if given and (before.known or after.known):
            changed = (after.change(before), after.verdict(before))
            rows.append((measure.heading, before.written, after.written, *changed))
    verdicts = (("first", verification(one.verdict)), ("second", verification(two.verdict)))
    sections = (
        doc.table_section("Numbers", ("", "first", "second", "change", ""), rows),
        doc.table_section("Verification", ("run", "verification"), verdicts, text_columns=2),
        *_times(first, second),
        *differing,
    )
    return Changes(_sentence(one, two, differing), tuple(_apart(one, two)), sections)


def _sentence(one: Run, two: Run, differing: Sequence[doc.Section]) -> str:
    nodes, octets = fmt.change(two.after.nodes - one.after.nodes), two.after.bytes - one.after.bytes
    passed = [run.verdict is not None and run.verdict.passed for run in (one, two)]
    both = "both verified against their source" if passed[0] else "neither is verified"
    if passed[0] != passed[1]:
        both = f"only the {'first' if passed[0] else 'second'} is verified"
    if one.after == two.after and not differing:
        same = f"{fmt.plural(two.after.nodes, 'node')}, {fmt.size(two.after.bytes)}"
        return f"The same result both times: {same}; {both}"
    by = "" if nodes == "·" else f" ({nodes})"
    result = f"{fmt.counts(one.after.nodes, two.after.nodes)} nodes{by}"
    result += f", {fmt.size_change(octets)}" if octets else ", the same bytes"
    titles = [str(section.title).lower() for section in differing]
    result += f"; differences in {', '.join(titles)}" if titles else ""
    return f"{result}; {both}"


def _apart(one: Run, two: Run) -> Iterator[str]:
    if one.source.sha256 is None or two.source.sha256 is None:
        if one.before != two.before:
            yield "the sources differ: they are not the same size"
    elif one.source.sha256 != two.source.sha256:
        yield "the sources are different files"
    for name, *values in _differing(one, two, lambda run: run.options, None):
        written = ("none" if value is None or value == [] else str(value) for value in values)
        yield fmt.one_line(f"option {name}: {' → '.join(written)}")
    for name, here, there in _differing(one, two, _versions, "none"):
        yield fmt.one_line(f"{name} {here} → {there}")
    if one.environment.platform != two.environment.platform:
        yield fmt.one_line(f"platform {one.environment.platform} → {two.environment.platform}")


def _versions(run: Run) -> dict[str, str]:
    env = run.environment
    return {"sardonyx": env.sardonyx, "Python": env.python, **env.packages}


def _times(first: RunBundle, second: RunBundle) -> Iterator[doc.Section]:
    """Yield each result against its own source, and whether the two can be compared with each other."""
    if first.point is None or second.point is None:
        if first.point is not second.point:
            missing = "first" if first.point is None else "second"
            yield doc.Section("Time", (doc.Paragraph(f"The {missing} run was not timed."),))
        return
    rows = [
        (name, milliseconds(point.timings[0].median), milliseconds(point.timings[1].median), ratio(compared))
        for name, point in (("first", first.point), ("second", second.point))
        if (compared := point.timings[1].against_first) is not None
    ]
    reasons = "; ".join(incomparable(first, second))
    comparable = ("Measured apart, on the same machine; compare the results themselves with ", _BENCH, ".")
    above = f"Not comparable: {reasons}." if reasons else comparable
    yield doc.table_section("Time", ("run", "source ms", "result ms", "result / source"), rows, above=above)


def incomparable(first: RunBundle, second: RunBundle) -> Iterator[str]:
    """Yield why the times of two runs cannot be compared."""
    names = ("runtime", "threads", "provider", "level", "clock")
    conditions = [
        {
            "machine": f"{bench.machine.cpu}, {bench.machine.cores} cores",
            "sizes": size(bench.points[0].sizes) or "fixed",
            **{name: bench.options.get(name) for name in names},
        }
        for bench in (first.bench, second.bench)
        if bench is not None
    ]
    for name, value in conditions[0].items():
        if value != conditions[-1][name]:
            yield fmt.one_line(f"{name} {value} and {conditions[-1][name]}")


def _operators(one: Run, two: Run) -> doc.Section:
    counts = _differing(one, two, lambda run: {op.op_type: op.after for op in run.ops}, 0)
    rows = ((fmt.name(name), a, b, fmt.change(b - a)) for name, a, b in counts)
    return doc.table_section("Operators", ("operator", "first result", "second", "change"), rows, most=_ROWS_SHOWN)


def _passes(one: Run, two: Run) -> doc.Section:
    def effects(run: Run) -> dict[str, tuple[int, int, int]]:
        return {record.name: (record.rewrites, record.nodes, record.bytes) for record in run.passes}

    rows: list[tuple[str, ...]] = []
    for name, a, b in _differing(one, two, effects, None):
        if a is not None and b is not None:
            nodes = "·"
            if a[1] != b[1]:
                nodes = fmt.from_to(*(fmt.change(effect[1]) if effect[1] else "0" for effect in (a, b)))
            rows.append((fmt.name(name), "", fmt.counts(a[0], b[0]), nodes, fmt.size_change(b[2] - a[2])))
        elif (only := a or b) and only[0]:
            side = "first" if b is None else "second"
            rows.append((fmt.name(name), f"only in the {side}", fmt.count(only[0]), fmt.change(only[1]), "·"))
    headings = ("pass", "", "rewrites", "change in nodes", "bytes")
    return doc.table_section("Passes", headings, rows, text_columns=2, most=_ROWS_SHOWN)


def _modules(one: Run, two: Run) -> doc.Section:
    sides = [{module.path: module for module in run.modules} for run in (one, two)]
    tags = {module.path: module.tag for run in (two, one) for module in run.modules}
    entries: list[tuple[str, str, tuple[int, ...]]] = []
    shown: set[str] = set()
    for path in dict.fromkeys((*sides[0], *sides[1])):
        found = (side.get(path) for side in sides)
        numbers = tuple(n for module in found for n in ((module.after, module.bytes_after) if module else (0, 0)))
        entries.append((path, tags[path], numbers))
        if numbers[:2] != numbers[2:]:
            shown.update(lineage(path))
    rows: list[tuple[doc.Text | doc.Cell, ...]] = []
    for row in module_rows(entries, View(verbose=True)):
        if row.branch.path in shown:
            nodes, octets, other_nodes, other_octets = row.total
            changed = (fmt.change(other_nodes - nodes), fmt.size_change(other_octets - octets))
            rows.append((module_cell(row), nodes, other_nodes, *changed))
    headings = ("module", "nodes, first result", "second", "change", "bytes")
    return doc.table_section("Modules", headings, rows, most=_ROWS_SHOWN)


def _skipped(one: Run, two: Run) -> doc.Section:
    def counts(run: Run) -> dict[tuple[str, str], int]:
        return {(record.name, group.reason): group.count for record in run.passes for group in record.refusals}

    rows = (
        (fmt.name(name), fmt.one_line(reason), a, b, "new" if not a else "gone" if not b else fmt.change(b - a))
        for (name, reason), a, b in _differing(one, two, counts, 0)
    )
    headings = ("pass", "reason", "first", "second", "")
    return doc.table_section("Missed fusions", headings, rows, text_columns=2, most=_ROWS_SHOWN)


def _undone(one: Run, two: Run) -> doc.Section:
    undone = [{(rollback.pass_name, rollback.root): rollback for rollback in run.rolled_back} for run in (one, two)]
    rows = [
        (fmt.name(each.pass_name), fmt.module(each.owner), fmt.one_line(each.reason), fate)
        for fate, here, there in (("gone", undone[0], undone[1]), ("new", undone[1], undone[0]))
        for key, each in here.items()
        if key not in there
    ]
    return doc.table_section("Rolled back", ("pass", "module", "reason", ""), rows, text_columns=4, most=_ROWS_SHOWN)


def _differing(
    one: Run, two: Run, of: Callable[[Run], Mapping[_Key, _Value]], missing: _Other
) -> Iterator[tuple[_Key, _Value | _Other, _Value | _Other]]:
    """Yield each key under which the two runs have different values, with both values."""
    here, there = of(one), of(two)
    for key in dict.fromkeys((*here, *there)):
        a, b = here.get(key, missing), there.get(key, missing)
        if a != b:
            yield key, a, b


RECENT_RUNS = 8  # runs of one model whose sections a page contains; older runs have only their line
MAX_LINES = 200  # lines of a table
_RUNS_NOTED = 10  # runs in notes
_MAX_BARS = 60  # of a trend
_LEVELS = "▁▂▃▄▅▆▇█"


class History(Struct, frozen=True):
    """The runs of one model, the newest first; most have one."""

    runs: tuple[RunBundle, ...]

    @property
    def latest(self) -> RunBundle:
        """The newest run."""
        return self.runs[0]

    @property
    def model(self) -> str:
        """The name of the model."""
        path = self.latest.run.source.path
        return PurePath(path).name.removesuffix(".onnx") if path and len(self.runs) > 1 else self.latest.label


class Tracked(Struct, frozen=True, eq=False):
    """A measure of one of the records of a run."""

    measure: Measure
    record: Callable[[RunBundle], Record | None]

    def read(self, bundle: RunBundle) -> Reading | None:
        """Return the number of a run, or None if it was not measured."""
        reading = self.measure.read(self.record(bundle))
        return reading if reading.known else None


def histories(bundles: Sequence[RunBundle]) -> list[History]:
    """Return the runs grouped by model, each group with the newest run first.

    Two runs are of one model if their sources have the same hash or the same path, and they have the same target:
    results for two targets are two models. Runs without a date are not grouped.
    """
    groups: list[list[RunBundle]] = []
    for bundle in bundles:
        group = next((group for group in groups if any(_is_one_model(bundle, other) for other in group)), None)
        if group is None:
            groups.append([bundle])
        else:
            group.append(bundle)
    return [History(tuple(sorted(group, key=_date, reverse=True))) for group in groups]


def recent(bundles: Sequence[RunBundle]) -> list[RunBundle]:
    """Return the runs whose sections a page contains, the newest of each model first."""
    return [run for history in histories(bundles) for run in history.runs[:RECENT_RUNS]]


def _date(bundle: RunBundle) -> str:
    return bundle.run.environment.date


def _is_one_model(one: RunBundle, other: RunBundle) -> bool:
    if not _date(one) or not _date(other) or one.run.options.get("target") != other.run.options.get("target"):
        return False
    sources = (one.run.source, other.run.source)
    hashes, paths = {each.sha256 for each in sources}, {each.path for each in sources}
    return any(len(names) == 1 and None not in names for names in (hashes, paths))


TRACKED = (
    *(Tracked(RUN[name], lambda bundle: bundle.run) for name in ("nodes", "bytes")),
    *(Tracked(BENCHMARK[name], lambda bundle: bundle.timed) for name in ("latency_ms", "latency_ratio", "peak_bytes")),
)


def measured(history: History) -> list[Tracked]:
    """Return the measures that at least one run has."""
    return [tracked for tracked in TRACKED if any(tracked.read(run) is not None for run in history.runs)]


def history_section(history: History, link: Callable[[RunBundle], str] = lambda _run: "") -> doc.Section:
    """Return the table of a history with a line a run, and notes on what is not comparable.

    Args:
        history: several runs of one model.
        link: returns the address of the details of a run, "" if there is none.
    """
    tracked = measured(history)
    columns = [*map(text_column, ("date", "run", "sardonyx")), *(Column(each.measure.heading) for each in tracked)]
    rows: list[Row] = []
    for run in history.runs[:MAX_LINES]:
        numbers = (each.measure.read(each.record(run)).written for each in tracked)
        checked = fmt.name(fmt.one_line(verification(run.run.verdict)), 120)
        names = (fmt.name(run.name or run.label), fmt.name(run.run.environment.sardonyx))
        cells = (Span(fmt.date(_date(run)), target=link(run)), *names, *numbers, checked)
        rows.append(Row(cells, Tone.PLAIN if run.passed else Tone.BAD))
    notes = [*itertools.islice(_breaks(history), _RUNS_NOTED)]
    timed = [(run, run.bench.machine.busy) for run in history.runs if run.bench is not None]
    if busy := [f"{fmt.date(_date(run))} ({100 * share:.0f} %)" for run, share in timed if share is not None]:
        notes.append(f"timed while other processes used much of the CPU: {listed(busy, _RUNS_NOTED)}")
    if len(history.runs) > MAX_LINES:
        notes.append(f"and {len(history.runs) - MAX_LINES} older runs")
    table = doc.Table([*columns, text_column("verification")], rows)
    return doc.Section(f"History of {fmt.name(history.model)}", (table, doc.Notes(notes)))


def trends(history: History) -> list[str]:
    """Return each number that changed as a row of bars, the oldest run first, with the first and the last number."""
    lines: list[str] = []
    for tracked in measured(history):
        values = _values(history, tracked)
        if len({value.short for value in values}) > 1:
            numbers = [value.value for value in values]
            low, high = min(numbers), max(numbers)
            levels = [round((len(_LEVELS) - 1) * (number - low) / (high - low)) for number in numbers[-_MAX_BARS:]]
            bars = "".join(_LEVELS[level] for level in levels)
            lines.append(f"{tracked.measure.heading}: {bars} {ends(history, tracked)}")
    return lines


def ends(history: History, tracked: Tracked) -> str:
    """Return the first and the last number of a measure, without intervals, and whether the last is surely better."""
    first, last = (_values(history, tracked)[place] for place in (0, -1))
    verdict = last.verdict(first)
    return fmt.from_to(first.short, last.short) + (f" ({verdict})" if verdict else "")


def _values(history: History, tracked: Tracked) -> list[Reading]:
    return [value for run in reversed(history.runs) if (value := tracked.read(run)) is not None]


def _breaks(history: History) -> Iterator[str]:
    for newer, older in zip(history.runs, history.runs[1:], strict=False):
        if older.bench is not None and newer.bench is not None and (reasons := list(incomparable(older, newer))):
            between = f"{fmt.date(_date(older))} and {fmt.date(_date(newer))}"
            yield f"times of {between} are not comparable: {'; '.join(reasons)}"
