"""A Benchmark as text: what was measured on and how, the files side by side, and what may be said of them."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.bench_record import Benchmark, Finding, Machine, Point, Timing
from sardonyx.rendering import words
from sardonyx.rendering.bench_words import (
    UNKNOWN,
    alone,
    bench_sentence,
    milliseconds,
    percent,
    ratio,
    size,
    size_of,
    varied,
    verdict,
)
from sardonyx.rendering.model import titled
from sardonyx.rendering.names import grouped
from sardonyx.rendering.table import Column, Line, table, text_column
from sardonyx.rendering.view import View


def render_benchmark(found: Benchmark, view: View | None = None) -> str:
    """The whole answer of `bench`; its last line is the sentence."""
    view = view or View()
    sentences = _verdicts(found, view) if len(found.points) > 1 or len(found.files) > 2 else []
    blocks = [
        titled(" and ".join(words.visible(each.label) for each in found.files), facts(found, view.verbose), view),
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
                words.plural(int(asked["threads"]), "thread"),
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
        said["time"] = ", ".join(f"{words.name(phase)} {words.seconds(each)}" for phase, each in found.seconds.items())
        said["files"] = ", ".join(
            f"{words.name(each.label)} {words.size(each.bytes)} {words.plural(each.nodes, 'node')}"
            for each in found.files
        )
    return said


def _inputs(shapes: Mapping[str, str]) -> list[str]:
    found = grouped(shapes, str, lambda name: shapes[name])
    return [f"{label}={words.visible(shapes[first])}" for label, (first, *_) in found]


def _machine(machine: Machine) -> str:
    parts = [words.one_line(machine.cpu or "unknown processor"), words.plural(machine.cores, "core")]
    if machine.memory_bytes is not None:
        parts.append(words.size(machine.memory_bytes))
    if machine.governor is not None:
        parts.append(f"governor {words.name(machine.governor)}")
    if machine.busy_during is not None:
        parts.append(f"others used {100 * machine.busy_during:.0f} % of it meanwhile")
    return ", ".join(parts)


def columns(found: Benchmark) -> list[Column]:
    """The headings; columns that would be empty are left out."""
    shown = [text_column("size")] if len(found.points) > 1 else []
    shown += [text_column("file"), Column("median ms"), Column("middle half")]
    if len(found.files) > 1:
        shown += [text_column(f"time / {words.name(found.files[0].label, 30)}"), text_column("")]
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
        words.name(timing.label),
        milliseconds(timing.median),
        f"{milliseconds(timing.low_quartile)} … {milliseconds(timing.high_quartile)}",
    ]
    compared = timing.against_first
    if len(found.files) > 1:
        cells += (
            ["reference", f"± {percent(point.floor)} %"] if compared is None else [ratio(compared), compared.finding]
        )
    cells.append(words.count(len(timing.seconds)))
    if len(columns(found)) > len(cells):
        peak = timing.peak_bytes
        cells += [
            milliseconds(timing.load_seconds),
            milliseconds(timing.first_run_seconds),
            UNKNOWN if peak is None else words.size(peak),
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
    lines = [f"  {words.one_line(note)}" for note in found.notes]
    return [view.style.strong("Notes"), *lines] if lines else []
