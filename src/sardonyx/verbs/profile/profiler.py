"""`sardonyx.profile`: measure where a model spends its time, by the modules of the original network.

The file is run unchanged, with the runtime's optimizations on. No names or tags are added, because the runtime does not
merge nodes that differ in an attribute, and would run another graph than the one that users run.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import onnx
import onnx_ir as ir
from msgspec import Struct

from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.inputs.generator import at_size, dynamic_dims
from sardonyx.ir import origins
from sardonyx.ir.io import to_proto
from sardonyx.ir.origins import Source, Tagged, distinct_labels, tagged
from sardonyx.ir.scopes import is_constant, label, scopes
from sardonyx.records import provenance as p
from sardonyx.records.bench import KernelTime, ModuleTime, Profile, ProfiledModel, Slice, TracedBy
from sardonyx.records.environment import environment
from sardonyx.records.progress import Clock, Progress
from sardonyx.runtime.library import Feeds
from sardonyx.runtime.timed import Level, Settings, TimedModel, weights_beside
from sardonyx.verbs.bench.bench import listed_sources
from sardonyx.verbs.bench.sessions import settings_of
from sardonyx.verbs.profile.kernel_origins import UNTRACED, GraphStep, Steps, Trace, as_run, of_file, through, trace
from sardonyx.verification.subject import Subject as ModelSubject

# Read the runtime's profile: its runs with their kernel calls, and which step of the graph each call belongs to.
#
# The runtime keeps about a million events and drops later ones; a run that lost events does not match the graph any
# more and is left out. The runtime runs the steps of the main graph in the order in which it saves them, so that calls
# are matched by position; names may repeat or be missing. In bodies of control flow they are matched by name.

MOST_EVENTS = 900_000  # up to which a profile is complete
_KERNEL = "_kernel_time"


class KernelCall(Struct, frozen=True, eq=False):
    """One call of a kernel; times in microseconds."""

    name: str
    op_type: str
    provider: str
    start: float
    duration: float  # including the calls of its body, if it has one


class Run(Struct, frozen=True, eq=False):
    """One run of the whole model; times in microseconds."""

    start: float
    duration: float
    calls: Sequence[KernelCall]  # in the order in which they ended: a call with a body comes after the calls inside it


class _Arguments(msgspec.Struct):
    op_name: str = ""
    provider: str = ""


class _Event(msgspec.Struct):
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: _Arguments = msgspec.field(default_factory=_Arguments)


def read(path: Path) -> list[Run]:
    """Return the runs of a profile that the runtime wrote, in order.

    Raises:
        RuntimeFailure: The file is not a profile of the runtime.
    """
    try:
        events = msgspec.json.decode(path.read_bytes(), type=list[_Event])
    except (OSError, msgspec.MsgspecError) as error:
        raise RuntimeFailure(f"ONNX Runtime's profile cannot be read: {error}") from error
    runs: list[Run] = []
    calls: list[KernelCall] = []
    for event in events:  # events are written when they end: that of a run comes right after those of its kernels
        if event.cat == "Node" and event.name.endswith(_KERNEL):
            name, provider = event.name.removesuffix(_KERNEL), event.args.provider.removesuffix("ExecutionProvider")
            calls.append(KernelCall(name, event.args.op_name, provider.lower(), event.ts, event.dur))
        elif event.name == "model_run":
            runs.append(Run(event.ts, event.dur, calls))
            calls = []
    return runs


class Match(Struct, frozen=True, eq=False):
    """One call of a step; `own` is its time in microseconds without that of the steps in its body."""

    step: GraphStep
    call: KernelCall
    own: float


def match(run: Run, graph: Steps) -> list[Match] | None:
    """Return the step of every call of a run, in the order of the calls; None if the run does not match the graph."""
    matches: list[Match] = []
    at = 0
    for step in graph.steps:
        end = _match_step(run.calls, at, step, matches)
        if end is None:
            return None
        at = end
    return matches if at == len(run.calls) else None


def _match_step(calls: Sequence[KernelCall], began: int, step: GraphStep, matches: list[Match]) -> int | None:
    """Match one call of a step, after those of its bodies; return the index after it, or None if it does not match."""
    before = len(matches)
    at: int | None = began
    while step.bodies and at is not None:
        is_here = at < len(calls) and _is_call_of(calls[at], step)
        if is_here and (at == began or calls[at].start <= calls[began].start):
            break  # the calls since `began`, if any, ran inside it
        ends = (_match_body(calls, at, body, matches) for body in step.bodies.values())
        at = next((end for end in ends if end is not None), None)
    if at is None or at >= len(calls) or not _is_call_of(calls[at], step):
        del matches[before:]
        return None
    own = calls[at].duration - sum(inner.own for inner in matches[before:])
    matches.append(Match(step, calls[at], max(0.0, own)))
    return at + 1


def _match_body(calls: Sequence[KernelCall], began: int, body: Steps, matches: list[Match]) -> int | None:
    """Match one run of a body; return the index after it, or None if it does not match or is empty.

    Bodies are saved in another order than they run in. Steps of the same operator without names are taken in the order
    of the file.
    """
    at, before, waiting = began, len(matches), list(body.steps)
    while waiting:
        ends = ((step, _match_step(calls, at, step, matches)) for step in waiting)
        step, end = next(((step, end) for step, end in ends if end is not None), (None, None))
        if step is None or end is None:
            del matches[before:]
            return None
        waiting.remove(step)
        at = end
    return at if at > began else None


def _is_call_of(call: KernelCall, step: GraphStep) -> bool:
    """Return whether operator and name agree; the runtime invents names for steps without one."""
    return call.op_type == step.op_type and (not step.name or call.name == step.name)


_LAYOUTS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")  # domains of kernels that use another layout
_UNSAVED = "the provider does not save the graph that it runs: kernels are traced by their names alone"


class Subject(Struct, frozen=True):
    """A model to be profiled."""

    tagged: Tagged
    source: Path | onnx.ModelProto
    feeds: Feeds
    settings: Settings
    folder: Path  # for temporary files

    def plain(self) -> Callable[[], object]:
        """Load the model without the profiler, and return a function that runs it."""
        return TimedModel(self.source, self.settings).ready(self.feeds)


class Profiled:
    """A model loaded with the profiler on."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        optimized = subject.folder / "optimized.onnx"
        profile = subject.folder / "profile"
        self._notes: list[str] = []
        self._graph: Steps | None = None
        try:
            self._session = saving(subject.source, subject.settings, optimized, profile)
            self._graph = as_run(optimized)
        except RuntimeFailure:  # a provider that compiles parts of the graph cannot save them
            self._session = TimedModel(subject.source, subject.settings, profile=profile)
            self._notes.append(_UNSAVED)
        self.run = self._session.ready(subject.feeds)

    @property
    def capacity(self) -> int:
        """The number of runs that fit into the runtime's profile."""
        graph = self._graph or of_file(self.subject.tagged.model.graph)
        return MOST_EVENTS // (len(graph.steps) + 2)

    def record(self, name: str, plain_ms: float, runs: int) -> ProfiledModel:
        """Return the times of the last runs by kernel and by module; the model cannot be run afterwards."""
        source = self.subject.tagged
        profiled = read(self._session.end_profile())[-runs:]
        del self._session, self.run  # tracing may have to load the model again
        calls = profiled[0].calls if profiled else ()  # if a provider does not save the graph, only they are known
        graph = self._graph or Steps([GraphStep(call.name, call.op_type, "", (), (), {}) for call in calls], {})
        matched = [(run, matches) for run in profiled if (matches := match(run, graph)) is not None]
        if not matched:
            raise RuntimeFailure("ONNX Runtime's profile does not match the graph that it ran")
        indices, kernels = kernel_times(matched, self._traces(graph))
        by_time = sorted(matched, key=lambda pair: pair[0].duration)
        middle, matches = by_time[len(by_time) // 2]
        lost = f"{len(profiled) - len(matched)} runs were left out because the runtime's profile of them is incomplete"
        untagged = [] if origins.is_tagged(source.model) else [p.UNTAGGED]
        return ProfiledModel(
            path=None if source.path is None else source.name,
            label=name,
            nodes=sum(not is_constant(node) for scope in scopes(source.model) for node in scope.graph),
            runs=len(matched),
            plain_ms=plain_ms,
            wall_ms=middle.duration / 1000,
            kernel_ms=sum(kernel.milliseconds for kernel in kernels),
            attributed_ms=sum(kernel.milliseconds for kernel in kernels if kernel.owner is not None),
            kernels=kernels,
            modules=module_times(kernels, source.hierarchy),
            timeline=timeline(middle, matches, indices),
            notes=(*self._notes, *([lost] if len(matched) < len(profiled) else []), *untagged),
        )

    def _traces(self, graph: Steps) -> dict[GraphStep, Trace]:
        """Trace the graph to the file; if layouts were changed, by way of the graph before, whose values have names."""
        file = of_file(self.subject.tagged.model.graph)
        if not any(step.domain in _LAYOUTS for step in graph.steps):
            return trace(graph, file)
        settings = self.subject.settings
        optimized = self.subject.folder / "before.onnx"
        saving(self.subject.source, Settings(settings.threads, settings.provider, Level.EXTENDED), optimized)
        before = as_run(optimized)
        return through(trace(graph, before), trace(before, file))


def saving(
    source: Path | onnx.ModelProto, settings: Settings, optimized: Path, profile: Path | None = None
) -> TimedModel:
    """Load a model, and save its graph as the runtime optimized it.

    The weights, which may be gigabytes and are not needed, are written to the null device if the system has one.
    """
    with contextlib.suppress(OSError, NotImplementedError):
        weights_beside(optimized).symlink_to(os.devnull)
    return TimedModel(source, settings, profile=profile, optimized=optimized)


# Times of kernels, and from them the times of the modules they belong to.

Matched = Sequence[tuple[Run, Sequence[Match]]]
_TAG_PATHS = ("__call", "__module_path")  # attributes in which some files store module paths, the more reliable first


def kernel_times(
    matched: Matched, traces: Mapping[GraphStep, Trace]
) -> tuple[dict[GraphStep, int], tuple[KernelTime, ...]]:
    """Return the index of each kernel's step, and the kernels in the order they run, with their median times."""
    times: dict[GraphStep, list[float]] = defaultdict(list)
    calls: dict[GraphStep, int] = {}
    first: dict[GraphStep, Match] = {}
    for _, matches in matched:
        spent: dict[GraphStep, float] = defaultdict(float)
        for entry in matches:
            spent[entry.step] += entry.own
            first.setdefault(entry.step, entry)
        calls |= Counter(entry.step for entry in matches)
        for step, microseconds in spent.items():
            times[step].append(microseconds)
    ordered = sorted(first, key=lambda step: first[step].call.start)
    of_steps = [_kernel(first[step], traces.get(step, UNTRACED), median(times[step]), calls[step]) for step in ordered]
    return {step: index for index, step in enumerate(ordered)}, tuple(of_steps)


def _kernel(entry: Match, trace: Trace, microseconds: float, calls: int) -> KernelTime:
    nodes = [step.node for step in trace.steps if step.node is not None]
    paths = p.merge(origins.origins(node) for node in nodes)
    owner, by = (p.owner_of(paths), trace.by) if nodes else (None, TracedBy.NOTHING)
    if not nodes and (tag := next((entry.step.tags[name] for name in _TAG_PATHS if name in entry.step.tags), None)):
        paths, owner, by = frozenset({tag}), tag, TracedBy.ATTRIBUTE
    return KernelTime(
        name=entry.step.name or entry.call.name,
        op_type=entry.step.operator,
        provider=entry.call.provider,
        nodes=tuple(sorted(label(node) for node in nodes)),
        origins=tuple(sorted(paths)),
        owner=owner,
        traced_by=by,
        milliseconds=microseconds / 1000,
        calls=calls,
    )


def timeline(run: Run, matches: Iterable[Match], indices: Mapping[GraphStep, int]) -> tuple[Slice, ...]:
    """Return the calls of one run by their start; a call with a body comes before the calls inside it."""
    slices = [Slice(indices[entry.step], entry.call.start - run.start, entry.call.duration) for entry in matches]
    return tuple(sorted(slices, key=lambda part: (part.start_us, -part.duration_us)))


def module_times(kernels: Sequence[KernelTime], hierarchy: p.Hierarchy) -> tuple[ModuleTime, ...]:
    """Return every module that kernels belong to and every module above it; further calls of a module are separate."""
    own: dict[str, list[KernelTime]] = defaultdict(list)
    total: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        if kernel.owner is not None:
            own[kernel.owner].append(kernel)
            for path in p.lineage(kernel.owner):
                total[path] += kernel.milliseconds
    whole = sum(kernel.milliseconds for kernel in kernels) or 1.0
    times: list[ModuleTime] = []
    for path in sorted(total, key=lambda path: path.split(".")):
        spent = sum((kernel.milliseconds for kernel in own[path]), 0.0)
        calls, share = sum(kernel.calls for kernel in own[path]), total[path] / whole
        times.append(ModuleTime(path, hierarchy.tag(path), spent, total[path], len(own[path]), calls, share))
    return tuple(times)


WARM_UP_RUNS = 2  # runs that are not counted
MIN_RUNS, MAX_RUNS = 5, 100  # runs by default
MIN_SLOW_RUNS = 3  # runs if five take longer than `SECONDS`
SECONDS = 3.0  # for the profiled runs of all files by default
PLAIN_SECONDS = 1.0  # for the runs without the profiler


def profile(
    files: Source | Sequence[Source],
    *,
    sizes: Mapping[str, int] | None = None,
    at: Sequence[Mapping[str, int]] = (),
    threads: int = 1,
    provider: str = "cpu",
    level: Level | str = Level.ALL,
    runs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Profile:
    """Time the kernels of one or more models, and sum them by the modules of the original network.

    Args:
        files: Model files, `ModelProto`s or `onnx_ir.Model`s; several are run in turns on the same inputs.
        sizes: Sizes of dynamic dimensions by name; the others get default sizes.
        at: Further sizes, each of which adds a column for each file, such as prefill and decode of a decoder.
        threads: Threads within an operator.
        provider: Execution provider of the runtime: "cpu", "cuda" and so on.
        level: How far the runtime may optimize: "off", "basic", "extended", "layout" or "all".
        runs: The number of runs to take the median of; None runs for a few seconds.
        seed: Seed of the inputs.
        progress: Called with the phase and the fraction done.

    Raises:
        UsageError: There is no file, or a size, level or provider is unknown.
        RuntimeFailure: The runtime cannot load or run a model.
    """
    return profile_timed(files, (), sizes, at, threads, provider, level, runs, seed, progress)


def profile_timed(
    files: Source | Sequence[Source],
    plain_ms: Sequence[float],
    sizes: Mapping[str, int] | None,
    at: Sequence[Mapping[str, int]] = (),
    threads: int = 1,
    provider: str = "cpu",
    level: Level | str = Level.ALL,
    runs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Profile:
    """Profile models like `profile`; `plain_ms` are the times of a run of each that were measured before, if any."""
    settings = settings_of(threads, provider, level)
    if runs is not None and runs < 1:
        raise UsageError(f"{runs} runs measure nothing", hint="ask for one at least")
    sources = listed_sources(files)
    if not sources:
        raise UsageError("there is no model to profile", hint="name one or more files")
    clock = Clock(progress)
    with temporary_folder() as folder:
        with clock.phase("load"):
            loaded = [tagged(source) for source in sources]
            session = ModelSubject(loaded[0].path or loaded[0].model).any_session
            given = [{**(sizes or {}), **point} for point in at or ({},)]
            points = [dynamic_dims(loaded[0].model, point, session) for point in given]  # sizes that the model accepts
            subjects = [
                Subject(model, model.path or to_proto(model.model), feeds, settings, Path(tempfile.mkdtemp(dir=folder)))
                for point in points
                for model, feeds in zip(loaded, _feeds([each.model for each in loaded], point, seed), strict=True)
            ]
        with clock.phase("run plain"):
            plain = list(plain_ms) or _plain(subjects)
        with clock.phase("run profiled"):
            profiled = [Profiled(subject) for subject in subjects]
            done = _run([each.run for each in profiled], runs, min(each.capacity for each in profiled), clock.tell)
        with clock.phase("trace"):
            models = tuple(
                subject.record(name, milliseconds, done)
                for subject, name, milliseconds in zip(profiled, _labels(loaded, at), plain, strict=True)
            )
    options: dict[str, Any] = {
        "threads": threads,
        "provider": provider,
        "level": settings.level.value,
        "sizes": dynamic_dims(loaded[0].model, sizes) if at else points[0],
        **({"at": [dict(point) for point in at]} if at else {}),
        "seed": seed,
        "runs": done,
    }
    return Profile(environment(), options, models, {name: round(spent, 6) for name, spent in clock.seconds.items()})


def _plain(subjects: Sequence[Subject]) -> list[float]:
    """Return the milliseconds of a run of each model without the profiler; the models take turns."""
    ready = [subject.plain() for subject in subjects]
    times: list[list[float]] = [[] for _ in ready]
    ends = time.perf_counter() + PLAIN_SECONDS
    while len(times[0]) < WARM_UP_RUNS + MIN_RUNS or (
        time.perf_counter() < ends and len(times[0]) < WARM_UP_RUNS + MAX_RUNS
    ):
        for run, seconds in zip(ready, times, strict=True):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
    return [1000 * median(seconds[WARM_UP_RUNS:]) for seconds in times]


def _run(ready: Sequence[Callable[[], object]], runs: int | None, capacity: int, progress: Progress) -> int:
    """Run all models in turns, so that other load affects them alike; return the number of counted runs of each."""
    began = time.perf_counter()
    for _ in range(WARM_UP_RUNS):
        for run in ready:
            run()
    a_round = (time.perf_counter() - began) / WARM_UP_RUNS
    fewest = MIN_RUNS if MIN_RUNS * a_round <= SECONDS else MIN_SLOW_RUNS
    wanted = runs or max(fewest, min(MAX_RUNS, int(SECONDS / a_round)))
    wanted = max(1, min(wanted, capacity - WARM_UP_RUNS))
    for done in range(wanted):
        for run in ready:
            run()
        progress("run profiled", (done + 1) / wanted)
    return wanted


def _feeds(models: Sequence[ir.Model], sizes: Mapping[str, int] | None, seed: int) -> list[Feeds]:
    """Return the first model's feeds for all models; inputs that only another model has are generated for it."""
    first = at_size(models[0], sizes, seed=seed)
    feeds = [first]
    for model in models[1:]:
        needed = {value.name for value in model.graph.inputs if not value.is_initializer()}
        own = {name: size for name, size in (sizes or {}).items() if name in dynamic_dims(model)}
        feeds.append(first if needed <= first.keys() else {**at_size(model, own, seed=seed), **first})
    return feeds


def _labels(models: Sequence[Tagged], at: Sequence[Mapping[str, int]]) -> list[str]:
    """Return short, distinct names of the columns: by size, by file, or by both."""
    names = distinct_labels([model.name for model in models])
    sizes = [" ".join(f"{dim}={size}" for dim, size in point.items()) for point in at]
    if len(names) == 1 and sizes:
        return sizes
    return [f"{name} {size}".strip() for size in sizes or [""] for name in names]
