"""`sardonyx.bench`: how long models take against each other, how sure that is, and what starting them costs."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import ledger
from sardonyx.bench_record import Benchmark, Comparison, Finding, Point, Start, Timing
from sardonyx.errors import UsageError
from sardonyx.measure import agreement, feeds, isolated, machine, rounds, statistics, sweeps
from sardonyx.measure.contestants import Contestant, Files, entered, opened, told_of
from sardonyx.measure.isolated import Isolated
from sardonyx.measure.lanes import Lane
from sardonyx.measure.remarks import remarks
from sardonyx.runtime import Feeds
from sardonyx.runtime.timed import Level, Settings
from sardonyx.source.inputs.specs import check_names, read_arrays

STARTS = 3
Given = str | Path | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class _Asked:
    """What stays the same for all sizes."""

    settings: Settings
    isolate: bool
    starts: int
    seed: int


def bench(
    files: Files,
    *,
    seconds: float = 60.0,
    sizes: Mapping[str, int] | None = None,
    sweep: Mapping[str, Sequence[int]] | None = None,
    inputs: Given = None,
    threads: int = 1,
    provider: str = "cpu",
    level: str = "all",
    isolate: bool = False,
    starts: int = STARTS,
    seed: int = 0,
    progress: ledger.Progress | None = None,
) -> Benchmark:
    """Time models in turns, on the same inputs under the same settings; the first is what the others are compared with.

    Args:
        files: ONNX files or models in memory, the reference first; a mapping gives them names of your own.
        seconds: the most that all turns together may take; sizes of a sweep share it. Ends early where the answer is
            clear. Loading, and starting anew, come on top.
        sizes: of dims that the inputs of the first model leave open; where none is given, 1 for the first dim of an
            input and 128 for others.
        sweep: sizes to try for a dim; several dims are tried in all combinations.
        inputs: an .npz file or arrays by name to run on, in place of drawn ones.
        threads: within an operator. One is the steadiest; on a machine of your own, measure with what you will use.
        provider: of the runtime: "cpu", "cuda" and so on.
        level: how far the runtime may optimize by itself: off, basic, extended, layout, all.
        isolate: give each model a process of its own.
        starts: how often each model is started in a fresh process, for load time, first run and peak memory; the
            sizes of a sweep after the first get one. 0 leaves them out.
        seed: of the drawn inputs, the order of turns and the intervals.
        progress: told the phase and how far it is.

    Raises:
        UsageError: for options that make no sense, or inputs that do not go with a model.
        ModelError: for a file that cannot be read.
        RuntimeFailure: where the runtime does not take or run a model.
    """
    asked = _Asked(Settings(threads, provider, _level(level)), isolate, starts, seed)
    if not seconds > 0:
        raise UsageError(f"nothing can be timed in {seconds:g} seconds", hint="give it some, for example 60")
    clock = ledger.Clock(progress)
    load_before, busy_before = machine.load(), machine.busy_now()
    with tempfile.TemporaryDirectory(prefix="sardonyx-") as folder, contextlib.ExitStack() as held:
        with clock.phase("reading"):
            contestants = entered(files, Path(folder))
            plan = list(_plan(contestants[0], sizes, sweep, inputs, seed))
        with clock.phase("starting"):
            started = [_started(contestants, fed, asked, first=not index) for index, (_, fed) in enumerate(plan)]
        with clock.phase("loading"):
            lanes = [_lane(held, each, asked) for each in (*contestants, contestants[0])]
        watch = machine.Watch(lane.process for lane in lanes if isinstance(lane, Isolated))
        with clock.phase("timing"):
            points = _timed(contestants, lanes, plan, started, seconds, asked, clock)
        busy_during = watch.share()
    used = machine.described(load_before=load_before, busy_before=busy_before, busy_during=busy_during)
    return Benchmark(
        environment=ledger.environment(),
        machine=used,
        options={
            "seconds": seconds,
            "threads": threads,
            "provider": provider,
            "level": str(asked.settings.level),
            "isolate": isolate,
            "starts": starts,
            "seed": seed,
            "sizes": dict(sizes or {}),
            "sweep": {dim: list(each) for dim, each in (sweep or {}).items()},
            "inputs": "given" if inputs is not None else "drawn",
        },
        files=tuple(each.file for each in contestants),
        points=tuple(points),
        seconds=clock.seconds,
        notes=tuple(remarks(points, used, asked.settings, {*(sizes or ()), *(sweep or ())})),
    )


def _level(name: str) -> Level:
    try:
        return Level(name)
    except ValueError:
        raise UsageError(f"the runtime has no level {name!r}", hint=f"one of {', '.join(Level)}") from None


def _plan(
    first: Contestant,
    sizes: Mapping[str, int] | None,
    sweep: Mapping[str, Sequence[int]] | None,
    inputs: Given,
    seed: int,
) -> Iterator[tuple[dict[str, int], Feeds]]:
    """Each size with the feeds at that size."""
    if inputs is not None:
        if sizes or sweep:
            raise UsageError("given inputs have their sizes", hint="leave out either the inputs or the sizes")
        given = read_arrays(Path(inputs)) if isinstance(inputs, (str, Path)) else dict(inputs)
        check_names(given, [value.name or "" for value in first.model.graph.inputs])
        yield {}, given
        return
    for each in sweeps.points(sizes, sweep):
        with told_of(first.label):
            yield feeds.open_dims(first.model) | each, feeds.at_size(first.model, each, seed=seed)


def _started(contestants: Sequence[Contestant], fed: Feeds, asked: _Asked, *, first: bool) -> list[tuple[Start, ...]]:
    """Fresh starts of each file, in another order each time."""
    found: list[list[Start]] = [[] for _ in contestants]
    shuffle, order = random.Random(asked.seed).shuffle, list(range(len(contestants)))
    for _ in range(asked.starts if first else min(1, asked.starts)):
        shuffle(order)
        for place in order:
            with told_of(contestants[place].label):
                found[place].append(isolated.start(contestants[place].path, asked.settings, fed))
    return [tuple(each) for each in found]


def _lane(held: contextlib.ExitStack, contestant: Contestant, asked: _Asked) -> Lane:
    lane = opened(contestant, asked.settings, isolate=asked.isolate)
    held.callback(lane.close)
    return lane


def _timed(
    contestants: Sequence[Contestant],
    lanes: Sequence[Lane],
    plan: Sequence[tuple[dict[str, int], Feeds]],
    started: Sequence[Sequence[tuple[Start, ...]]],
    seconds: float,
    asked: _Asked,
    clock: ledger.Clock,
) -> list[Point]:
    """All sizes in turn; what one of them leaves of its share of the time goes to those after it."""
    points: list[Point] = []
    left = seconds
    for index, ((sizes, fed), starts) in enumerate(zip(plan, started, strict=True)):
        for lane, contestant in zip(lanes, (*contestants, contestants[0]), strict=True):
            with told_of(contestant.label):
                lane.feed(fed)

        def tell(phase: str, fraction: float | None, index: int = index) -> None:
            whole = None if fraction is None else (index + fraction) / len(plan)
            clock.tell(f"timing, {phase}" if len(plan) == 1 else f"timing {index + 1} of {len(plan)}, {phase}", whole)

        race = rounds.race(
            {contestant.label: lane.turn for contestant, lane in zip(contestants, lanes[:-1], strict=True)},
            twin=lanes[-1].turn,
            seconds=max(0.0, left / (len(plan) - index)),
            seed=asked.seed,
            tell=tell,
        )
        left -= race.spent
        points.append(_point(sizes, fed, race, lanes, contestants, starts))
    return points


def _point(
    sizes: dict[str, int],
    fed: Feeds,
    race: rounds.Race,
    lanes: Sequence[Lane],
    contestants: Sequence[Contestant],
    starts: Sequence[tuple[Start, ...]],
) -> Point:
    reference = lanes[0].answers()
    timings: list[Timing] = []
    for index, (contestant, lane) in enumerate(zip(contestants, lanes, strict=False)):
        times = race.seconds[contestant.label]
        spread = statistics.spread(times)
        timings.append(
            Timing(
                label=contestant.label,
                seconds=times,
                median=spread.median,
                low_quartile=spread.low_quartile,
                high_quartile=spread.high_quartile,
                low_whisker=spread.low_whisker,
                high_whisker=spread.high_whisker,
                against_first=_recorded(race.comparison(contestant.label)) if index else None,
                starts=starts[index],
                disagrees=agreement.difference(lane.answers(), reference) if index else None,
            )
        )
    return Point(sizes, {name: _shape(value) for name, value in fed.items()}, race.floor(), tuple(timings))


def _recorded(found: statistics.Comparison) -> Comparison:
    return Comparison(found.ratio, found.low, found.high, found.floor, Finding(found.finding), found.rounds)


def _shape(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"  # pyright: ignore[reportUnknownMemberType,reportUnknownArgumentType]
    return "list" if isinstance(value, list) else "none"
