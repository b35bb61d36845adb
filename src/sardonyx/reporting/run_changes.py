"""What changed from one run to another: of one model by two versions, for two targets, with two settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from sardonyx.provenance import lineage
from sardonyx.records.run import PassRecord, Run
from sardonyx.reporting import formatting
from sardonyx.reporting.bench import milliseconds, ratio, size
from sardonyx.reporting.document import Paragraph, Section, Span, View, is_empty, table_section
from sardonyx.reporting.module_rows import module_cell, module_rows
from sardonyx.reporting.record_kinds import NEEDS_VERDICT, RUN
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
    sections: tuple[Section, ...]  # the numbers, then everything that differs


def changes(first: RunBundle, second: RunBundle) -> Changes:
    """Return everything that differs between two runs."""
    one, two = first.run, second.run
    compared = (_operators(one, two), _passes(one, two), _modules(one, two), _skipped(one, two), _undone(one, two))
    differing = tuple(section for section in compared if not is_empty(section))
    numbers = (_numbers(one, two), _verifications(one, two), _times(first, second))
    sections = (*filter(None, numbers), *differing)
    return Changes(_sentence(one, two, differing), tuple(_apart(first, second)), sections)


def _sentence(one: Run, two: Run, differing: Sequence[Section]) -> str:
    nodes = formatting.change(two.after.nodes - one.after.nodes)
    octets = two.after.bytes - one.after.bytes
    if one.after == two.after and not differing:
        nodes, size = formatting.plural(two.after.nodes, "node"), formatting.size(two.after.bytes)
        result = f"The same result both times: {nodes}, {size}"
    else:
        by = "" if nodes == "·" else f" ({nodes})"
        result = f"{formatting.from_to(formatting.count(one.after.nodes), formatting.count(two.after.nodes))} nodes{by}"
        result += f", {formatting.size_change(octets)}" if octets else ", the same bytes"
        titles = [str(section.title).lower() for section in differing]
        result += f"; differences in {', '.join(titles)}" if titles else ""
    return f"{result}; {_both_verifications(one, two)}"


def _both_verifications(one: Run, two: Run) -> str:
    passed = [run.verdict is not None and run.verdict.passed for run in (one, two)]
    if all(passed):
        return "both verified against their source"
    if not any(passed):
        return "neither is verified"
    return f"only the {'first' if passed[0] else 'second'} is verified"


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
            yield formatting.one_line(f"option {name}: {_option(values[0])} → {_option(values[1])}")
    here, there = one.environment, two.environment
    versions = [{"sardonyx": env.sardonyx, "Python": env.python, **env.packages} for env in (here, there)]
    for name in dict.fromkeys((*versions[0], *versions[1])):
        values = [packages.get(name, "none") for packages in versions]
        if values[0] != values[1]:
            yield formatting.one_line(f"{name} {values[0]} → {values[1]}")
    if here.platform != there.platform:
        yield formatting.one_line(f"platform {here.platform} → {there.platform}")


def _option(value: object) -> str:
    return "none" if value is None or value == [] else str(value)


def _numbers(one: Run, two: Run) -> Section:
    """Return the measures of the two runs, except how many fewer, and differences, which need their tolerance."""
    measures = [each for each in RUN.declared if each.name not in NEEDS_VERDICT and not each.name.endswith("_removed")]
    pairs = [(measure, measure.read(one), measure.read(two)) for measure in measures]
    rows = [
        (measure.heading, first.written, second.written, second.change(first), second.verdict(first))
        for measure, first, second in pairs
        if first.known or second.known
    ]
    return table_section("Numbers", ("", "first", "second", "change", ""), rows)


def _verifications(one: Run, two: Run) -> Section:
    rows = (("first", verification(one.verdict)), ("second", verification(two.verdict)))
    return table_section("Verification", ("run", "verification"), rows, text_columns=2)


def _times(first: RunBundle, second: RunBundle) -> Section | None:
    """Return each result against its own source, and whether the two can be compared with each other."""
    if first.point is None or second.point is None:
        if first.point is None and second.point is None:
            return None
        missing = "first" if first.point is None else "second"
        return Section("Time", (Paragraph(f"The {missing} run was not timed."),))
    rows = [
        (name, milliseconds(point.timings[0].median), milliseconds(point.timings[1].median), ratio(compared))
        for name, point in (("first", first.point), ("second", second.point))
        if (compared := point.timings[1].against_first) is not None
    ]
    reasons = "; ".join(incomparable(first, second))
    comparable = ("Measured apart, on the same machine; compare the results themselves with ", _BENCH, ".")
    above = f"Not comparable: {reasons}." if reasons else comparable
    return table_section("Time", ("run", "source ms", "result ms", "result / source"), rows, above=above)


def incomparable(first: RunBundle, second: RunBundle) -> Iterator[str]:
    """Yield why the times of two runs cannot be compared."""
    names = ("threads", "provider", "level", "clock")
    conditions = [
        {
            "machine": f"{bench.machine.cpu}, {bench.machine.cores} cores",
            "onnxruntime": bench.environment.packages.get("onnxruntime"),
            "sizes": size(bench.points[0].sizes) or "fixed",
            **{name: bench.options.get(name) for name in names},
        }
        for bench in (first.bench, second.bench)
        if bench is not None
    ]
    for name, value in conditions[0].items():
        if value != conditions[-1][name]:
            yield formatting.one_line(f"{name} {value} and {conditions[-1][name]}")


def _operators(one: Run, two: Run) -> Section:
    counts = [{op.op_type: op.after for op in run.ops} for run in (one, two)]
    rows = [
        (formatting.name(name), formatting.count(a), formatting.count(b), formatting.change(b - a))
        for name, a, b in _differing(counts[0], counts[1], lambda number: number or 0)
    ]
    return table_section("Operators", ("operator", "first result", "second", "change"), rows, most=_SHOWN)


def _passes(one: Run, two: Run) -> Section:
    def effect(record: PassRecord | None) -> tuple[int, int, int] | None:
        return None if record is None else (record.rewrites, record.nodes, record.bytes)

    records = [{record.name: record for record in run.passes} for run in (one, two)]
    rows: list[tuple[str, ...]] = []
    for name, a, b in _differing(records[0], records[1], effect):
        if a is None or b is None:
            only, which = (b, "second") if a is None else (a, "first")
            assert only is not None
            if only[0]:
                counts = (formatting.count(only[0]), formatting.change(only[1]))
                rows.append((formatting.name(name), f"only in the {which}", *counts, "·"))
            continue
        rewrites = formatting.from_to(formatting.count(a[0]), formatting.count(b[0]))
        nodes = formatting.from_to(*(formatting.change(effect[1]) if effect[1] else "0" for effect in (a, b)))
        nodes = "·" if a[1] == b[1] else nodes
        rows.append((formatting.name(name), "", rewrites, nodes, formatting.size_change(b[2] - a[2])))
    headings = ("pass", "", "rewrites", "change in nodes", "bytes")
    return table_section("Passes", headings, rows, text_columns=2, most=_SHOWN)


def _modules(one: Run, two: Run) -> Section:
    """Return the modules that differ, with those above them."""
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
            formatting.count(row.total[0]),
            formatting.count(row.total[2]),
            formatting.change(row.total[2] - row.total[0]),
            formatting.size_change(row.total[3] - row.total[1]),
        )
        for row in module_rows(entries, View(verbose=True))
        if row.branch.path in shown
    ]
    headings = ("module", "nodes, first result", "second", "change", "bytes")
    return table_section("Modules", headings, rows, most=_SHOWN)


def _skipped(one: Run, two: Run) -> Section:
    counts = [
        {(record.name, group.reason): group.count for record in run.passes for group in record.refusals}
        for run in (one, two)
    ]
    rows = [
        (formatting.name(name), formatting.one_line(reason), formatting.count(a), formatting.count(b), _fate(a, b))
        for (name, reason), a, b in _differing(counts[0], counts[1], lambda number: number or 0)
    ]
    headings = ("pass", "reason", "first", "second", "")
    return table_section("Missed fusions", headings, rows, text_columns=2, most=_SHOWN)


def _fate(before: int, after: int) -> str:
    return "new" if not before else "gone" if not after else formatting.change(after - before)


def _undone(one: Run, two: Run) -> Section:
    undone = [{(rollback.pass_name, rollback.root): rollback for rollback in run.rolled_back} for run in (one, two)]
    rows = [
        (
            formatting.name(rollback.pass_name),
            formatting.module(rollback.owner),
            formatting.one_line(rollback.reason),
            fate,
        )
        for fate, here, there in (("gone", undone[0], undone[1]), ("new", undone[1], undone[0]))
        for key, rollback in here.items()
        if key not in there
    ]
    return table_section("Rolled back", ("pass", "module", "reason", ""), rows, text_columns=4, most=_SHOWN)


def _differing(
    one: dict[_Key, _Item], two: dict[_Key, _Item], value: Callable[[_Item | None], _Value]
) -> Iterator[tuple[_Key, _Value, _Value]]:
    """Yield each key under which the two have different values, with both values."""
    for key in dict.fromkeys((*one, *two)):
        a, b = value(one.get(key)), value(two.get(key))
        if a != b:
            yield key, a, b
