"""A Benchmark as text: what was measured on and how, the files side by side, and what may be said of them."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.records.bench import Benchmark, Comparison, Finding, Machine, Point, Timing
from sardonyx.reporting import formatting
from sardonyx.reporting.inspection import titled
from sardonyx.reporting.name_groups import grouped
from sardonyx.reporting.options import View
from sardonyx.reporting.table import Column, Line, table, text_column

# How timings and what they come to are written: in every view of a Benchmark the same.

UNKNOWN = "?"


def milliseconds(seconds: float | None) -> str:
    """In milliseconds with three digits or more, the unit left to the heading."""
    if seconds is None:
        return UNKNOWN
    ms = 1000 * seconds
    digits = 0 if ms >= 100 else 1 if ms >= 10 else 2 if ms >= 1 else 3
    return f"{ms:,.{digits}f}"


def ratio(compared: Comparison) -> str:
    """The time as a multiple of the first file's: 0.877 [0.865, 0.890]."""
    return f"{compared.ratio:.3f} [{compared.low:.3f}, {compared.high:.3f}]"


def percent(share: float) -> str:
    """A share without its sign, fine enough to tell small ones from nothing."""
    return f"{abs(100 * share):.{1 if abs(share) < 1 else 0}f}"


def size(sizes: Mapping[str, int]) -> str:
    """Sizes of dims: "batch=1, seq=128"."""
    return ", ".join(f"{formatting.name(dim)}={formatting.count(each)}" for dim, each in sizes.items())


def varied(found: Benchmark) -> list[str]:
    """The dims that differ between sizes, in their order."""
    return [dim for dim in found.points[0].sizes if len({point.sizes[dim] for point in found.points}) > 1]


def size_of(point: Point, found: Benchmark) -> str:
    """What sets a size apart from the others."""
    return size({dim: point.sizes[dim] for dim in varied(found)})


def verdict(timing: Timing, first: Timing) -> str:
    """What a comparison lets one say, as a sentence without its stop."""
    compared = timing.against_first
    name, other = formatting.name(timing.label), formatting.name(first.label)
    if compared is None:
        return f"{name} takes {milliseconds(timing.median)} ms"
    if compared.finding is Finding.SAME:
        return f"no difference between {name} and {other}: within {percent(reach(compared))} % either way"
    near, far = sorted((abs(1 - compared.low), abs(1 - compared.high)))
    interval = f"[{percent(near)}, {percent(far)}]"
    return f"{name} is {percent(1 - compared.ratio)} % {compared.finding} than {other} {interval}"


def reach(compared: Comparison) -> float:
    """How large a difference there may be that was not found: as far as the interval or the noise goes."""
    return max(1 - compared.low, compared.high - 1, compared.floor)


def alone(found: Benchmark, point: Point) -> str:
    """What is said of a file that nothing is compared with."""
    only = point.timings[0]
    at = f" at {size_of(point, found)}" if len(found.points) > 1 else ""
    return (
        f"{formatting.name(only.label)} takes {milliseconds(only.median)} ms{at} (median of "
        f"{formatting.plural(len(only.seconds), 'round')}); two sessions of it are within {percent(point.floor)} %"
    )


def bench_sentence(found: Benchmark) -> str:
    """What came out, in one line."""
    if len(found.files) == 1:
        return "; ".join(alone(found, point) for point in found.points)
    if len(found.points) == 1:
        timings = found.points[0].timings
        return "; ".join(verdict(each, timings[0]) for each in timings[1:])
    return "; ".join(_over_sizes(found, place) for place in range(1, len(found.files)))


def _over_sizes(found: Benchmark, place: int) -> str:
    compared = [each for point in found.points if (each := point.timings[place].against_first) is not None]
    said: list[str] = []
    for finding in Finding:
        shares = [abs(1 - each.ratio) for each in compared if each.finding is finding]
        if not shares:
            continue
        least, most = percent(min(shares)), percent(max(shares))
        by = "" if finding is Finding.SAME else f" (by {least}{'' if least == most else f' to {most}'} %)"
        said.append(f"{finding} at {len(shares)} of {len(compared)}{by}")
    name, other = formatting.name(found.files[place].label), formatting.name(found.files[0].label)
    return f"{name} against {other}, by size: {', '.join(said)}"


