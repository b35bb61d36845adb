"""Benchmarks and tunings as documents and as CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from sardonyx.records.bench import Benchmark, Comparison, Finding, Point, Timing
from sardonyx.records.run import Decision, RelativeTime, Tuning, TuningMeasurement
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Column, Row, Span, Text, Tone, View, text_column
from sardonyx.reporting.module_rows import grouped
from sardonyx.reporting.writers.tables import write_csv

UNKNOWN = "?"
TOO_NOISY = 0.1  # a difference of this size is worth knowing: if it may go undetected, the machine is too noisy
_TONES = {Finding.FASTER: Tone.GOOD, Finding.SLOWER: Tone.BAD}


def bench_document(bench: Benchmark, view: View) -> doc.Document:
    """Return the answer of `bench`."""
    lines: list[Text] = []
    for point in bench.points if len(bench.points) > 1 or len(bench.files) > 2 else ():
        if len(bench.files) == 1:
            lines.append(_single(bench, point))
        at = f"at {size_of(point, bench)}: " if len(bench.points) > 1 else ""
        first, *others = point.timings
        for timing in others:
            found = Finding.SAME if timing.against_first is None else timing.against_first.finding
            lines.append((at, Span(verdict(timing, first), _TONES.get(found, Tone.PLAIN))))
    notes = doc.Section("Notes", (doc.Notes([fmt.one_line(note) for note in bench.notes]),))
    return doc.Document(
        title=" and ".join(file.label for file in bench.files),
        head=(doc.Facts(conditions(bench, verbose=view.verbose)),),
        blocks=(timing_table(bench), doc.Notes(lines), notes),
        sentence=Span(bench_sentence(bench), Tone.STRONG),
    )


def bench_sentence(bench: Benchmark) -> str:
    """Return the result in one line."""
    if len(bench.files) == 1:
        return "; ".join(_single(bench, point) for point in bench.points)
    if len(bench.points) == 1:
        first, *others = bench.points[0].timings
        return "; ".join(verdict(timing, first) for timing in others)
    return "; ".join(_over_sizes(bench, place) for place in range(1, len(bench.files)))


def bench_csv(bench: Benchmark) -> str:
    """Return one line for each round of each file at each size, with every digit."""
    dims = list(bench.points[0].sizes)
    rows = (
        [timing.label, *(point.sizes[dim] for dim in dims), number, repr(seconds)]
        for point in bench.points
        for timing in point.timings
        for number, seconds in enumerate(timing.seconds, 1)
    )
    return write_csv(["file", *dims, "round", "seconds"], rows)


def milliseconds(seconds: float | None) -> str:
    """Return seconds in milliseconds without the unit."""
    return UNKNOWN if seconds is None else fmt.milliseconds(1000 * seconds)


def ratio(compared: Comparison | RelativeTime) -> str:
    """Return the time as a multiple of the first file's: 0.877 [0.865, 0.890]."""
    return f"{compared.ratio:.3f} [{compared.low:.3f}, {compared.high:.3f}]"


def interval(compared: Comparison | RelativeTime) -> str:
    """Return the interval of a difference in percent, without signs: [11.0, 13.5]."""
    near, far = sorted((abs(1 - compared.low), abs(1 - compared.high)))
    return f"[{percent(near)}, {percent(far)}]"


def percent(share: float) -> str:
    """Return a share in percent without its sign, with one decimal if it is below 100 %."""
    return f"{abs(100 * share):.{1 if abs(share) < 1 else 0}f}"


def size(sizes: Mapping[str, int]) -> str:
    """Return sizes of dimensions: "batch=1, seq=128"."""
    return ", ".join(f"{fmt.name(dim)}={fmt.count(number)}" for dim, number in sizes.items())


def varied(bench: Benchmark) -> list[str]:
    """Return the dimensions that differ between the measured sizes."""
    return [dim for dim in bench.points[0].sizes if len({point.sizes[dim] for point in bench.points}) > 1]


