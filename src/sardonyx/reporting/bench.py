"""A Benchmark as a document: the machine and the settings, the files side by side, and what the intervals allow."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sardonyx.records.bench import Benchmark, Comparison, Finding, Machine, Point, Timing
from sardonyx.records.run import RelativeTime
from sardonyx.reporting import formatting
from sardonyx.reporting.document import (
    Column,
    Document,
    Facts,
    Notes,
    Section,
    Span,
    Table,
    Text,
    Tone,
    View,
    text_column,
)
from sardonyx.reporting.module_rows import grouped
from sardonyx.reporting.writers import csv

UNKNOWN = "?"
TOO_NOISY = 0.1  # a difference of this size is worth knowing: if it may go undetected, the machine is too noisy
_TONES = {Finding.FASTER: Tone.GOOD, Finding.SLOWER: Tone.BAD}


def bench_document(bench: Benchmark, view: View) -> Document:
    """Return the answer of `bench`."""
    several = len(bench.points) > 1 or len(bench.files) > 2
    return Document(
        title=" and ".join(file.label for file in bench.files),
        head=(Facts(conditions(bench, verbose=view.verbose)),),
        blocks=(
            timing_table(bench),
            Notes(_verdicts(bench) if several else ()),
            Section("Notes", (Notes([formatting.one_line(note) for note in bench.notes]),)),
        ),
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
    return csv.write(["file", *dims, "round", "seconds"], rows)


def milliseconds(seconds: float | None) -> str:
    """Return seconds in milliseconds without the unit."""
    return UNKNOWN if seconds is None else formatting.milliseconds(1000 * seconds)


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
    return ", ".join(f"{formatting.name(dim)}={formatting.count(number)}" for dim, number in sizes.items())


def varied(bench: Benchmark) -> list[str]:
    """Return the dimensions that differ between the measured sizes."""
    return [dim for dim in bench.points[0].sizes if len({point.sizes[dim] for point in bench.points}) > 1]


def size_of(point: Point, bench: Benchmark) -> str:
    """Return the dimensions that distinguish a size from the others."""
    return size({dim: point.sizes[dim] for dim in varied(bench)})


def verdict(timing: Timing, first: Timing) -> str:
    """Return what a comparison with the first file allows to claim, as a sentence without its full stop."""
    compared = timing.against_first
    name, other = formatting.name(timing.label), formatting.name(first.label)
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
    """Return the result for a file that is compared with no other."""
    timing = point.timings[0]
    at = f" at {size_of(point, bench)}" if len(bench.points) > 1 else ""
    return (
        f"{formatting.name(timing.label)} takes {milliseconds(timing.median)} ms{at} (median of "
        f"{formatting.plural(len(timing.seconds), 'round')}); two sessions of it are within {percent(point.floor)} %"
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
    name, other = formatting.name(bench.files[place].label), formatting.name(bench.files[0].label)
    return f"{name} against {other}, by size: {', '.join(clauses)}"


def conditions(bench: Benchmark, *, verbose: bool = False) -> dict[str, str]:
    """Return what a reader must know to judge the numbers."""
    first, options = bench.points[0], bench.options
    fixed = {dim: number for dim, number in first.sizes.items() if dim not in varied(bench)}
    settings = (
        formatting.plural(int(options["threads"]), "thread"),
        f"provider {options['provider']}",
        f"runtime optimizations {options['level']}",
        "a process each" if options["isolate"] else "one process",
        f"{options['clock']} clock",
    )
    at = f" at {size_of(first, bench)}" if varied(bench) else ""
    groups = grouped(first.inputs, str, lambda name: first.inputs[name])
    inputs = [f"{label}={first.inputs[name]}" for label, (name, *_) in groups]
    facts = {
        "machine": _machine(bench.machine),
        "settings": ", ".join(settings),
        "inputs": (", ".join(inputs) or "none") + at,
    }
    if fixed:
        facts["sizes"] = size(fixed)
    if verbose:
        facts["runtime"] = ", ".join(f"{name} {version}" for name, version in bench.environment.packages.items())
        facts["time"] = formatting.phases(bench.seconds)
        facts["files"] = ", ".join(
            f"{formatting.name(file.label)} {formatting.size(file.bytes)} {formatting.plural(file.nodes, 'node')}"
            for file in bench.files
        )
    return facts


def _machine(machine: Machine) -> str:
    parts = [formatting.one_line(machine.cpu or "unknown processor"), formatting.plural(machine.cores, "core")]
    if machine.memory_bytes is not None:
        parts.append(formatting.size(machine.memory_bytes))
    if machine.governor is not None:
        parts.append(f"governor {formatting.name(machine.governor)}")
    if machine.busy_during is not None:
        parts.append(f"{100 * machine.busy_during:.0f} % of the CPU was used by other processes")
    return ", ".join(parts)


def timing_table(bench: Benchmark) -> Table:
    """Return one row for each size and file; columns that would be empty are left out."""
    several_sizes, several_files = len(bench.points) > 1, len(bench.files) > 1
    has_starts = any(timing.starts for point in bench.points for timing in point.timings)
    columns = [text_column("size")] if several_sizes else []
    columns += [text_column("file"), Column("median ms"), Column("IQR", detail=1)]
    if several_files:
        compared = (f"time / {formatting.name(bench.files[0].label, 30)}", "")
        columns += [Column(heading, right=False, whole=True) for heading in compared]
    columns.append(Column("rounds", 5))
    if has_starts:
        columns += [Column("load ms", 3), Column("first run ms", 4), Column("peak memory", 2)]
    rows: list[list[str]] = []
    for point in bench.points:
        for timing in point.timings:
            is_first = timing is point.timings[0]
            cells = [size_of(point, bench) if is_first else ""] if several_sizes else []
            cells += [
                formatting.name(timing.label),
                milliseconds(timing.median),
                f"{milliseconds(timing.low_quartile)} … {milliseconds(timing.high_quartile)}",
            ]
            if several_files and timing.against_first is None:
                cells += ["reference", f"± {percent(point.floor)} %"]
            elif several_files and timing.against_first is not None:
                cells += [ratio(timing.against_first), finding(timing.against_first)]
            cells.append(formatting.count(len(timing.seconds)))
            if has_starts:
                cells += [milliseconds(timing.load_seconds), milliseconds(timing.first_run_seconds)]
                cells.append(UNKNOWN if timing.peak_bytes is None else formatting.size(timing.peak_bytes))
            rows.append(cells)
    return Table.of(columns, rows)


def _verdicts(bench: Benchmark) -> list[Text]:
    """Return one sentence for each size and file, in the tone of its finding."""
    lines: list[Text] = []
    for point in bench.points:
        if len(bench.files) == 1:
            lines.append(_single(bench, point))
        at = f"at {size_of(point, bench)}: " if len(bench.points) > 1 else ""
        first, *others = point.timings
        for timing in others:
            found = Finding.SAME if timing.against_first is None else timing.against_first.finding
            lines.append((at, Span(verdict(timing, first), _TONES.get(found, Tone.PLAIN))))
    return lines