def render_benchmark(found: Benchmark, view: View | None = None) -> str:
    """The whole answer of `bench`; its last line is the sentence."""
    view = view or View()
    sentences = _verdicts(found, view) if len(found.points) > 1 or len(found.files) > 2 else []
    blocks = [
        titled(" and ".join(formatting.visible(each.label) for each in found.files), facts(found, view.verbose), view),
        table(columns(found), [Line(cells) for cells in rows(found)], view.style),
        sentences,
        _remarks(found, view),
        [view.style.strong(bench_sentence(found))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def facts(found: Benchmark, verbose: bool = False) -> dict[str, str]:
    """What a reader must know to judge the numbers."""
    first, asked = found.points[0], found.options
    same = {dim: each for dim, each in first.sizes.items() if dim not in varied(found)}
    said = {
        "machine": _machine(found.machine),
        "settings": ", ".join(
            (
                formatting.plural(int(asked["threads"]), "thread"),
                f"provider {asked['provider']}",
                f"runtime optimizations {asked['level']}",
                "a process each" if asked["isolate"] else "one process",
                f"{asked['clock']} clock",
            )
        ),
        "inputs": ", ".join(_inputs(first.inputs)) or "none",
    }
    if same:
        said["sizes"] = size(same)
    if varied(found):
        said["inputs"] += f" at {size_of(first, found)}"
    if verbose:
        said["runtime"] = ", ".join(f"{name} {version}" for name, version in found.environment.packages.items())
        said["time"] = ", ".join(
            f"{formatting.name(phase)} {formatting.seconds(each)}" for phase, each in found.seconds.items()
        )
        said["files"] = ", ".join(
            f"{formatting.name(each.label)} {formatting.size(each.bytes)} {formatting.plural(each.nodes, 'node')}"
            for each in found.files
        )
    return said


def _inputs(shapes: Mapping[str, str]) -> list[str]:
    found = grouped(shapes, str, lambda name: shapes[name])
    return [f"{label}={formatting.visible(shapes[first])}" for label, (first, *_) in found]


def _machine(machine: Machine) -> str:
    parts = [formatting.one_line(machine.cpu or "unknown processor"), formatting.plural(machine.cores, "core")]
    if machine.memory_bytes is not None:
        parts.append(formatting.size(machine.memory_bytes))
    if machine.governor is not None:
        parts.append(f"governor {formatting.name(machine.governor)}")
    if machine.busy_during is not None:
        parts.append(f"others used {100 * machine.busy_during:.0f} % of it meanwhile")
    return ", ".join(parts)


def columns(found: Benchmark) -> list[Column]:
    """The headings; columns that would be empty are left out."""
    shown = [text_column("size")] if len(found.points) > 1 else []
    shown += [text_column("file"), Column("median ms"), Column("middle half")]
    if len(found.files) > 1:
        shown += [text_column(f"time / {formatting.name(found.files[0].label, 30)}"), text_column("")]
    shown.append(Column("rounds"))
    if any(timing.starts for point in found.points for timing in point.timings):
        shown += [Column("load ms"), Column("first run ms"), Column("peak memory")]
    return shown


def rows(found: Benchmark) -> list[list[str]]:
    """One row a size and file, under `columns`."""
    return [_row(found, point, timing) for point in found.points for timing in point.timings]


def _row(found: Benchmark, point: Point, timing: Timing) -> list[str]:
    is_first = timing is point.timings[0]
    cells = [size_of(point, found) if is_first else ""] if len(found.points) > 1 else []
    cells += [
        formatting.name(timing.label),
        milliseconds(timing.median),
        f"{milliseconds(timing.low_quartile)} … {milliseconds(timing.high_quartile)}",
    ]
    compared = timing.against_first
    if len(found.files) > 1:
        cells += (
            ["reference", f"± {percent(point.floor)} %"] if compared is None else [ratio(compared), compared.finding]
        )
    cells.append(formatting.count(len(timing.seconds)))
    if len(columns(found)) > len(cells):
        peak = timing.peak_bytes
        cells += [
            milliseconds(timing.load_seconds),
            milliseconds(timing.first_run_seconds),
            UNKNOWN if peak is None else formatting.size(peak),
        ]
    return cells


def _verdicts(found: Benchmark, view: View) -> list[str]:
    """One line a size and file; good news and bad in colour."""
    lines: list[str] = []
    for point in found.points:
        at = f"at {size_of(point, found)}: " if len(found.points) > 1 else ""
        if len(found.files) == 1:
            lines.append(f"  {alone(found, point)}")
        for each in point.timings[1:]:
            finding = each.against_first.finding if each.against_first is not None else Finding.SAME
            paint = {Finding.FASTER: view.style.good, Finding.SLOWER: view.style.bad}.get(finding, str)
            lines.append(f"  {at}{paint(verdict(each, point.timings[0]))}")
    return lines


def _remarks(found: Benchmark, view: View) -> list[str]:
    lines = [f"  {formatting.one_line(note)}" for note in found.notes]
    return [view.style.strong("Notes"), *lines] if lines else []