def size_of(point: Point, bench: Benchmark) -> str:
    """Return the dimensions that distinguish a size from the others."""
    return size({dim: point.sizes[dim] for dim in varied(bench)})


def verdict(timing: Timing, first: Timing) -> str:
    """Return what a comparison with the first file allows to claim, as a sentence without its full stop."""
    compared = timing.against_first
    name, other = fmt.name(timing.label), fmt.name(first.label)
    if compared is None:
        return f"{name} takes {milliseconds(timing.median)} ms"
    if is_too_noisy(compared):
        return f"too noisy to tell {name} and {other} apart: {unresolved(compared)}"
    if compared.finding is Finding.SAME:
        return f"no difference between {name} and {other}: within {percent(reach(compared))} % either way"
    return f"{name} is {percent(1 - compared.ratio)} % {compared.finding} than {other} {interval(compared)}"


def reach(compared: Comparison) -> float:
    """Return the largest difference that may have gone undetected, given the interval and the noise."""
    return max(1 - compared.low, compared.high - 1, compared.floor)


def is_too_noisy(compared: Comparison) -> bool:
    """Return whether a large difference may have gone undetected, so that none was found because none could be."""
    return compared.finding is Finding.SAME and reach(compared) > TOO_NOISY


def unresolved(compared: Comparison) -> str:
    """Return which differences cannot be told from noise: those within the noise floor and half the interval."""
    factor = (1 + compared.floor) * math.sqrt(1 + compared.width)
    least = f"{percent(factor - 1)} %" if factor < 2 else f"a factor of {factor:.2g}"
    return f"differences below {least} are not resolvable here"


def finding(compared: Comparison) -> str:
    """Return what a comparison allows to claim, in two words at most."""
    return "too noisy" if is_too_noisy(compared) else compared.finding.value


def _single(bench: Benchmark, point: Point) -> str:
    timing = point.timings[0]
    at = f" at {size_of(point, bench)}" if len(bench.points) > 1 else ""
    return (
        f"{fmt.name(timing.label)} takes {milliseconds(timing.median)} ms{at} (median of "
        f"{fmt.plural(len(timing.seconds), 'round')}); two sessions of it are within {percent(point.floor)} %"
    )


def _over_sizes(bench: Benchmark, place: int) -> str:
    """Return at how many sizes a file is faster, slower or neither."""
    compared = [result for point in bench.points if (result := point.timings[place].against_first) is not None]
    clauses: list[str] = []
    noisy = sum(map(is_too_noisy, compared))
    for found in Finding:
        shares = [abs(1 - result.ratio) for result in compared if result.finding is found and not is_too_noisy(result)]
        if not shares:
            continue
        least, most = percent(min(shares)), percent(max(shares))
        by = "" if found is Finding.SAME else f" (by {least}{'' if least == most else f' to {most}'} %)"
        clauses.append(f"{found} at {len(shares)} of {len(compared)}{by}")
    clauses += [f"too noisy to tell at {noisy} of {len(compared)}"] if noisy else []
    name, other = fmt.name(bench.files[place].label), fmt.name(bench.files[0].label)
    return f"{name} against {other}, by size: {', '.join(clauses)}"


