"""Runs of one model at different times: one line per run, newest first, with the trend of each number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import TypeVar

from msgspec import Struct

from sardonyx.records.base import Record
from sardonyx.records.provenance import lineage
from sardonyx.records.run import PassRecord, Run
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.bench import milliseconds, ratio, size
from sardonyx.reporting.document import Column, Row, Span, Text, Tone, View, text_column
from sardonyx.reporting.measures import Measure, Reading
from sardonyx.reporting.module_rows import module_cell, module_rows
from sardonyx.reporting.record_kinds import BENCHMARK, NEEDS_VERDICT, RUN
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import verification

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")
_Value = TypeVar("_Value")
_SHOWN = 200  # rows of a table
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
    verdicts = (("first", verification(one.verdict)), ("second", verification(two.verdict)))
    verifications = doc.table_section("Verification", ("run", "verification"), verdicts, text_columns=2)
    numbers = (_numbers(one, two), verifications, _times(first, second))
    sections = (*filter(None, numbers), *differing)
    return Changes(_sentence(one, two, differing), tuple(_apart(first, second)), sections)


def _sentence(one: Run, two: Run, differing: Sequence[doc.Section]) -> str:
    nodes = fmt.change(two.after.nodes - one.after.nodes)
    octets = two.after.bytes - one.after.bytes
    passed = [run.verdict is not None and run.verdict.passed for run in (one, two)]
    both = "both verified against their source" if passed[0] else "neither is verified"
    if passed[0] != passed[1]:
        both = f"only the {'first' if passed[0] else 'second'} is verified"
    if one.after == two.after and not differing:
        nodes, size = fmt.plural(two.after.nodes, "node"), fmt.size(two.after.bytes)
        result = f"The same result both times: {nodes}, {size}"
    else:
        by = "" if nodes == "·" else f" ({nodes})"
        result = f"{fmt.from_to(fmt.count(one.after.nodes), fmt.count(two.after.nodes))} nodes{by}"
        result += f", {fmt.size_change(octets)}" if octets else ", the same bytes"
        titles = [str(section.title).lower() for section in differing]
        result += f"; differences in {', '.join(titles)}" if titles else ""
    return f"{result}; {both}"


def _apart(first: RunBundle, second: RunBundle) -> Iterator[str]:
    one, two = first.run, second.run
    if one.source.sha256 is None or two.source.sha256 is None:
        if one.before != two.before:
            yield "the sources differ: they are not the same size"
    elif one.source.sha256 != two.source.sha256:
        yield "the sources are different files"
    for name in dict.fromkeys((*one.options, *two.options)):
        values = [run.options.get(name) for run in (one, two)]
        if values[0] != values[1]:
            yield fmt.one_line(f"option {name}: {_option(values[0])} → {_option(values[1])}")
    here, there = one.environment, two.environment
    versions = [{"sardonyx": env.sardonyx, "Python": env.python, **env.packages} for env in (here, there)]
    for name in dict.fromkeys((*versions[0], *versions[1])):
        values = [packages.get(name, "none") for packages in versions]
        if values[0] != values[1]:
            yield fmt.one_line(f"{name} {values[0]} → {values[1]}")
    if here.platform != there.platform:
        yield fmt.one_line(f"platform {here.platform} → {there.platform}")


def _option(value: object) -> str:
    return "none" if value is None or value == [] else str(value)


def _numbers(one: Run, two: Run) -> doc.Section:
    """Return the measures of the two runs, except how many fewer, and differences, which need their tolerance."""
    measures = [each for each in RUN.declared if each.name not in NEEDS_VERDICT and not each.name.endswith("_removed")]
    pairs = [(measure, measure.read(one), measure.read(two)) for measure in measures]
    rows = [
        (measure.heading, first.written, second.written, second.change(first), second.verdict(first))
        for measure, first, second in pairs
        if first.known or second.known
    ]
    return doc.table_section("Numbers", ("", "first", "second", "change", ""), rows)


def _times(first: RunBundle, second: RunBundle) -> doc.Section | None:
    """Return each result against its own source, and whether the two can be compared with each other."""
    if first.point is None or second.point is None:
        if first.point is None and second.point is None:
            return None
        missing = "first" if first.point is None else "second"
        return doc.Section("Time", (doc.Paragraph(f"The {missing} run was not timed."),))
    rows = [
        (name, milliseconds(point.timings[0].median), milliseconds(point.timings[1].median), ratio(compared))
        for name, point in (("first", first.point), ("second", second.point))
        if (compared := point.timings[1].against_first) is not None
    ]
    reasons = "; ".join(incomparable(first, second))
    comparable = ("Measured apart, on the same machine; compare the results themselves with ", _BENCH, ".")
    above = f"Not comparable: {reasons}." if reasons else comparable
    return doc.table_section("Time", ("run", "source ms", "result ms", "result / source"), rows, above=above)


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
    counts = [{op.op_type: op.after for op in run.ops} for run in (one, two)]
    rows = [
        (fmt.name(name), fmt.count(a), fmt.count(b), fmt.change(b - a))
        for name, a, b in _differing(counts[0], counts[1], lambda number: number or 0)
    ]
    return doc.table_section("Operators", ("operator", "first result", "second", "change"), rows, most=_SHOWN)


def _passes(one: Run, two: Run) -> doc.Section:
    def effect(record: PassRecord | None) -> tuple[int, int, int] | None:
        return None if record is None else (record.rewrites, record.nodes, record.bytes)

    records = [{record.name: record for record in run.passes} for run in (one, two)]
    rows: list[tuple[str, ...]] = []
    for name, a, b in _differing(records[0], records[1], effect):
        if a is None or b is None:
            only, which = (b, "second") if a is None else (a, "first")
            if only is not None and only[0]:
                counts = (fmt.count(only[0]), fmt.change(only[1]))
                rows.append((fmt.name(name), f"only in the {which}", *counts, "·"))
            continue
        rewrites = fmt.from_to(fmt.count(a[0]), fmt.count(b[0]))
        nodes = fmt.from_to(*(fmt.change(effect[1]) if effect[1] else "0" for effect in (a, b)))
        nodes = "·" if a[1] == b[1] else nodes
        rows.append((fmt.name(name), "", rewrites, nodes, fmt.size_change(b[2] - a[2])))
    headings = ("pass", "", "rewrites", "change in nodes", "bytes")
    return doc.table_section("Passes", headings, rows, text_columns=2, most=_SHOWN)


def _modules(one: Run, two: Run) -> doc.Section:
    sides = [{module.path: module for module in run.modules} for run in (one, two)]
    entries: list[tuple[str, str, tuple[int, ...]]] = []
    shown: set[str] = set()
    for path in dict.fromkeys((*sides[0], *sides[1])):
        a, b = sides[0].get(path), sides[1].get(path)
        either = a or b
        assert either is not None
        numbers = tuple(n for side in (a, b) for n in ((side.after, side.bytes_after) if side else (0, 0)))
        entries.append((path, either.tag, numbers))
        if numbers[:2] != numbers[2:]:
            shown.update(lineage(path))
    rows = [
        (
            module_cell(row),
            fmt.count(row.total[0]),
            fmt.count(row.total[2]),
            fmt.change(row.total[2] - row.total[0]),
            fmt.size_change(row.total[3] - row.total[1]),
        )
        for row in module_rows(entries, View(verbose=True))
        if row.branch.path in shown
    ]
    headings = ("module", "nodes, first result", "second", "change", "bytes")
    return doc.table_section("Modules", headings, rows, most=_SHOWN)


def _skipped(one: Run, two: Run) -> doc.Section:
    counts = [
        {(record.name, group.reason): group.count for record in run.passes for group in record.refusals}
        for run in (one, two)
    ]
    rows: list[tuple[str, ...]] = []
    for (name, reason), a, b in _differing(counts[0], counts[1], lambda number: number or 0):
        fate = "new" if not a else "gone" if not b else fmt.change(b - a)
        numbers = (fmt.count(a), fmt.count(b), fate)
        rows.append((fmt.name(name), fmt.one_line(reason), *numbers))
    headings = ("pass", "reason", "first", "second", "")
    return doc.table_section("Missed fusions", headings, rows, text_columns=2, most=_SHOWN)


def _undone(one: Run, two: Run) -> doc.Section:
    undone = [{(rollback.pass_name, rollback.root): rollback for rollback in run.rolled_back} for run in (one, two)]
    rows = [
        (fmt.name(each.pass_name), fmt.module(each.owner), fmt.one_line(each.reason), fate)
        for fate, here, there in (("gone", undone[0], undone[1]), ("new", undone[1], undone[0]))
        for key, each in here.items()
        if key not in there
    ]
    return doc.table_section("Rolled back", ("pass", "module", "reason", ""), rows, text_columns=4, most=_SHOWN)


def _differing(
    one: dict[_Key, _Item], two: dict[_Key, _Item], value: Callable[[_Item | None], _Value]
) -> Iterator[tuple[_Key, _Value, _Value]]:
    """Yield each key under which the two have different values, with both values."""
    for key in dict.fromkeys((*one, *two)):
        a, b = value(one.get(key)), value(two.get(key))
        if a != b:
            yield key, a, b


RECENT = 8  # runs of one model whose sections a page contains; older runs have only their line
LONGEST = 200  # lines of a table
_NOTED = 10  # runs in notes
_NONE = "–"
_BARS = 60  # of a trend
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
    return [run for history in histories(bundles) for run in history.runs[:RECENT]]


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
    columns = [text_column("date"), text_column("run"), text_column("sardonyx")]
    columns += [*(Column(each.measure.heading) for each in tracked), text_column("verification")]
    rows = [
        Row(_line(run, tracked, link(run)), Tone.PLAIN if run.passed else Tone.BAD) for run in history.runs[:LONGEST]
    ]
    notes = [*itertools.islice(_breaks(history), _NOTED), *_disturbed(history)]
    if len(history.runs) > LONGEST:
        notes.append(f"and {len(history.runs) - LONGEST} older runs")
    return doc.Section(f"History of {fmt.name(history.model)}", (doc.Table(columns, rows), doc.Notes(notes)))


def _line(run: RunBundle, tracked: Sequence[Tracked], link: str) -> list[Text]:
    environment = run.run.environment
    values = [each.read(run) for each in tracked]
    date: Text = Span(fmt.date(environment.date), target=link)
    checked = fmt.name(fmt.one_line(verification(run.run.verdict)), 120)
    written = [_NONE if value is None else value.written for value in values]
    return [date, fmt.name(run.name or run.label), fmt.name(environment.sardonyx), *written, checked]


def trends(history: History) -> list[str]:
    """Return each number that changed as a row of bars, the oldest run first, with the first and the last number."""
    lines: list[str] = []
    for tracked in measured(history):
        values = _values(history, tracked)
        if len({value.short for value in values}) > 1:
            lines.append(f"{tracked.measure.heading}: {_bars(values)} {ends(history, tracked)}")
    return lines


def ends(history: History, tracked: Tracked) -> str:
    """Return the first and the last number of a measure, without intervals, and whether the last is surely better."""
    first, last = (_values(history, tracked)[place] for place in (0, -1))
    verdict = last.verdict(first)
    return fmt.from_to(first.short, last.short) + (f" ({verdict})" if verdict else "")


def _values(history: History, tracked: Tracked) -> list[Reading]:
    return [value for run in reversed(history.runs) if (value := tracked.read(run)) is not None]


def _bars(values: Sequence[Reading]) -> str:
    numbers = [value.value for value in values]
    low, high = min(numbers), max(numbers)
    return "".join(_LEVELS[round((len(_LEVELS) - 1) * (number - low) / (high - low))] for number in numbers[-_BARS:])


def _breaks(history: History) -> Iterator[str]:
    for newer, older in zip(history.runs, history.runs[1:], strict=False):
        if older.bench is not None and newer.bench is not None and (reasons := list(incomparable(older, newer))):
            between = f"{fmt.date(_date(older))} and {fmt.date(_date(newer))}"
            yield f"times of {between} are not comparable: {'; '.join(reasons)}"


def _disturbed(history: History) -> Iterator[str]:
    shares = [(run, run.bench.machine.busy) for run in history.runs if run.bench is not None]
    busy = [f"{fmt.date(_date(run))} ({100 * share:.0f} %)" for run, share in shares if share is not None]
    if busy:
        more = f" and {len(busy) - _NOTED} more" if len(busy) > _NOTED else ""
        yield f"timed while other processes used much of the CPU: {', '.join(busy[:_NOTED])}{more}"
