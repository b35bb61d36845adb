"""`sardonyx.bench`: how long models take against each other, how sure that is, and what starting them costs."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sardonyx.errors import UsageError
from sardonyx.measurement import feeds, machine
from sardonyx.measurement.entrants import Contestant, Files, entered, told_of
from sardonyx.measurement.sessions import Timepiece
from sardonyx.measurement.trial import Conditions, Field, Planned, started
from sardonyx.measurement.warnings import remarks
from sardonyx.records.bench import Benchmark, Point, Start
from sardonyx.records.environment import environment
from sardonyx.records.input_specs import check_names, read_arrays
from sardonyx.records.progress import Clock, Progress
from sardonyx.runtime.timed import Level, Settings

# The sizes that models are timed at: every combination of what is swept, beside what is fixed.

MOST = 1000  # combinations: more is a slip of the hand, and would take a day


def points(sizes: Mapping[str, int] | None, sweep: Mapping[str, Sequence[int]] | None) -> list[dict[str, int]]:
    """Sizes by dim, one dict a combination; the last dim that is swept changes fastest.

    Raises:
        UsageError: for a dim that is both fixed and swept, a size below 1, or far too many combinations.
    """
    fixed, swept = dict(sizes or {}), {dim: tuple(dict.fromkeys(each)) for dim, each in (sweep or {}).items()}
    for dim in swept:
        if dim in fixed:
            raise UsageError(f"{dim} is given one size and swept too", hint="give one of the two")
        if not swept[dim]:
            raise UsageError(f"{dim} is swept over no sizes", hint="name some: `sweep={'seq': 16,128}`")
    for dim, size in [*fixed.items(), *((dim, size) for dim, each in swept.items() for size in each)]:
        if size < 1:
            raise UsageError(f"{dim} cannot be {size}", hint="sizes begin at 1")
    combinations = 1
    for each in swept.values():
        combinations *= len(each)
    if combinations > MOST:
        raise UsageError(f"the sweep has {combinations} combinations", hint=f"at most {MOST} are timed at once")
    return [fixed | dict(zip(swept, chosen, strict=True)) for chosen in itertools.product(*swept.values())]


STARTS = 3
Given = str | Path | Mapping[str, Any] | None


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
    clock: str = "wall",
    isolate: bool = False,
    starts: int = STARTS,
    seed: int = 0,
    progress: Progress | None = None,
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
        clock: "wall" counts the time that passes, "cpu" only what the processor spends on the model: steadier where
            others use the machine too, and for one thread only.
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
    asked = Conditions(Settings(threads, provider, _level(level)), _timepiece(clock, threads, provider), isolate, seed)
    if not seconds > 0:
        raise UsageError(f"nothing can be timed in {seconds:g} seconds", hint="give it some, for example 60")
    phases = Clock(progress)
    load_before, busy_before = machine.load(), machine.busy_now()
    with tempfile.TemporaryDirectory(prefix="sardonyx-") as folder, contextlib.ExitStack() as held:
        with phases.phase("reading"):
            contestants = entered(files, Path(folder))
            plan = list(_plan(contestants[0], sizes, sweep, inputs, seed))
        with phases.phase("starting"):
            fresh = [started(contestants, each, asked, starts if each is plan[0] else min(1, starts)) for each in plan]
        with phases.phase("loading"):
            field = Field(contestants, asked, held)
        watch = machine.Watch(field.processes)
        with phases.phase("timing"):
            points = tuple(_timed(field, plan, fresh, seconds, phases.tell))
        busy_during = watch.share()
    chosen = points[0].sizes if inputs is not None else {*(sizes or ()), *(sweep or ())}
    used = machine.described(load_before=load_before, busy_before=busy_before, busy_during=busy_during)
    return Benchmark(
        environment=environment(),
        machine=used,
        options={
            "seconds": seconds,
            "threads": threads,
            "provider": provider,
            "level": str(asked.settings.level),
            "clock": str(asked.clock),
            "isolate": isolate,
            "starts": starts,
            "seed": seed,
            "sizes": dict(sizes or {}),
            "sweep": {dim: list(each) for dim, each in (sweep or {}).items()},
            "inputs": "given" if inputs is not None else "drawn",
        },
        files=tuple(each.file for each in contestants),
        points=points,
        seconds=phases.seconds,
        notes=tuple(remarks(points, used, asked, chosen)),
    )


def _level(name: str) -> Level:
    try:
        return Level(name)
    except ValueError:
        raise UsageError(f"the runtime has no level {name!r}", hint=f"one of {', '.join(Level)}") from None


def _timepiece(name: str, threads: int, provider: str) -> Timepiece:
    if name not in tuple(Timepiece):
        raise UsageError(f"there is no clock {name!r}", hint=f"one of {', '.join(Timepiece)}")
    if name == Timepiece.CPU and (threads != 1 or provider != "cpu"):
        raise UsageError("the cpu clock counts one thread of the cpu only", hint="time by the wall clock")
    return Timepiece(name)


def _plan(
    first: Contestant,
    sizes: Mapping[str, int] | None,
    sweep: Mapping[str, Sequence[int]] | None,
    inputs: Given,
    seed: int,
) -> Iterator[Planned]:
    """Each size with the feeds at that size."""
    if inputs is not None:
        if sizes or sweep:
            raise UsageError("given inputs have their sizes", hint="leave out either the inputs or the sizes")
        given = read_arrays(Path(inputs)) if isinstance(inputs, (str, Path)) else dict(inputs)
        check_names(given, [value.name or "" for value in first.model.graph.inputs])
        yield Planned(feeds.sizes_of(first.model, given), given, "it was run on the inputs that were given")
        return
    assumed = feeds.open_dims(first.model)
    for each in points(sizes, sweep):
        chosen = assumed | each
        with told_of(first.label):
            drawn = feeds.at_size(first.model, each, seed=seed)
        said = ", ".join(f"{dim}={size}" for dim, size in chosen.items())
        yield Planned(chosen, drawn, f"it was run at {said}; choose other sizes of open dims" if said else None)


def _timed(
    field: Field,
    plan: Sequence[Planned],
    fresh: Sequence[Sequence[tuple[Start, ...]]],
    seconds: float,
    tell: Progress,
) -> Iterator[Point]:
    """All sizes in turn; what one of them leaves of its share of the time goes to those after it."""
    left = seconds
    for index, (planned, starts) in enumerate(zip(plan, fresh, strict=True)):
        which = "timing" if len(plan) == 1 else f"timing size {index + 1} of {len(plan)}"

        def told(phase: str, fraction: float | None, index: int = index, which: str = which) -> None:
            tell(f"{which}, {phase}", None if fraction is None else (index + fraction) / len(plan))

        race = field.race(planned, max(0.0, left / (len(plan) - index)), told)
        left -= race.spent
        yield field.point(planned, race, starts)
