"""Compute the times of kernels, and from them the times of the modules they belong to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from sardonyx import provenance as p
from sardonyx.ir import origins
from sardonyx.ir.scopes import label
from sardonyx.measurement.profiling.events import Match, Run
from sardonyx.measurement.profiling.kernel_origins import UNTRACED, Trace
from sardonyx.measurement.profiling.steps import GraphStep
from sardonyx.records.profile import KernelTime, ModuleTime, Slice, TracedBy

Matched = Sequence[tuple[Run, Sequence[Match]]]
_TAG_PATHS = ("__call", "__module_path")  # attributes in which some files store module paths, the more reliable first


def kernels(matched: Matched, traces: Mapping[GraphStep, Trace]) -> tuple[dict[GraphStep, int], tuple[KernelTime, ...]]:
    """Return the index of each kernel's step, and the kernels in the order they run, with their median times."""
    times: dict[GraphStep, list[float]] = defaultdict(list)
    calls: dict[GraphStep, int] = {}
    first: dict[GraphStep, Match] = {}
    for _, matches in matched:
        spent: dict[GraphStep, float] = defaultdict(float)
        for match in matches:
            spent[match.step] += match.own
            first.setdefault(match.step, match)
        calls |= Counter(match.step for match in matches)
        for step, microseconds in spent.items():
            times[step].append(microseconds)
    ordered = sorted(first, key=lambda step: first[step].call.start)
    of_steps = [_kernel(first[step], traces.get(step, UNTRACED), median(times[step]), calls[step]) for step in ordered]
    return {step: index for index, step in enumerate(ordered)}, tuple(of_steps)


def _kernel(match: Match, trace: Trace, microseconds: float, calls: int) -> KernelTime:
    nodes = [step.node for step in trace.steps if step.node is not None]
    paths = p.merge(origins.origins(node) for node in nodes if origins.evidence(node) is not p.Evidence.NAMES)
    owner, by = (p.owner_of(paths), trace.by) if nodes else (None, TracedBy.NOTHING)
    if not nodes and (tag := next((match.step.tags[name] for name in _TAG_PATHS if name in match.step.tags), None)):
        paths, owner, by = frozenset({tag}), tag, TracedBy.ATTRIBUTE
    return KernelTime(
        name=match.step.name or match.call.name,
        op_type=match.step.operator,
        provider=match.call.provider,
        nodes=tuple(sorted(label(node) for node in nodes)),
        origins=tuple(sorted(paths)),
        owner=owner,
        traced_by=by,
        milliseconds=microseconds / 1000,
        calls=calls,
    )


def timeline(run: Run, matches: Iterable[Match], indices: Mapping[GraphStep, int]) -> tuple[Slice, ...]:
    """Return the calls of one run by their start; a call with a body comes before the calls inside it."""
    slices = [Slice(indices[match.step], match.call.start - run.start, match.call.duration) for match in matches]
    return tuple(sorted(slices, key=lambda part: (part.start_us, -part.duration_us)))


def modules(kernels: Sequence[KernelTime], hierarchy: p.Hierarchy) -> tuple[ModuleTime, ...]:
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