def conditions(bench: Benchmark, *, verbose: bool = False) -> dict[str, str]:
    """Return what a reader must know to judge the numbers."""
    first, options = bench.points[0], bench.options
    fixed = {dim: number for dim, number in first.sizes.items() if dim not in varied(bench)}
    runtime = str(options["runtime"])
    settings = (
        fmt.plural(int(options["threads"]), "thread"),
        f"provider {options['provider']}" if re.fullmatch(r"onnxruntime \S+", runtime) else runtime,
        f"runtime optimizations {options['level']}",
        "a process each" if options["isolate"] else "one process",
        f"{options['clock']} clock",
    )
    at = f" at {size_of(first, bench)}" if varied(bench) else ""
    groups = grouped(first.inputs, str, lambda name: first.inputs[name])
    inputs = [f"{label}={first.inputs[name]}" for label, (name, *_) in groups]
    machine = bench.machine
    parts = [fmt.one_line(machine.cpu or "unknown processor"), fmt.plural(machine.cores, "core")]
    if machine.memory_bytes is not None:
        parts.append(fmt.size(machine.memory_bytes))
    if machine.governor is not None:
        parts.append(f"governor {fmt.name(machine.governor)}")
    if machine.busy_during is not None:
        parts.append(f"{100 * machine.busy_during:.0f} % of the CPU was used by other processes")
    facts = {"machine": ", ".join(parts), "settings": ", ".join(settings), "inputs": (", ".join(inputs) or "none") + at}
    if fixed:
        facts["sizes"] = size(fixed)
    if verbose:
        facts["runtime"] = ", ".join(f"{name} {version}" for name, version in bench.environment.packages.items())
        facts["time"] = fmt.phases(bench.seconds)
        facts["files"] = ", ".join(
            f"{fmt.name(file.label)} {fmt.size(file.bytes)} {fmt.plural(file.nodes, 'node')}" for file in bench.files
        )
    return facts


def timing_table(bench: Benchmark) -> doc.Table:
    """Return one row for each size and file; columns that would be empty are left out."""
    several_files = len(bench.files) > 1
    has_starts = any(timing.starts for point in bench.points for timing in point.timings)
    columns = (
        text_column("size", optional=True),
        *(text_column("file"), "median ms", Column("IQR", 1)),
        text_column(f"time / {fmt.name(bench.files[0].label, 30)}", whole=True, optional=True),
        text_column("", whole=True, optional=True),
        *(Column("rounds", 5), Column("load ms", 3), Column("first run ms", 4), Column("peak memory", 2)),
    )
    rows: list[tuple[Text, ...]] = []
    for point in bench.points:
        for timing in point.timings:
            against, starts = timing.against_first, ("", "", "")
            found = (
                ("reference", f"± {percent(point.floor)} %") if against is None else (ratio(against), finding(against))
            )
            if has_starts:
                peak = UNKNOWN if timing.peak_bytes is None else fmt.size(timing.peak_bytes)
                starts = (milliseconds(timing.load_seconds), milliseconds(timing.first_run_seconds), peak)
            rows.append((
                size_of(point, bench) if timing is point.timings[0] else "",
                *(fmt.name(timing.label), milliseconds(timing.median)),
                f"{milliseconds(timing.low_quartile)} … {milliseconds(timing.high_quartile)}",
                *(found if several_files else ("", "")),
                *(len(timing.seconds), *starts),
            ))  # fmt: skip
    return doc.Table.of(columns, rows)


_CHANGED = ("undone", "added")
_FINDINGS = {"same kernels": "the runtime runs the same kernels", "cannot run": "the runtime cannot run it"}


def tuning_section(tuning: Tuning | None, view: View) -> doc.Section:
    """Return everything about a tuning; an empty section if nothing was tuned."""
    if tuning is None:
        return doc.Section("On this machine", ())
    conditions = (
        fmt.plural(tuning.threads, "thread"),
        f"provider {fmt.name(tuning.provider)}",
        f"{tuning.clock} clock",
        size(tuning.sizes),
        f"{fmt.plural(len(tuning.questions), 'question')} in {fmt.seconds(tuning.seconds)} "
        f"of {fmt.seconds(tuning.budget)}",
        "" if tuning.load is None else f"load {tuning.load:.1f} before",
    )
    result = f"the result is the {tuning.chosen} one: {fmt.one_line(tuning.why)}"
    standing: list[Row] = []
    for pace in tuning.standing:
        found = (ratio(pace), pace.finding) if standing else ("reference", f"± {percent(tuning.floor)} %")
        cells = (pace.name, pace.nodes, fmt.milliseconds(pace.milliseconds), *found)
        standing.append(Row(cells, Tone.STRONG if pace.name == tuning.chosen else Tone.PLAIN))
    columns = (text_column("model"), "nodes", "median ms", text_column("time / source"), text_column(""))
    blocks = (
        doc.Paragraph(", ".join(filter(None, conditions))),
        doc.Table.of(columns, standing),
        _change_table(tuning),
        doc.Notes(_unchanged(tuning)),
        *([_question_table(tuning)] if view.verbose else []),
        doc.Notes([result, *map(fmt.one_line, tuning.notes)]),
    )
    return doc.Section("On this machine", blocks)


