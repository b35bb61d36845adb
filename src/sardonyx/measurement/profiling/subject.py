"""Run one model under the runtime's profiler and join its profile with the graph of the file."""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec
import onnx
from msgspec import Struct

from sardonyx import provenance as p
from sardonyx.errors import RuntimeFailure
from sardonyx.ir import origins
from sardonyx.ir.scopes import label
from sardonyx.ir.tagged_model import Tagged
from sardonyx.measurement.profiling import steps
from sardonyx.measurement.profiling.kernel_origins import UNTRACED, Trace, through, trace
from sardonyx.measurement.profiling.steps import GraphStep, Steps
from sardonyx.records.profile import KernelTime, ModuleTime, Slice, TracedBy
from sardonyx.runtime.timed import Level, Settings, TimedModel, weights_beside
from sardonyx.runtime.values import Feeds

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
            name, args = event.name.removesuffix(_KERNEL), event.args
            calls.append(KernelCall(name, args.op_name, _short(args.provider), event.ts, event.dur))
        elif event.name == "model_run":
            runs.append(Run(event.ts, event.dur, calls))
            calls = []
    return runs


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider").lower()


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
    while step.bodies and at is not None and not _encloses(calls, began, at, step):
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


def _encloses(calls: Sequence[KernelCall], began: int, at: int, step: GraphStep) -> bool:
    """Return whether a call is that of the step, and the calls since `began`, if any, ran inside it."""
    return at < len(calls) and _is_call_of(calls[at], step) and (at == began or calls[at].start <= calls[began].start)


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


class JoinedProfile(Struct, frozen=True):
    """A profile joined with the graph of the file."""

    runs: int
    wall_ms: float
    kernels: tuple[KernelTime, ...]
    modules: tuple[ModuleTime, ...]
    timeline: tuple[Slice, ...]
    notes: tuple[str, ...]


class Profiled:
    """A model loaded with the profiler on."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        optimized = subject.folder / "optimized.onnx"
        profile = subject.folder / "profile"
        self._notes: list[str] = []
        self._graph: steps.Steps | None = None
        try:
            self._session = saving(subject.source, subject.settings, optimized, profile)
            self._graph = steps.as_run(optimized)
        except RuntimeFailure:  # a provider that compiles parts of the graph cannot save them
            self._session = TimedModel(subject.source, subject.settings, profile=profile)
            self._notes.append(_UNSAVED)
        self.run = self._session.ready(subject.feeds)

    @property
    def capacity(self) -> int:
        """The number of runs that fit into the runtime's profile."""
        graph = self._graph or steps.of_file(self.subject.tagged.model.graph)
        return MOST_EVENTS // (len(graph.steps) + 2)

    def joined(self, runs: int) -> JoinedProfile:
        """Return the times of the last runs by kernel and by module; the model cannot be run afterwards."""
        profiled = read(self._session.end_profile())[-runs:]
        del self._session, self.run  # tracing may have to load the model again
        graph = self._graph or _of_calls(profiled)
        matched = [(run, matches) for run in profiled if (matches := match(run, graph)) is not None]
        if not matched:
            raise RuntimeFailure("ONNX Runtime's profile does not match the graph that it ran")
        indices, kernels = kernel_times(matched, self._traces(graph))
        by_time = sorted(matched, key=lambda pair: pair[0].duration)
        middle, matches = by_time[len(by_time) // 2]
        return JoinedProfile(
            runs=len(matched),
            wall_ms=middle.duration / 1000,
            kernels=kernels,
            modules=module_times(kernels, self.subject.tagged.hierarchy),
            timeline=timeline(middle, matches, indices),
            notes=(*self._notes, *self._further_notes(len(profiled) - len(matched))),
        )

    def _traces(self, graph: steps.Steps) -> dict[steps.GraphStep, Trace]:
        """Trace the graph to the file; if layouts were changed, by way of the graph before, whose values have names."""
        file = steps.of_file(self.subject.tagged.model.graph)
        if not any(step.domain in _LAYOUTS for step in graph.steps):
            return trace(graph, file)
        settings = self.subject.settings
        optimized = self.subject.folder / "before.onnx"
        saving(self.subject.source, Settings(settings.threads, settings.provider, Level.EXTENDED), optimized)
        before = steps.as_run(optimized)
        return through(trace(graph, before), trace(before, file))

    def _further_notes(self, lost: int) -> Iterator[str]:
        if lost:
            yield f"{lost} runs were left out because the runtime's profile of them is incomplete"
        if not origins.is_tagged(self.subject.tagged.model):
            yield p.UNTAGGED


def saving(
    source: Path | onnx.ModelProto, settings: Settings, optimized: Path, profile: Path | None = None
) -> TimedModel:
    """Load a model, and save its graph as the runtime optimized it.

    The weights, which may be gigabytes and are not needed, are written to the null device if the system has one.
    """
    with contextlib.suppress(OSError, NotImplementedError):
        weights_beside(optimized).symlink_to(os.devnull)
    return TimedModel(source, settings, profile=profile, optimized=optimized)


def _of_calls(runs: list[Run]) -> steps.Steps:
    """Return the steps of a graph of which only the calls are known."""
    calls = runs[0].calls if runs else ()
    return steps.Steps([steps.GraphStep(call.name, call.op_type, "", (), (), {}) for call in calls], {})


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
    own: dict[str, float] = defaultdict(float)
    total: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for kernel in kernels:
        if kernel.owner is None:
            continue
        own[kernel.owner] += kernel.milliseconds
        count[kernel.owner] += 1
        calls[kernel.owner] += kernel.calls
        for path in _up(kernel.owner):
            total[path] += kernel.milliseconds
    whole = sum(kernel.milliseconds for kernel in kernels)
    return tuple(
        ModuleTime(
            path,
            hierarchy.tag(path),
            own[path],
            total[path],
            count[path],
            calls[path],
            total[path] / whole if whole else 0.0,
        )
        for path in sorted(total, key=lambda path: path.split("."))
    )


def _up(path: str) -> Iterable[str]:
    while path != p.ROOT:
        yield path
        path = path.rpartition(".")[0]
    yield p.ROOT
