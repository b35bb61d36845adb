"""Times of kernels, and from them those of the modules they belong to."""

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
_TAG_PATHS = ("__call", "__module_path")  # attributes that some files carry their modules in, the surer one first


def kernels(matched: Matched, traces: Mapping[GraphStep, Trace]) -> tuple[dict[GraphStep, int], tuple[KernelTime, ...]]:
    """Every kernel in the order in which they run, with the median of its times; and the place of each."""
    times: dict[GraphStep, list[float]] = defaultdict(list)
    calls: dict[GraphStep, int] = {}
    first: dict[GraphStep, Match] = {}
    for _, matches in matched:
        spent: dict[GraphStep, float] = defaultdict(float)
        for each in matches:
            spent[each.step] += each.own
            first.setdefault(each.step, each)
        calls |= Counter(each.step for each in matches)
        for step, microseconds in spent.items():
            times[step].append(microseconds)
    ordered = sorted(first, key=lambda step: first[step].call.start)
    made = tuple(_kernel(first[step], traces.get(step, UNTRACED), median(times[step]), calls[step]) for step in ordered)
    return {step: place for place, step in enumerate(ordered)}, made


def _kernel(seen: Match, trace: Trace, microseconds: float, calls: int) -> KernelTime:
    nodes = [step.node for step in trace.steps if step.node is not None]
    found = p.merge(origins.origins(node) for node in nodes if origins.evidence(node) is not p.Evidence.NAMES)
    owner, by = (p.owner_of(found), trace.by) if nodes else (None, TracedBy.NOTHING)
    if not nodes and (worn := next((seen.step.tags[name] for name in _TAG_PATHS if name in seen.step.tags), None)):
        found, owner, by = frozenset({worn}), worn, TracedBy.ATTRIBUTE
    return KernelTime(
        name=seen.step.name or seen.call.name,
        op_type=seen.step.operator,
        provider=seen.call.provider,
        nodes=tuple(sorted(label(node) for node in nodes)),
        origins=tuple(sorted(found)),
        owner=owner,
        traced_by=by,
        milliseconds=microseconds / 1000,
        calls=calls,
    )


def timeline(run: Run, matches: Iterable[Match], places: Mapping[GraphStep, int]) -> tuple[Slice, ...]:
    """The calls of one run, by when they began; one whose body holds others comes before those."""
    slices = [Slice(places[each.step], each.call.start - run.start, each.call.duration) for each in matches]
    return tuple(sorted(slices, key=lambda each: (each.start_us, -each.duration_us)))


def modules(found: Sequence[KernelTime], hierarchy: p.Hierarchy) -> tuple[ModuleTime, ...]:
    """Every module that kernels belong to, and every one above it; a module and each further call of it apart."""
    own: dict[str, float] = defaultdict(float)
    total: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for kernel in found:
        if kernel.owner is None:
            continue
        own[kernel.owner] += kernel.milliseconds
        count[kernel.owner] += 1
        calls[kernel.owner] += kernel.calls
        for path in _up(kernel.owner):
            total[path] += kernel.milliseconds
    whole = sum(kernel.milliseconds for kernel in found)
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
