"""`sardonyx.bench`: time models against each other, with confidence intervals, load times and peak memory."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import random
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import asdict, replace

from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import SardonyxError, UsageError
from sardonyx.inputs.generator import at_size, dynamic_dims, sizes_of
from sardonyx.ir import io
from sardonyx.ir.origins import Source, distinct_labels, tagged
from sardonyx.records.bench import BenchFile, Benchmark, Finding, Machine, Point, Start, Timing
from sardonyx.records.environment import environment
from sardonyx.records.input_specs import check_names, read_arrays
from sardonyx.records.progress import Clock, Progress
from sardonyx.runtime import Array, Feeds, Value
from sardonyx.runtime.sessions import Runtime
from sardonyx.runtime.timed import Settings
from sardonyx.verbs.analyze.census import Census
from sardonyx.verbs.bench import interleaving, machine, sessions, statistics
from sardonyx.verbs.bench.sessions import (
    IsolatedSession,
    LocalSession,
    SlotOptions,
    TimedSession,
    TimingClock,
    settings_of,
    timed_runtimes,
)
from sardonyx.verification.subject import Subject

Files: TypeAlias = "Source | Sequence[Source] | Mapping[str, Source]"


class Entrant(Struct, frozen=True):
    """One model to be timed, as a file."""

    file: BenchFile
    path: Path  # the file that the runtime loads
    model: ir.Model
    runtime: Runtime = Runtime.ORT

    @property
    def label(self) -> str:
        """Its short name."""
        return self.file.label


def read_entrants(files: Files, folder: Path) -> list[Entrant]:
    """Read the models to be timed; models in memory are written into the folder.

    Raises:
        UsageError: There is no model.
        ModelError: A file cannot be read.
    """
    named = files if isinstance(files, Mapping) else None
    sources = list(files.values()) if isinstance(files, Mapping) else listed_sources(files)
    if not sources:
        raise UsageError("there is no model to time", hint="name one or more ONNX files")
    models = [tagged(source) for source in sources]
    labels = list(named) if named is not None else distinct_labels([model.name for model in models])
    entrants: list[Entrant] = []
    with ThreadPoolExecutor() as pool:  # files are hashed together
        hashes = [None if model.path is None else io.sha256_in(pool, model.path) for model in models]
        for label, model, digest in zip(labels, models, hashes, strict=True):
            path = model.path or folder / f"{len(entrants)}.onnx"
            if model.path is None:
                io.save(model.model, path, durable=False)
            file = BenchFile(
                label=label,
                path=None if model.path is None else os.fsencode(path).decode(errors="replace"),
                sha256=digest and digest.result(),
                bytes=path.stat().st_size,
                nodes=Census.of(model.model).counts.nodes,
            )
            entrants.append(Entrant(file, path, model.model))
    return entrants


def in_runtimes(entrants: Sequence[Entrant], runtimes: Sequence[Runtime]) -> list[Entrant]:
    """Return every entrant in every runtime, those of the first runtime first; several are part of the name."""
    several = len(runtimes) > 1
    pairs = [(one, runtime) for runtime in runtimes for one in entrants]
    labels = [f"{one.label} in {runtime}" if several else one.label for one, runtime in pairs]
    return [
        Entrant(replace(one.file, label=label), one.path, one.model, runtime)
        for (one, runtime), label in zip(pairs, labels, strict=True)
    ]


def listed_sources(files: Source | Sequence[Source]) -> list[Source]:
    """Return one model or several as a list."""
    return [files] if isinstance(files, (str, os.PathLike, onnx.ModelProto, ir.Model)) else list(files)


@contextlib.contextmanager
def naming(label: str, hint: str | None = None) -> Generator[None]:
    """Add the name of a file to errors raised inside, and this hint if they have none."""
    try:
        yield
    except SardonyxError as error:
        raise type(error)(f"{label}: {error.message}", hint=error.hint or hint) from error


# One size of a benchmark: fresh starts of every model, the race, and the record of both.


class PlannedSize(Struct, frozen=True):
    """A size to time models at."""

    sizes: dict[str, int]
    feeds: Feeds
    hint: str | None  # shown if a model cannot be run on the feeds


class Conditions(Struct, frozen=True):
    """The settings shared by all sizes."""

    settings: Settings
    clock: TimingClock
    isolate: bool
    seed: int
    is_native: bool = True  # everything runs in ONNX Runtime

    @property
    def runs_alone(self) -> bool:
        """Whether a run takes place in the calling thread alone."""
        return self.settings.threads == 1 and self.settings.provider == "cpu" and self.is_native


def fresh_starts(
    entrants: Sequence[Entrant], planned: PlannedSize, times: int, conditions: Conditions, seconds: float
) -> list[tuple[Start, ...]]:
    """Start each model in a fresh process this many times, in a new order each time.

    There are fewer rounds of starts, but at least one, if these would take longer than `seconds` of CPU time. CPU time
    belongs to the models: on a busy machine they start as often as on an idle one, only later.
    """
    starts: list[list[Start]] = [[] for _ in entrants]
    shuffle, order = random.Random(conditions.seed).shuffle, list(range(len(entrants)))
    began = cpu_of_children()
    for number in range(times):
        if number and (cpu_of_children() - began) * (number + 1) / number > seconds:
            break
        shuffle(order)
        for index in order:
            with naming(entrants[index].label, planned.hint):
                settings = replace(conditions.settings, runtime=entrants[index].runtime)
                starts[index].append(sessions.start(entrants[index].path, settings, planned.feeds))
    return [tuple(of_entrant) for of_entrant in starts]


def cpu_of_children() -> float:
    """Return the CPU seconds of the processes that this one has waited for; 0 where the system does not count them."""
    times = os.times()
    return times.children_user + times.children_system


class Sessions:
    """A session for every model, and a second one for the first model, which shows the noise."""

    def __init__(self, entrants: Sequence[Entrant], conditions: Conditions, stack: contextlib.ExitStack) -> None:
        self._entrants = entrants
        self._runners = (*entrants, entrants[0])
        self._conditions = conditions
        self._sessions: list[TimedSession] = []
        for runner in self._runners:
            kind = IsolatedSession if conditions.isolate or runner.runtime is Runtime.WEB_WASM else LocalSession
            with naming(runner.label):
                session = kind(runner.path, replace(conditions.settings, runtime=runner.runtime))
            stack.callback(session.close)
            self._sessions.append(session)

    @property
    def runtimes(self) -> str:
        """The names of the runtimes, with their versions."""
        return " and ".join(dict.fromkeys(session.name for session in self._sessions))

    @property
    def processes(self) -> list[int]:
        """The ids of the processes of isolated sessions."""
        return [session.process for session in self._sessions if isinstance(session, IsolatedSession)]

    def race(self, planned: PlannedSize, seconds: float, progress: Progress) -> interleaving.Race:
        """Time all models in turns at one size; contenders are named by their index."""
        # Shorter slots let the smallest number of rounds fit into little time.
        slot = min(interleaving.SLOT_SECONDS, seconds / (interleaving.MIN_ROUNDS * len(self._sessions)))
        options = SlotOptions(slot, self._conditions.clock)
        a_round = 0.0
        for session, runner in zip(self._sessions, self._runners, strict=True):
            with naming(runner.label, planned.hint):
                a_round += max(slot, session.feed(planned.feeds, options))
        is_slow = interleaving.MIN_ROUNDS * a_round > max(seconds, interleaving.SLOW_SECONDS)

        def turn(index: int) -> float:
            with naming(self._runners[index].label):
                return self._sessions[index].turn()

        *turns, twin = [functools.partial(turn, index) for index in range(len(self._sessions))]
        runs = {str(index): turn for index, turn in enumerate(turns)}
        return interleaving.race(
            runs,
            twin=twin,
            seconds=seconds,
            fewest=interleaving.MIN_SLOW_ROUNDS if is_slow else interleaving.MIN_ROUNDS,
            seed=self._conditions.seed,
            progress=progress,
        )

    def point(self, planned: PlannedSize, race: interleaving.Race, starts: Sequence[tuple[Start, ...]]) -> Point:
        """Return the record of one size."""
        reference = self._sessions[0].outputs()
        timings = [self._timing(index, race, starts[index], reference) for index in range(len(self._entrants))]
        inputs = {name: _shape(value) for name, value in planned.feeds.items()}
        return Point(planned.sizes, inputs, race.floor(), tuple(timings))

    def _timing(self, index: int, race: interleaving.Race, starts: tuple[Start, ...], reference: list[Any]) -> Timing:
        times = race.seconds[str(index)]
        return Timing(
            label=self._entrants[index].label,
            seconds=times,
            **asdict(statistics.spread(times)),
            against_first=race.comparison(str(index)) if index else None,
            starts=starts,
            disagrees=output_difference(self._sessions[index].outputs(), reference) if index else None,
        )


def _shape(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return "list" if isinstance(value, list) else "none"


# A benchmark of models that compute different things is misleading, and its numbers do not show it. The tolerance is
# loose; `verify` is stricter.

OUTPUT_TOLERANCE = 0.05  # of the largest number of an output; lower precision and other kernels cause far less


def output_difference(ours: Sequence[Value], theirs: Sequence[Value]) -> str | None:
    """Return how outputs clearly differ from those of the first file, in one line; None if they do not."""
    if len(ours) != len(theirs):
        return f"it has {len(ours)} outputs, the first file has {len(theirs)}"
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True), 1):
        line = _of_values(mine, other)
        if line is not None:
            return f"output {index} {line}"
    return None


def _of_values(mine: Value, other: Value) -> str | None:
    if isinstance(mine, np.ndarray) and isinstance(other, np.ndarray):
        return _of_arrays(mine, other)
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        return next((line for pair in zip(mine, other, strict=True) if (line := _of_values(*pair))), None)
    return None if type(mine) is type(other) and not isinstance(mine, list) else "is of another kind"


def _of_arrays(mine: Array, other: Array) -> str | None:
    if mine.shape != other.shape:
        return f"has the shape {list(mine.shape)}, not {list(other.shape)}"
    if mine.dtype.kind not in "fiu" or other.dtype.kind not in "fiu":
        return None if mine.dtype.kind == other.dtype.kind else f"is {mine.dtype}, not {other.dtype}"
    ours, theirs = mine.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(finite, np.isfinite(ours)):
        return "is not finite where the first file's is, or the other way round"
    largest = _largest(theirs[finite])
    gap = _largest(ours[finite] - theirs[finite])
    if gap <= OUTPUT_TOLERANCE * largest or gap <= 1e-6:
        return None
    return f"differs by up to {100 * gap / (largest or gap):.0f} % of its largest number"


def _largest(numbers: Any) -> float:
    return float(np.abs(numbers).max()) if numbers.size else 0.0


MAX_COMBINATIONS = 1000  # combinations of a sweep; more are a mistake, and would take a day


def points(sizes: Mapping[str, int] | None, sweep: Mapping[str, Sequence[int]] | None) -> list[dict[str, int]]:
    """Return the sizes to time at: the fixed ones with every combination of the swept ones, the last changing fastest.

    Raises:
        UsageError: A dimension is both fixed and swept, a size is below 1, or there are too many combinations.
    """
    fixed, swept = dict(sizes or {}), {dim: tuple(dict.fromkeys(values)) for dim, values in (sweep or {}).items()}
    for dim in swept:
        if dim in fixed:
            raise UsageError(f"{dim} has a fixed size and is swept too", hint="give one of the two")
        if not swept[dim]:
            raise UsageError(f"{dim} is swept over no sizes", hint="name some: `sweep={'seq': [16, 128]}`")
    for dim, size in [*fixed.items(), *((dim, size) for dim, values in swept.items() for size in values)]:
        if size < 1:
            raise UsageError(f"{dim} cannot be {size}", hint="sizes begin at 1")
    combinations = math.prod(map(len, swept.values()))
    if combinations > MAX_COMBINATIONS:
        raise UsageError(
            f"the sweep has {combinations} combinations", hint=f"at most {MAX_COMBINATIONS} are timed at once"
        )
    return [fixed | dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]


STARTS = 3
STARTS_SECONDS, STARTS_SHARE = 6.0, 0.5  # CPU time that starts may take, or this share of the time limit


def starts_limit(seconds: float) -> float:
    """Return how long fresh starts may take beside timing of this many seconds."""
    return max(STARTS_SECONDS, STARTS_SHARE * seconds)


ExampleInputs = str | Path | Mapping[str, Any] | None


def bench(
    files: Files,
    *,
    seconds: float = 60.0,
    sizes: Mapping[str, int] | None = None,
    sweep: Mapping[str, Sequence[int]] | None = None,
    inputs: ExampleInputs = None,
    threads: int = 1,
    runtimes: Sequence[str] = ("ort",),
    provider: str = "cpu",
    level: str = "all",
    clock: str = "wall",
    isolate: bool = False,
    starts: int = STARTS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Benchmark:
    """Time models in turns on the same inputs, with the same settings, and compare each with the first.

    Args:
        files: ONNX files or models in memory, the reference first; a mapping names them.
        seconds: The longest time of all turns together, shared by the sizes of a sweep. Timing ends early if the result
            is clear. Loading and fresh starts come on top.
        sizes: Sizes of dynamic dimensions of the first model; by default 1 for the first dimension of an input and 128
            for others.
        sweep: Sizes to try for a dimension; several dimensions are tried in all combinations.
        inputs: An .npz file or arrays by name to run on, in place of generated inputs.
        threads: Threads within an operator. One gives the most stable times; otherwise use what you will deploy with.
        runtimes: "ort", "openvino", or "web-wasm": onnxruntime-web in Chromium, by WebAssembly. Each model is timed in
            each; the reference is the first model in the first runtime.
        provider: Execution provider of ONNX Runtime: "cpu", "cuda" and so on.
        level: How far ONNX Runtime may optimize by itself: off, basic, extended, layout, all.
        clock: "wall" counts elapsed time; "cpu" counts only the CPU time of the model, which is more stable on a shared
            machine and works with one thread only.
        isolate: Run each model in its own process.
        starts: How often each model is started in a fresh process, for load time, first run and peak memory; fewer if
            the starts take more CPU time than 6 seconds and than half of `seconds`. Sizes of a sweep after the first
            get at most one start. 0 turns this off.
        seed: Seed of the generated inputs, the order of turns and the intervals.
        progress: Called with the phase and the fraction done.

    Raises:
        UsageError: Options contradict each other, or the inputs do not fit a model.
        ModelError: A file cannot be read.
        RuntimeFailure: The runtime cannot load or run a model.
    """
    chosen_runtimes = timed_runtimes(runtimes, provider)
    settings = settings_of(threads, provider, level)
    if clock not in tuple(TimingClock):
        raise UsageError(f"there is no clock {clock!r}", hint=f"one of {', '.join(TimingClock)}")
    conditions = Conditions(settings, TimingClock(clock), isolate, seed, chosen_runtimes == [Runtime.ORT])
    if conditions.clock is TimingClock.CPU and not conditions.runs_alone:
        raise UsageError("the cpu clock counts one thread of ONNX Runtime only", hint="time by the wall clock")
    if not seconds > 0:
        raise UsageError(f"nothing can be timed in {seconds:g} seconds", hint="allow some time, for example 60")
    phases = Clock(progress)
    load_before, busy_before = machine.load(), machine.busy_now()
    with temporary_folder() as folder, contextlib.ExitStack() as stack:
        with phases.phase("reading"):
            entrants = in_runtimes(read_entrants(files, Path(folder)), chosen_runtimes)
            plan = list(_plan(entrants[0], sizes, sweep, inputs, seed))
        with phases.phase("starting"):
            times = [starts if index == 0 else min(1, starts) for index in range(len(plan))]
            limit = starts_limit(seconds)
            fresh = [fresh_starts(entrants, *planned, conditions, limit) for planned in zip(plan, times, strict=True)]
        with phases.phase("loading"):
            sessions = Sessions(entrants, conditions, stack)
        watch = machine.Watch(sessions.processes)
        with phases.phase("timing"):
            points = tuple(_timed(sessions, plan, fresh, seconds, phases.tell))
        busy_during = watch.share()
    chosen = points[0].sizes if inputs is not None else {*(sizes or ()), *(sweep or ())}
    description = machine.describe(load_before=load_before, busy_before=busy_before, busy_during=busy_during)
    return Benchmark(
        environment=environment(),
        machine=description,
        options={
            "seconds": seconds,
            "threads": threads,
            "runtime": sessions.runtimes,
            "provider": provider,
            "level": str(settings.level),
            "clock": str(conditions.clock),
            "isolate": isolate,
            "starts": starts,
            "seed": seed,
            "sizes": dict(sizes or {}),
            "sweep": {dim: list(values) for dim, values in (sweep or {}).items()},
            "inputs": "given" if inputs is not None else "generated",
        },
        files=tuple(entrant.file for entrant in entrants),
        points=points,
        seconds=phases.seconds,
        notes=tuple(notes(points, description, conditions, chosen)),
    )


def _plan(
    first: Entrant,
    sizes: Mapping[str, int] | None,
    sweep: Mapping[str, Sequence[int]] | None,
    inputs: ExampleInputs,
    seed: int,
) -> Iterator[PlannedSize]:
    """Yield each size with the feeds for it."""
    if inputs is not None:
        if sizes or sweep:
            raise UsageError("example inputs have fixed sizes", hint="leave out either the inputs or the sizes")
        arrays = read_arrays(Path(inputs)) if isinstance(inputs, (str, Path)) else dict(inputs)
        check_names(arrays, [value.name or "" for value in first.model.graph.inputs])
        yield PlannedSize(sizes_of(first.model, arrays), arrays, "it was run on the example inputs")
        return
    for point in points(sizes, sweep):
        with naming(first.label):
            chosen = dynamic_dims(first.model, point, Subject(first.path).any_session)
            generated = at_size(first.model, chosen, seed=seed)
        listed = ", ".join(f"{dim}={size}" for dim, size in chosen.items())
        hint = f"it was run at {listed}; choose other sizes of dynamic dimensions" if listed else None
        yield PlannedSize(chosen, generated, hint)


def _timed(
    sessions: Sessions,
    plan: Sequence[PlannedSize],
    fresh: Sequence[Sequence[tuple[Start, ...]]],
    seconds: float,
    progress: Progress,
) -> Iterator[Point]:
    """Time all sizes; time that one size does not need goes to those after it."""
    left = seconds
    for index, (planned, starts) in enumerate(zip(plan, fresh, strict=True)):
        which = "timing" if len(plan) == 1 else f"timing size {index + 1} of {len(plan)}"

        def report(phase: str, fraction: float | None, index: int = index, which: str = which) -> None:
            progress(f"{which}, {phase}", None if fraction is None else (index + fraction) / len(plan))

        race = sessions.race(planned, max(0.0, left / (len(plan) - index)), report)
        left -= race.spent
        yield sessions.point(planned, race, starts)


def notes(points: Sequence[Point], used: Machine, conditions: Conditions, chosen: Collection[str]) -> Iterator[str]:
    """Yield the notes, one line each; `chosen` are dynamic dimensions whose size the user chose."""
    assumed = {dim: size for dim, size in points[0].sizes.items() if dim not in chosen}
    if assumed:
        listed = ", ".join(f"{dim}={size}" for dim, size in assumed.items())
        how = "`sizes={'NAME': N}` sets one, `sweep={'NAME': [N, N]}` several"
        yield f"assumed sizes of dynamic dimensions: {listed}; {how}"
    if (busy := used.busy) is not None:
        remedy = ""
        if conditions.runs_alone and conditions.clock is TimingClock.WALL:
            remedy = '; `clock="cpu"` does not count their time'
        yield (
            f"the machine is busy: other processes used {100 * busy:.0f} % of the CPU, which widens the intervals; "
            f"differences below {100 * max(map(_smallest_visible, points)):.1f} % are within the noise{remedy}"
        )
    if conditions.settings.threads > used.cores:
        yield f"{conditions.settings.threads} threads share {used.cores} cores, which makes all of them slower"
    if any(_medians_mislead(point) for point in points):
        yield (
            "medians and ratios disagree: the speed of the machine changed during the measurement, "
            "which affects medians but not ratios, which are taken within rounds"
        )
    noted: set[str] = set()
    for timing in (timing for point in points for timing in point.timings):
        if timing.disagrees is not None and timing.label not in noted:  # the other sizes differ alike
            noted.add(timing.label)
            yield (
                f"the outputs of {timing.label} differ from those of the first file: {timing.disagrees}; "
                "they may not compute the same (`sardonyx verify` compares them)"
            )


def _smallest_visible(point: Point) -> float:
    """Return the smallest relative difference that noise and intervals do not hide."""
    compared = [timing.against_first for timing in point.timings if timing.against_first is not None]
    return max([point.floor, *((comparison.high - comparison.low) / 2 for comparison in compared)])


def _medians_mislead(point: Point) -> bool:
    """Return whether some file has a larger median than the first but is faster by its ratios, or the reverse."""
    first = point.timings[0].median
    compared = [(timing.median - first, timing.against_first) for timing in point.timings]
    sign = {Finding.FASTER: 1, Finding.SLOWER: -1, Finding.SAME: 0}
    return any(by_ratio is not None and sign[by_ratio.finding] * gap > 0 for gap, by_ratio in compared)
