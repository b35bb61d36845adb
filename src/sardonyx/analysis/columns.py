"""A program becomes a column of the analysis: what it does, what it holds, what of it fuses, module by module.

Torch models and ONNX files come here alike; nothing below knows which of them it is.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sardonyx.analysis.costs.formulas import written
from sardonyx.analysis.costs.liveness import Peak, liveness, thinned
from sardonyx.analysis.costs.peak_function import PeakFunction, Stretch, compare, peak_function
from sardonyx.analysis.costs.program import OpKind, Program
from sardonyx.analysis.costs.regions import Partition, Region, partition
from sardonyx.analysis.costs.traffic import Moved, moved
from sardonyx.ir.shapes.expr import Size, total, value_of
from sardonyx.provenance import module_of
from sardonyx.records import analysis as told

ALIVE_TOLD = 24  # of what is alive at the peak
TURNS_TOLD = 8  # changes of the peak along one dim: rounded sizes can take turns without end


@dataclass(frozen=True, slots=True)
class Subject:
    """A program, and what is known besides about the form of the model that it is."""

    name: str
    program: Program
    nodes: int | None = None
    attentions: tuple[told.AttentionCost, ...] | None = None  # None: those among the regions
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])  # module -> its class
    parameters: Mapping[str, int] = field(default_factory=dict[str, int])  # module -> its own
    is_watched: bool = False  # whether it was seen where buffers were let go
    as_in_notes: told.NotesEstimate | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What one kind of source gives to the record."""

    sources: tuple[told.AnalysisSource, ...]
    sizes: dict[str, int]
    forms: tuple[told.Form, ...]
    missing: tuple[told.Missing, ...] = ()
    overtaking: tuple[told.Overtaking, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """A form, and its peak as a function, by which forms are compared."""

    form: told.Form
    peak: PeakFunction | None  # None: no dim is open


def measured(subject: Subject, sizes: Mapping[str, int]) -> Measured:
    """All of one form, at these sizes of its open dims."""
    program = subject.program
    number = _numbers(sizes)
    alive = liveness(program)
    peak, timeline = alive.at(sizes), alive.values(sizes)
    parts = partition(program)
    moves = moved(program)
    unfused, fused = total(each.bytes for each in moves), total(region.bytes for region in parts.regions)
    function = peak_function(alive) if program.symbols else None
    form = told.Form(
        name=subject.name,
        nodes=subject.nodes,
        work=_work(program, moves, number, sum(subject.parameters.values())),
        memory=told.Memory(
            weights=peak.weights,
            inputs=peak.inputs,
            peak=_peak(peak),
            as_run=_peak(liveness(program, as_run=True).at(sizes)) if subject.is_watched else None,
            timeline=_timeline(timeline, peak),
        ),
        traffic=told.Traffic(number(unfused), number(fused)),
        regions=_regions(program, parts, number),
        attentions=tuple(_attentions(program, parts)) if subject.attentions is None else subject.attentions,
        formulas=_formulas(program, unfused, function, sizes) if function is not None else None,
        modules=_modules(subject, moves, number, peak, timeline),
        as_in_notes=subject.as_in_notes,
        notes=(*program.notes, *subject.notes),
    )
    return Measured(form, function)


def _attentions(program: Program, parts: Partition) -> Iterator[told.AttentionCost]:
    """Each region that is an attention: one kernel, or the operators that it is made of."""
    for region in (each for each in parts.regions if each.rule == "attention"):
        steps = [program.operations[step] for step in region.operations]
        kernel = next((each.operator for each in steps if each.kind is OpKind.ATTENTION), None)
        made_of = Counter(each.operator for each in steps if each.kind is not OpKind.VIEW)
        yield told.AttentionCost(region.module, kernel or "by hand", dict(made_of))


def overtaking(forms: Sequence[Measured], sizes: Mapping[str, int]) -> tuple[told.Overtaking, ...]:
    """From which sizes on the peak of one form is above that of the first, where both are known for all sizes."""
    first, *others = forms
    return tuple(turn for other in others for dim in sizes for turn in _turns(first, other, dim, sizes))


def _turns(one: Measured, other: Measured, dim: str, sizes: Mapping[str, int]) -> Iterator[told.Overtaking]:
    if one.peak is None or other.peak is None:
        return
    both = one.peak.program.symbols.keys() & other.peak.program.symbols.keys()
    if dim not in both:
        return
    held = {name: size for name, size in sizes.items() if name in both and name != dim}
    for stretch in compare(one.peak, other.peak, dim, held)[:TURNS_TOLD]:
        less, more = (one, other) if stretch.order == "less" else (other, one)
        if stretch.order != "equal":
            yield told.Overtaking(dim, stretch.first, less.form.name, more.form.name)


def _numbers(sizes: Mapping[str, int]) -> Callable[[Size], int]:
    """What sizes come to; layers repeat, so few of them are different."""
    known: dict[Size, int] = {}

    def number(size: Size) -> int:
        if isinstance(size, int):
            return size
        if size not in known:
            known[size] = value_of(size, sizes)
        return known[size]

    return number


def _work(program: Program, moves: Sequence[Moved], number: Callable[[Size], int], parameters: int) -> told.Work:
    working = [each for each in program.operations if each.kind is not OpKind.VIEW]
    return told.Work(
        operations=len(working),
        views=len(program.operations) - len(working),
        macs=sum(number(each.macs) for each in working),
        flops=sum(number(each.flops) for each in working),
        bytes_read=sum(number(each.read) + number(each.weights) for each in moves),
        bytes_written=sum(number(each.written) for each in moves),
        parameters=parameters,
    )


def _peak(peak: Peak) -> told.Peak:
    operation = peak.operation
    return told.Peak(
        bytes=peak.bytes,
        step=peak.step or 0,
        operation=operation.name if operation else "",
        operator=operation.operator if operation else "",
        module=operation.module if operation else "",
        workspace=peak.workspace,
        alive=tuple(told.Alive(each.bytes, each.module, each.made_by or "") for each in peak.alive[:ALIVE_TOLD]),
        others=max(0, len(peak.alive) - ALIVE_TOLD),
    )


def _timeline(values: Sequence[int], peak: Peak) -> told.Timeline:
    operation = peak.operation
    return told.Timeline(
        steps=len(values),
        points=thinned(values),
        peak_step=peak.step or 0,
        peak_operation=operation.name if operation else "",
        peak_module=operation.module if operation else "",
    )


def _regions(program: Program, parts: Partition, number: Callable[[Size], int]) -> tuple[told.RegionRule, ...]:
    """By rule, in the order of their first region; what stays alone comes last."""
    by_rule: dict[str, list[Region]] = {}
    for region in parts.regions:
        by_rule.setdefault(region.rule, []).append(region)
    alone = by_rule.pop(told.ALONE, None)
    rules = [*by_rule.items(), *([(told.ALONE, alone)] if alone else [])]
    return tuple(_rule(rule, regions, program, number) for rule, regions in rules)


def _rule(rule: str, regions: Sequence[Region], program: Program, number: Callable[[Size], int]) -> told.RegionRule:
    lengths = [sum(program.operations[step].kind is not OpKind.VIEW for step in each.operations) for each in regions]
    internal = sum(number(each.internal_bytes) for each in regions)
    return told.RegionRule(
        rule=rule,
        regions=len(regions),
        operations=sum(lengths),
        largest=max(lengths),
        flops=sum(number(each.flops) for each in regions),
        internal_bytes=internal,
        kept_out_bytes=internal + sum(number(each.reread_bytes) for each in regions),
        escaping=sum(bool(each.escapes) for each in regions),
    )


def _formulas(program: Program, moved: Size, peak: PeakFunction, sizes: Mapping[str, int]) -> told.Formulas:
    return told.Formulas(
        macs=written(total(each.macs for each in program.operations)),
        flops=written(total(each.flops for each in program.operations)),
        bytes_moved=written(moved),
        peak=peak.text,
        crossovers=tuple(turn for dim in program.symbols for turn in _crossovers(peak, dim, sizes)),
    )


def _crossovers(peak: PeakFunction, dim: str, sizes: Mapping[str, int]) -> Iterator[told.Crossover]:
    held = {name: size for name, size in sizes.items() if name != dim and name in peak.program.symbols}
    stretches = peak.stretches(dim, held)
    for before, after in itertools.pairwise(stretches[: TURNS_TOLD + 1]):
        yield told.Crossover(dim, after.first, _place(peak, before), _place(peak, after))


def _place(peak: PeakFunction, stretch: Stretch) -> str:
    operation = peak.program.operations[stretch.candidate.step]
    return f"{operation.operator} in {operation.module or 'the model'}"


def _modules(
    subject: Subject, moves: Sequence[Moved], number: Callable[[Size], int], peak: Peak, timeline: Sequence[int]
) -> tuple[told.ModuleCost, ...]:
    """In the order in which they first run; those that only hold parameters come last."""
    program = subject.program
    rows: dict[str, dict[str, int]] = {}
    empty = {"operations": 0, "macs": 0, "flops": 0, "bytes_moved": 0, "peak": 0}
    for step, each in enumerate(program.operations):
        row = rows.setdefault(module_of(each.module), dict(empty))
        row["peak"] = max(row["peak"], timeline[step])
        if each.kind is OpKind.VIEW:
            continue
        row["operations"] += 1
        row["macs"] += number(each.macs)
        row["flops"] += number(each.flops)
        row["bytes_moved"] += number(moves[step].bytes)
    held: dict[str, int] = {}
    for path, octets in peak.modules.items():
        held[module_of(path)] = held.get(module_of(path), 0) + octets
    paths = dict.fromkeys((*rows, *held, *(path for path, count in subject.parameters.items() if count)))
    return tuple(
        told.ModuleCost(
            path=path,
            kind=subject.kinds.get(path, ""),
            parameters=subject.parameters.get(path, 0),
            at_peak=held.get(path, 0),
            **rows.get(path, empty),
        )
        for path in paths
    )
