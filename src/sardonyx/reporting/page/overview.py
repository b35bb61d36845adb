"""The first screen: the list of models, and the verdict on each."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from msgspec import Struct

from sardonyx.records.bench import Comparison, Finding
from sardonyx.records.run import Artifact, Environment, PassRecord, Run
from sardonyx.reporting import bench
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.bench import as_comparison, finding, ratio
from sardonyx.reporting.history import History, changes, ends, histories, history_section, measured, recent
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots.charts import trend
from sardonyx.reporting.plots.study import strength
from sardonyx.reporting.run import architecture_guess, opset_changes
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import agreement, claims_line, failure, tolerance_used, used_percent, verification
from sardonyx.reporting.writers import html


class Pace(Struct, frozen=True):
    """The time of the result as a multiple of that of the source, and how it was measured."""

    compared: Comparison
    times: str  # medians of both files; the ratio is paired by round, so it need not be theirs
    where: str  # sizes and how many rounds
    how: str
    threads: int
    busy: bool  # other processes disturbed the measurement
    caveats: tuple[str, ...]  # what a reader of the number must know


def section(bundle: RunBundle) -> Section:
    """Return the summary of one model."""
    run = bundle.run
    pace = _pace(bundle)
    outputs = () if run.verdict is None else run.verdict.outputs
    largest = [math.inf if math.isnan(output.max_abs) else output.max_abs for output in outputs]
    used = None if run.verdict is None or not run.verdict.passed else tolerance_used(run.verdict)
    html = rendered(
        "verdict",
        alarms=_alarms(run),
        sentence=_sentence(bundle.label, run, pace),
        run=run,
        fewer=fmt.percent(run.before.nodes, run.after.nodes),
        pace=pace,
        headline=None if pace is None else _pace_words(pace.compared),
        interval=None if pace is None else interval_places(pace.compared),
        worst=max(zip(outputs, largest, strict=True), key=lambda pair: pair[1], default=None),
        used="" if used is None else used_percent(used),  # "": only rounding differs, or the outputs do not match
        facts=list(_facts(bundle)),
        notes=[fmt.one_line(note) for note in (*run.notes, *bundle.notes)],
    )
    return Section("verdict", "Verdict", html)


def _alarms(run: Run) -> list[str]:
    alarms: list[str] = []
    failed = failure(run.verdict)
    failed = failed[:1].upper() + failed[1:]
    if run.status != "done":
        alarms.append(f"{failed}. Nothing was written.")
    elif run.verdict is None:
        alarms.append("Not verified: verification was switched off, so whether both files compute the same is unknown.")
    elif not run.verdict.passed:
        alarms.append(f"{failed}.")
    if run.rolled_back:
        undone = "was undone" if len(run.rolled_back) == 1 else "were undone"
        rewrites = fmt.plural(len(run.rolled_back), "rewrite")
        alarms.append(f"{rewrites} failed verification and {undone}; see “Verification”.")
    return alarms


def _sentence(label: str, run: Run, pace: Pace | None) -> str:
    would = run.status != "done" or bool(run.options.get("dry_run"))
    before, after = run.before.nodes, run.after.nodes
    has, share = "would have" if would else "has", fmt.percent(before, after).lstrip("+−")
    fewer, same = "fewer" if after < before else "more", f"{fmt.plural(after, 'node')} as before"
    clauses = [f"{has} {same if before == after else f'{share} {fewer} nodes'}"]
    if pace is not None:
        clauses.append(_time_clause(pace))
    if run.verdict is not None and run.verdict.passed:
        clauses.append(f"gave the same outputs {agreement(run.verdict)}")
    joined = clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"
    return f"{fmt.name(label)} {joined}{'; its time was not measured' if pace is None else ''}."


def _time_clause(pace: Pace) -> str:
    compared = pace.compared
    where = f"on {fmt.plural(pace.threads, 'thread')}{' of a busy machine' if pace.busy else ''}"
    if bench.is_too_noisy(compared):
        return f"was too noisy to time {where} ({bench.unresolved(compared)})"
    if compared.finding is Finding.SAME:
        return f"shows no difference in time (none above {bench.percent(bench.reach(compared))} %) {where}"
    return f"runs {_pace_words(compared)} {bench.interval(compared)} {where}"


def _pace_words(compared: Comparison) -> str:
    if compared.finding is Finding.SAME:
        return bench.finding(compared)
    return f"{bench.percent(1 - compared.ratio)} % {compared.finding.value}"


def _pace(bundle: RunBundle) -> Pace | None:
    """Return the time from the benchmark, otherwise from tuning, or None if neither was measured."""
    timed, point, compared = bundle.bench, bundle.point, bundle.compared
    if timed is not None and point is not None and compared is not None:
        threads, busy = int(timed.options["threads"]), timed.machine.busy
        caveats = [fmt.plural(threads, "thread")]
        if busy is not None:
            share = f"{100 * busy:.0f} % of the CPU"
            caveats.append(f"busy machine: other processes used {share}, which widens the interval")
        if len(timed.points) > 1:
            caveats.append(f"the first of {len(timed.points)} sizes; “Measured” has all")
        before, after = (f"{bench.milliseconds(timing.median)} ms" for timing in point.timings)
        rounds = f"median of {fmt.plural(compared.rounds, 'round')}"
        how = (
            "Both files ran in turns, round by round; the ratio is paired by round, with a 95 % interval. "
            f"The source against itself differed by {bench.percent(compared.floor)} %, and less than that counts "
            "as no difference. “Measured” has the medians of both files."
        )
        where = ", ".join(filter(None, (rounds, bench.size(point.sizes))))
        return Pace(compared, fmt.from_to(before, after), where, how, threads, busy is not None, tuple(caveats))
    tuning = bundle.run.tuning
    paces = {} if tuning is None else {pace.name: pace for pace in tuning.standing}
    source, chosen = paces.get("source"), None if tuning is None else paces.get(tuning.chosen)
    if tuning is None or source is None or chosen is None or chosen is source:
        return None
    before, after = (f"{bench.milliseconds(pace.milliseconds / 1000)} ms" for pace in (source, chosen))
    where = ", ".join(filter(None, ("measured while tuning", bench.size(tuning.sizes))))
    how = "From the last comparison of tuning, in which source and result ran in turns; the ratio has a 95 % interval."
    caveats = (fmt.plural(tuning.threads, "thread"), *map(fmt.one_line, tuning.notes))
    times = fmt.from_to(before, after)
    return Pace(as_comparison(chosen, tuning), times, where, how, tuning.threads, bool(tuning.notes), caveats)


def interval_places(compared: Comparison) -> dict[str, float]:
    """Return the positions of the interval, the ratio and 1.0 on a line, in percent of its length."""
    low, high = min(compared.low, 1.0), max(compared.high, 1.0)
    room = 0.15 * (high - low) or 0.01
    span = high - low + 2 * room
    at = {"low": compared.low, "high": compared.high, "ratio": compared.ratio, "one": 1.0}
    return {name: round(100 * (value - low + room) / span, 2) for name, value in at.items()}


def _facts(bundle: RunBundle) -> Iterator[tuple[str, str]]:
    """Yield when, how, where and with what the run was made, and facts about its files, each with its label."""
    run, environment = bundle.run, bundle.run.environment
    yield from origin_facts(environment)
    yield "Files", f"{file_name(run.source, run.before.bytes)} → {file_name(run.result, run.after.bytes)}"
    if run.verdict is not None and run.verdict.rewrites is not None:
        yield "Equality", claims_line(run.verdict.rewrites)
    yield "Constants", fmt.sizes(run.before.bytes, run.after.bytes)
    machine = fmt.plural(environment.cpus, "core")
    if bundle.bench is not None:
        machine = bench.conditions(bundle.bench)["machine"]
        yield "Threads", f"{bundle.bench.options['threads']} while timing"
    elif run.tuning is not None:
        yield "Threads", f"{run.tuning.threads} while tuning"
    yield from machine_facts(environment, machine)
    guess = architecture_guess(run)
    if guess is not None:
        yield "Architecture (guess)", guess
    for change in opset_changes(run):
        yield "Opset", change


def origin_facts(environment: Environment) -> Iterator[tuple[str, str]]:
    """Yield the date and the command of a record, if it has them."""
    if environment.date:
        yield "Date", fmt.date(environment.date)
    if environment.command:
        yield "Command", fmt.visible(shlex.join(environment.command))


def machine_facts(environment: Environment, machine: str) -> Iterator[tuple[str, str]]:
    """Yield the machine and the versions of a record."""
    yield "Machine", fmt.one_line(f"{machine}; {environment.platform}")
    versions = fmt.versions(environment.packages)
    yield "Versions", fmt.one_line(f"sardonyx {environment.sardonyx}, Python {environment.python}, {versions}")


def file_name(artifact: Artifact, constants: int) -> str:
    """Return the name of a file and its size; weights in another file are not part of it."""
    if artifact.path is None:
        return "a model in memory" if artifact.bytes else "not written"
    outside = " and external data" if artifact.bytes < constants else ""
    return f"{fmt.visible(PurePath(artifact.path).name)} ({fmt.size(artifact.bytes)}{outside})"


class _Measure(Struct, frozen=True):
    id: str
    title: str
    of: Callable[[PassRecord], int]  # negative if there is less than before
    whole: Callable[[Run], int]
    write: Callable[[int], str]


_MEASURES = (
    _Measure("nodes", "change in nodes", lambda record: record.nodes, lambda run: run.before.nodes, fmt.change),
    _Measure(
        "rewrites",
        "rewrites",
        lambda record: record.rewrites,
        lambda run: sum(record.rewrites for record in run.passes),
        lambda number: fmt.count(number) if number else "·",
    ),
    _Measure("bytes", "change in bytes", lambda record: record.bytes, lambda run: run.before.bytes, fmt.size_change),
)


def overview(bundles: Sequence[RunBundle]) -> Section | None:
    """Return the overview of several runs, or None for a single one.

    Several models have a row each, of their newest run. The runs of one model have a line each in its history.
    """
    if len(bundles) < 2:
        return None
    models = histories(bundles)
    places = {id(bundle): place for place, bundle in enumerate(recent(bundles))}
    shown = [history.latest for history in models] if len(models) > 1 else recent(bundles)
    columns = [_column(places[id(bundle)], bundle) for bundle in shown]
    markup = rendered(
        "overview",
        rows=columns if len(models) > 1 else [],
        histories=[_history(history, places) for history in models if len(history.runs) > 1],
        columns=columns,
        matrices=[_matrix(shown, measure) for measure in _MEASURES],
    )
    title = "All models" if len(models) > 1 else f"History of {fmt.name(models[0].model)}"
    return Section("overview", title, markup)


def _column(place: int, bundle: RunBundle) -> dict[str, Any]:
    """Return one model, the time of its result as a multiple of that of the source, and how that was measured."""
    timed, compared = bundle.bench, bundle.compared
    caveats = ""
    if timed is not None and compared is not None:
        busy = ", busy machine" if timed.machine.busy is not None else ""
        caveats = fmt.plural(int(timed.options["threads"]), "thread") + busy
    return {
        "place": place,
        "bundle": bundle,
        "run_label": bundle.name or bundle.label,  # the name of the run if all are of one model
        "time": "not timed" if compared is None else ratio(compared),
        "finding": "" if compared is None else finding(compared),
        "caveats": caveats,
        "verification": verification(bundle.run.verdict),
    }


def _history(history: History, places: Mapping[int, int]) -> dict[str, Any]:
    def link(bundle: RunBundle) -> str:
        place = places.get(id(bundle))
        return "" if place is None else f"#section=verdict&model={place}"

    section = history_section(history, link)
    plots = [
        (tracked.measure.heading, ends(history, tracked), trend(history, tracked).inline(narrowest=0))
        for tracked in measured(history)
    ]
    return {"title": section.title, "plots": plots, "table": html.write(section.blocks)}


def _matrix(bundles: Sequence[RunBundle], measure: _Measure) -> dict[str, Any]:
    """Return what each pass did on each model, None where it did not run."""

    def cell(record: PassRecord | None, bundle: RunBundle) -> dict[str, Any] | None:
        if record is None:
            return None
        number, whole = measure.of(record), measure.whole(bundle.run) or 1
        written, less = measure.write(number), number <= 0 or measure.id == "rewrites"
        hover = f"{record.name} on {bundle.label}: {measure.title} {written} of {fmt.count(whole)}"
        heat = round(60 * strength(abs(number) / whole))  # percent
        return {"written": written, "heat": heat, "good": less, "hover": fmt.one_line(hover)}

    records = [{record.name: record for record in bundle.run.passes} for bundle in bundles]
    names = dict.fromkeys(record.name for bundle in bundles for record in bundle.run.passes)
    active = [name for name in names if any(name in by_name and by_name[name].rewrites for by_name in records)]
    lines = [(name, [cell(own.get(name), at) for own, at in zip(records, bundles, strict=True)]) for name in active]
    totals = [measure.write(sum(map(measure.of, bundle.run.passes))) for bundle in bundles]
    return {"id": measure.id, "title": measure.title, "lines": lines, "totals": totals}


# What changed from one run to another, first on a page of both.


def compared(first: RunBundle, second: RunBundle) -> Section:
    """Return the sentence, what differs besides the results, and a table for each kind of change."""
    changed = changes(first, second)
    markup = rendered("compared", changes=changed, tables=html.write(changed.sections), first=first, second=second)
    return Section("compared", "What changed", markup)
