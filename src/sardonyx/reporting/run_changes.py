"""What changed from one run to another: of one model by two versions, for two targets, with two settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from sardonyx.provenance import lineage
from sardonyx.records.run import PassRecord, Run
from sardonyx.reporting import formatting
from sardonyx.reporting.bench import milliseconds, ratio, size
from sardonyx.reporting.module_rows import module_rows, nested_label
from sardonyx.reporting.options import View
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.titled_table import Part
from sardonyx.reporting.verdict import proof

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")
_Told = TypeVar("_Told")
_SHOWN = 200  # rows of a table
_TIMES = "compare the results themselves with `sardonyx bench FIRST.onnx SECOND.onnx`"


@dataclass(frozen=True, slots=True)
class Changes:
    """Two runs side by side."""

    sentence: str
    apart: tuple[str, ...]  # what differs besides what is compared: files, options, versions
    parts: tuple[Part, ...]  # only what differs; the numbers always


def changes(first: RunBundle, second: RunBundle) -> Changes:
    """Everything that differs between two runs."""
    one, two = first.run, second.run
    found = (_operators(one, two), _passes(one, two), _modules(one, two), _refusals(one, two), _undone(one, two))
    parts = tuple(part for part in found if part.lines)
    numbers = (_numbers(one, two), _proofs(one, two), _times(first, second))
    return Changes(_sentence(one, two, parts), tuple(_apart(first, second)), (*filter(None, numbers), *parts))


def _sentence(one: Run, two: Run, parts: tuple[Part, ...]) -> str:
    nodes = formatting.change(two.after.nodes - one.after.nodes)
    octets = two.after.bytes - one.after.bytes
    if one.after == two.after and not parts:
        nodes, size = formatting.plural(two.after.nodes, "node"), formatting.size(two.after.bytes)
        said = f"The same result both times: {nodes}, {size}"
    else:
        by = "" if nodes == "·" else f" ({nodes})"
        said = f"{formatting.from_to(formatting.count(one.after.nodes), formatting.count(two.after.nodes))} nodes{by}"
        said += f", {formatting.size_change(octets)}" if octets else ", the same bytes"
        differing = [part.title.lower() for part in parts]
        said += f"; differences in {', '.join(differing)}" if differing else ""
    return f"{said}; {_both_proofs(one, two)}"


def _both_proofs(one: Run, two: Run) -> str:
    states = [run.verdict is not None and run.verdict.passed for run in (one, two)]
    if all(states):
        return "both verified against their source"
    if not any(states):
        return "neither is proven"
    return f"only the {'first' if states[0] else 'second'} is proven"


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
            yield formatting.one_line(f"option {name}: {_said(values[0])} → {_said(values[1])}")
    here, there = one.environment, two.environment
    versions = [{"sardonyx": each.sardonyx, "Python": each.python, **each.packages} for each in (here, there)]
    for name in dict.fromkeys((*versions[0], *versions[1])):
        values = [each.get(name, "none") for each in versions]
        if values[0] != values[1]:
            yield formatting.one_line(f"{name} {values[0]} → {values[1]}")
    if here.platform != there.platform:
        yield formatting.one_line(f"platform {here.platform} → {there.platform}")


def _said(value: object) -> str:
    return "none" if value is None or value == [] else str(value)


def _numbers(one: Run, two: Run) -> Part:
    def row(name: str, of: Callable[[Run], int], write: Callable[[int], str], sign: Callable[[int], str]) -> _Row:
        return name, write(of(one)), write(of(two)), sign(of(two) - of(one))

    counted, sized = (formatting.count, formatting.change), (formatting.size, formatting.size_change)
    lines = (
        row("nodes of the source", lambda run: run.before.nodes, *counted),
        row("nodes of the result", lambda run: run.after.nodes, *counted),
        row("constants of the result", lambda run: run.after.constants + run.after.initializers, *counted),
        row("bytes of constants", lambda run: run.after.bytes, *sized),
        row("bytes of the file", lambda run: run.result.bytes, *sized),
        row("rewrites", lambda run: sum(each.rewrites for each in run.passes), *counted),
        row("rolled back", lambda run: len(run.rolled_back), *counted),
    )
    return Part("Numbers", ("", "first", "second", "change"), lines)


_Row = tuple[str, str, str, str]


def _proofs(one: Run, two: Run) -> Part:
    return Part("Proof", ("run", "proof"), (("first", proof(one.verdict)), ("second", proof(two.verdict))), words=2)


def _times(first: RunBundle, second: RunBundle) -> Part | None:
    """Each result against its own source; whether the two may be held against each other is said."""
    if first.point is None or second.point is None:
        if first.point is None and second.point is None:
            return None
        missing = "first" if first.point is None else "second"
        return Part("Time", ("",), ((f"the {missing} run was not timed",),))
    lines = [
        (name, milliseconds(point.timings[0].median), milliseconds(point.timings[1].median), ratio(compared))
        for name, point in (("first", first.point), ("second", second.point))
        if (compared := point.timings[1].against_first) is not None
    ]
    why = list(_incomparable(first, second))
    about = f"Not comparable: {'; '.join(why)}." if why else f"Measured apart, on the same machine; {_TIMES}."
    return Part("Time", ("run", "source ms", "result ms", "result / source"), tuple(lines), about=about)


def _incomparable(first: RunBundle, second: RunBundle) -> Iterator[str]:
    """Why the times of two runs may not be held against each other."""
    asked = ("threads", "provider", "level", "clock")
    known = [
        {
            "machine": f"{each.bench.machine.cpu}, {each.bench.machine.cores} cores",
            "onnxruntime": each.bench.environment.packages.get("onnxruntime"),
            "sizes": size(each.bench.points[0].sizes) or "fixed",
            **{name: each.bench.options.get(name) for name in asked},
        }
        for each in (first, second)
        if each.bench is not None
    ]
    for name, value in known[0].items():
        if value != known[-1][name]:
            yield formatting.one_line(f"{name} {value} and {known[-1][name]}")


def _operators(one: Run, two: Run) -> Part:
    counts = [{each.op_type: each.after for each in run.ops} for run in (one, two)]
    found = _differing(counts[0], counts[1], lambda number: number or 0)
    lines = [
        (formatting.name(name), formatting.count(a), formatting.count(b), formatting.change(b - a))
        for name, a, b in found
    ]
    return _cut("Operators", ("operator", "first result", "second", "change"), lines)


def _passes(one: Run, two: Run) -> Part:
    def shown(record: PassRecord | None) -> tuple[int, int, int] | None:
        return None if record is None else (record.rewrites, record.nodes, record.bytes)

    did = [{each.name: each for each in run.passes} for run in (one, two)]
    lines: list[tuple[str, ...]] = []
    for name, a, b in _differing(did[0], did[1], shown):
        if a is None or b is None:
            here, ran = (b, "second") if a is None else (a, "first")
            assert here is not None
            if here[0]:
                rewrites = formatting.count(here[0])
                lines.append((formatting.name(name), f"only in the {ran}", rewrites, formatting.change(here[1]), "·"))
            continue
        rewrites = formatting.from_to(formatting.count(a[0]), formatting.count(b[0]))
        nodes = (
            "·"
            if a[1] == b[1]
            else formatting.from_to(*(formatting.change(each[1]) if each[1] else "0" for each in (a, b)))
        )
        lines.append((formatting.name(name), "", rewrites, nodes, formatting.size_change(b[2] - a[2])))
    return _cut("Passes", ("pass", "", "rewrites", "change in nodes", "bytes"), lines, words=2)


def _modules(one: Run, two: Run) -> Part:
    sides = [{each.path: each for each in run.modules} for run in (one, two)]
    entries: list[tuple[str, str, tuple[int, ...]]] = []
    above: set[str] = set()
    for path in dict.fromkeys((*sides[0], *sides[1])):
        a, b = sides[0].get(path), sides[1].get(path)
        known = a or b
        assert known is not None
        numbers = tuple(n for each in (a, b) for n in ((each.after, each.bytes_after) if each else (0, 0)))
        entries.append((path, known.tag, numbers))
        if numbers[:2] != numbers[2:]:
            above.update(lineage(path))
    lines = [
        (
            nested_label(row),
            formatting.count(row.total[0]),
            formatting.count(row.total[2]),
            formatting.change(row.total[2] - row.total[0]),
            formatting.size_change(row.total[3] - row.total[1]),
        )
        for row in module_rows(entries, View(verbose=True))
        if row.branch.path in above
    ]
    return _cut("Modules", ("module", "nodes, first result", "second", "change", "bytes"), lines)


def _refusals(one: Run, two: Run) -> Part:
    counts = [
        {(each.name, group.reason): group.count for each in run.passes for group in each.refusals} for run in (one, two)
    ]
    found = _differing(counts[0], counts[1], lambda number: number or 0)
    lines = [
        (formatting.name(name), formatting.one_line(reason), formatting.count(a), formatting.count(b), _fate(a, b))
        for (name, reason), a, b in found
    ]
    return _cut("Refusals", ("pass", "reason", "first", "second", ""), lines, words=2)


def _fate(before: int, after: int) -> str:
    return "new" if not before else "gone" if not after else formatting.change(after - before)


def _undone(one: Run, two: Run) -> Part:
    undone = [{(each.pass_name, each.root): each for each in run.rolled_back} for run in (one, two)]
    lines = [
        (
            formatting.name(each.pass_name),
            formatting.name(each.owner) or "(model)",
            formatting.one_line(each.reason),
            fate,
        )
        for fate, here, there in (("gone", undone[0], undone[1]), ("new", undone[1], undone[0]))
        for key, each in here.items()
        if key not in there
    ]
    return _cut("Rolled back", ("pass", "module", "reason", ""), lines, words=4)


def _differing(
    one: dict[_Key, _Item], two: dict[_Key, _Item], told: Callable[[_Item | None], _Told]
) -> Iterator[tuple[_Key, _Told, _Told]]:
    for key in dict.fromkeys((*one, *two)):
        a, b = told(one.get(key)), told(two.get(key))
        if a != b:
            yield key, a, b


def _cut(title: str, heads: tuple[str, ...], lines: Iterable[tuple[str, ...]], words: int = 1) -> Part:
    every = tuple(lines)
    more = f"and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return Part(title, heads, every[:_SHOWN], words=words, more=more)