def tuning_clause(tuning: Tuning) -> str:
    """Return what a closing sentence says about the time."""
    pace = next(pace for pace in tuning.standing if pace.name == tuning.chosen)
    if tuning.chosen == "source":
        return "left as it was, since every result is slower here"
    if pace.finding == Finding.SAME:
        compared = as_comparison(pace, tuning)
        return f"too noisy to time: {unresolved(compared)}" if is_too_noisy(compared) else "as fast as the source here"
    return f"{percent(1 - pace.ratio)} % {pace.finding} here {interval(pace)}"


def as_comparison(pace: RelativeTime, tuning: Tuning) -> Comparison:
    """Return the time of a model against the source as `bench` records it."""
    return Comparison(pace.ratio, pace.low, pace.high, tuning.floor, Finding(pace.finding), 0)


def _change_table(tuning: Tuning) -> doc.Table:
    rows: list[tuple[str, ...]] = []
    for decision in tuning.decisions:
        if decision.choice in _CHANGED:
            question = _question(tuning, decision)
            others = len(question.units) - 1
            restored = "when taken back" if question.does == "restore" else ""
            together = f"together with {fmt.plural(others, 'other')}" if others else ""
            how = ", ".join(filter(None, (restored, together)))
            rows.append((fmt.name(decision.unit), decision.choice, _ratio(question), how))
    return doc.Table.of(map(text_column, ("rewrites", "are", "time with the change", "")), rows)


def _unchanged(tuning: Tuning) -> list[str]:
    """Return the units that were not changed, one line for each reason."""
    reasons: dict[str, list[str]] = {}
    for decision in tuning.decisions:
        if decision.choice not in (*_CHANGED, "not examined"):
            question = _question(tuning, decision)  # about the alternative
            finding = _FINDINGS.get(question.finding, question.finding)
            if question.does == "restore" and finding == "faster":
                finding = "slower"  # the question was asked the other way round
            why = f"{decision.choice}, {finding} {'without' if decision.choice == 'kept' else 'with'}"
            reasons.setdefault(why, []).append(decision.unit)
    groups = [*sorted(reasons.items()), ("no time to ask about", tuning.unexamined)]
    return [f"{why}: {', '.join(map(fmt.name, units))}" for why, units in groups if units]


def _question(tuning: Tuning, decision: Decision) -> TuningMeasurement:
    assert decision.question is not None, "every examined unit has a question"
    return tuning.questions[decision.question]


def _ratio(question: TuningMeasurement, unknown: str | None = None) -> str:
    if question.ratio is None:
        return question.finding if unknown is None else unknown
    return f"{question.ratio:.3f} [{question.low:.3f}, {question.high:.3f}]"


def _question_table(tuning: Tuning) -> doc.Table:
    columns = ("question", *map(text_column, ("to", "time", "finding")), "took", text_column("units"))
    rows = (
        (
            *(str(number), question.does, _ratio(question, "·")),
            f"{question.finding}{', done' if question.accepted else ''}",
            fmt.seconds(question.seconds),
            ", ".join(map(fmt.name, question.units)),
        )
        for number, question in enumerate(tuning.questions, 1)
    )
    return doc.Table.of(columns, rows)
