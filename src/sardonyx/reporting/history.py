"""Runs of one model at different times: one line per run, newest first, with the trend of each number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath

from msgspec import Struct

from sardonyx.records.base import Record
from sardonyx.records.run import Artifact
from sardonyx.reporting import formatting
from sardonyx.reporting.document import Column, Notes, Row, Section, Span, Table, Text, Tone, text_column
from sardonyx.reporting.measures import Measure, Reading
from sardonyx.reporting.record_kinds import BENCHMARK, RUN
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.run_changes import incomparable
from sardonyx.reporting.verdict import verification

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

    Two runs are of one model if their sources have the same hash or the same path. Runs without a date are not grouped.
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
    return bool(_date(one) and _date(other)) and _is_same(one.run.source, other.run.source)


def _is_same(one: Artifact, other: Artifact) -> bool:
    known = one.sha256 is not None and one.sha256 == other.sha256
    return known or (one.path is not None and one.path == other.path)


TRACKED = (
    *(Tracked(RUN[name], lambda bundle: bundle.run) for name in ("nodes", "bytes")),
    *(Tracked(BENCHMARK[name], lambda bundle: bundle.timed) for name in ("latency_ms", "latency_ratio", "peak_bytes")),
)


def measured(history: History) -> list[Tracked]:
    """Return the measures that at least one run has."""
    return [tracked for tracked in TRACKED if any(tracked.read(run) is not None for run in history.runs)]


def history_section(history: History, link: Callable[[RunBundle], str] = lambda _run: "") -> Section:
    """Return the table of a history with a line a run, and notes on what is not comparable.

    Args:
        history: several runs of one model.
        link: returns the address of the details of a run, "" if there is none.
    """
    tracked = measured(history)
    columns = [text_column("date"), text_column("run"), text_column("sardonyx")]
    columns += [*(Column(each.measure.heading) for each in tracked), text_column("verification")]
    rows = [
        Row(_line(run, tracked, link(run)), Tone.PLAIN if _passed(run) else Tone.BAD) for run in history.runs[:LONGEST]
    ]
    notes = [*itertools.islice(_breaks(history), _NOTED), *_disturbed(history)]
    if len(history.runs) > LONGEST:
        notes.append(f"and {len(history.runs) - LONGEST} older runs")
    return Section(f"History of {formatting.name(history.model)}", (Table(columns, rows), Notes(notes)))


def _passed(run: RunBundle) -> bool:
    return run.run.status == "done" and (run.run.verdict is None or run.run.verdict.passed)


def _line(run: RunBundle, tracked: Sequence[Tracked], link: str) -> list[Text]:
    environment = run.run.environment
    values = [each.read(run) for each in tracked]
    date: Text = Span(formatting.date(environment.date), target=link)
    checked = formatting.name(formatting.one_line(verification(run.run.verdict)), 120)
    written = [_NONE if value is None else value.written for value in values]
    return [date, formatting.name(run.name or run.label), formatting.name(environment.sardonyx), *written, checked]


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
    return formatting.from_to(first.short, last.short) + (f" ({verdict})" if verdict else "")


def _values(history: History, tracked: Tracked) -> list[Reading]:
    return [value for run in reversed(history.runs) if (value := tracked.read(run)) is not None]


def _bars(values: Sequence[Reading]) -> str:
    numbers = [value.value for value in values]
    low, high = min(numbers), max(numbers)
    return "".join(_LEVELS[round((len(_LEVELS) - 1) * (number - low) / (high - low))] for number in numbers[-_BARS:])


def _breaks(history: History) -> Iterator[str]:
    """Yield between which runs times are not comparable, and why."""
    for newer, older in zip(history.runs, history.runs[1:], strict=False):
        if older.bench is not None and newer.bench is not None and (reasons := list(incomparable(older, newer))):
            between = f"{formatting.date(_date(older))} and {formatting.date(_date(newer))}"
            yield f"times of {between} are not comparable: {'; '.join(reasons)}"


def _disturbed(history: History) -> Iterator[str]:
    """Yield which runs were timed on a busy machine, in one note."""
    shares = [(run, run.bench.machine.busy) for run in history.runs if run.bench is not None]
    busy = [f"{formatting.date(_date(run))} ({100 * share:.0f} %)" for run, share in shares if share is not None]
    if busy:
        more = f" and {len(busy) - _NOTED} more" if len(busy) > _NOTED else ""
        yield f"timed while other processes used much of the CPU: {', '.join(busy[:_NOTED])}{more}"
