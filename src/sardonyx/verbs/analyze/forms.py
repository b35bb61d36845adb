"""Turn a program into one form of an analysis: work, memory, traffic, fusion regions, and costs by module.

Programs of torch models and of ONNX files are treated alike.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.inputs.state import find_state
from sardonyx.ir.scopes import declared_shape
from sardonyx.ir.shapes.expr import Size, total, value_of
from sardonyx.records import analysis as records
from sardonyx.records.analysis import Cache, CachePart
from sardonyx.records.provenance import module_of
from sardonyx.verbs.analyze.costs.dataflow import Moved, Partition, Region, moved
from sardonyx.verbs.analyze.costs.fusion_regions import partition
from sardonyx.verbs.analyze.costs.peak_memory import (
    Peak,
    PeakFunction,
    Stretch,
    compare,
    liveness,
    peak_function,
    thinned,
)
from sardonyx.verbs.analyze.costs.program import OpKind, Program, format_size

# The size of a decoder's key-value cache in bytes, as a formula of the batch size and the number of tokens.


def cache_of_graph(model: ir.Model, sizes: Mapping[str, int]) -> Cache | None:
    """Return the cache of an ONNX graph: the outputs that are inputs of the next run."""
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    parts: list[CachePart] = []
    for state in find_state(model, inputs):
        value = model.graph.outputs[state.output]
        shape = declared_shape(value)
        if shape is None or value.dtype is None or any(dim is None for dim in shape):
            return None
        parts.append(CachePart(1, tuple(dim for dim in shape if dim is not None), value.dtype.bitwidth // 8))
    return cache_of(parts, sizes)


def cache_of(tensors: Sequence[CachePart], sizes: Mapping[str, int]) -> Cache | None:
    """Return the sum over all tensors, grouped by shape, or None if there are no tensors."""
    groups = Counter((tensor.shape, tensor.element_bytes) for tensor in tensors)
    if not groups:
        return None
    parts = tuple(CachePart(count, shape, size) for (shape, size), count in groups.items())
    values = [_value(part, sizes) for part in parts]
    known = [value for value in values if value is not None]
    return Cache(" + ".join(map(_formula, parts)), sum(known) if len(known) == len(values) else None, parts)


def _formula(part: CachePart) -> str:
    """Return the bytes of one group as a product of a number and the dynamic dimensions."""
    factors = [dim if dim.isidentifier() or dim.endswith(")") else f"({dim})" for dim in _dynamic_dims(part)]
    return " · ".join([f"{_static_bytes(part):,}", *factors])


def _static_bytes(part: CachePart) -> int:
    return part.tensors * part.element_bytes * math.prod(dim for dim in part.shape if isinstance(dim, int))


def _dynamic_dims(part: CachePart) -> list[str]:
    return [dim for dim in part.shape if isinstance(dim, str)]


def _value(part: CachePart, sizes: Mapping[str, int]) -> int | None:
    """Return the bytes of one group at these sizes, or None if a size is unknown."""
    octets = _static_bytes(part)
    for dim in _dynamic_dims(part):
        limit, _, inner = dim.removeprefix("min(").removesuffix(")").rpartition(", ")
        terms = [sizes.get(term, int(term) if term.isdecimal() else None) for term in inner.split(" + ")]
        if any(term is None for term in terms):
            return None
        total = sum(term for term in terms if term is not None)
        octets *= min(int(limit), total) if limit else total
    return octets


_MAX_ALIVE = 24  # buffers listed at the peak
_MAX_CROSSOVERS = 8  # crossovers listed for one dimension: with rounded sizes there can be any number


class Subject(Struct, frozen=True):
    """A program, and what else is known about this form of the model."""

    name: str
    program: Program
    nodes: int | None = None
    attentions: tuple[records.AttentionCost, ...] | None = None  # None: taken from the regions
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])  # module -> its class
    parameters: Mapping[str, int] = field(default_factory=dict[str, int])  # module -> its own, without its children
    is_watched: bool = False  # whether the run shows when buffers are freed
    notes: tuple[str, ...] = ()


class AnalysisResults(Struct, frozen=True):
    """The part of an `Analysis` that depends on the kind of source."""

    sources: tuple[records.AnalysisSource, ...]
    sizes: dict[str, int]
    forms: tuple[records.Form, ...]
    missing: tuple[records.Missing, ...] = ()
    overtaking: tuple[records.Overtaking, ...] = ()
    notes: tuple[str, ...] = ()


class MeasuredForm(Struct, frozen=True):
    """A form, and its peak memory as a function of the dynamic dimensions, by which forms are compared."""

    form: records.Form
    peak: PeakFunction | None  # None without dynamic dimensions


def measure(subject: Subject, sizes: Mapping[str, int], *, formulas: bool = True) -> MeasuredForm:
    """Compute the costs of one form at these sizes of its dynamic dimensions, and as formulas of them."""
    program = subject.program
    number = _numbers(sizes)
    alive = liveness(program)
    peak, timeline = alive.at(sizes), alive.values(sizes)
    parts = partition(program)
    moves = moved(program)
    unfused, fused = total(operation.bytes for operation in moves), total(region.bytes for region in parts.regions)
    function = peak_function(alive) if program.symbols and formulas else None
    form = records.Form(
        name=subject.name,
        nodes=subject.nodes,
        work=_work(program, moves, number, sum(subject.parameters.values())),
        memory=records.Memory(
            weights=peak.weights,
            inputs=peak.inputs,
            peak=_peak(peak),
            as_run=_peak(liveness(program, as_run=True).at(sizes)) if subject.is_watched else None,
            timeline=_timeline(timeline, peak),
        ),
        traffic=records.Traffic(number(unfused), number(fused)),
        regions=_regions(program, parts, number),
        attentions=tuple(_attentions(program, parts)) if subject.attentions is None else subject.attentions,
        formulas=_formulas(program, unfused, function, sizes) if function is not None else None,
        modules=_modules(subject, moves, number, peak, timeline),
        notes=(*program.notes, *subject.notes),
        operations=_operations(program, moves, number),
    )
    return MeasuredForm(form, function)


def _attentions(program: Program, parts: Partition) -> Iterator[records.AttentionCost]:
    """Yield each attention region with its kernel, or with the operators that it consists of."""
    for region in parts.regions:
        if region.rule != "attention":
            continue
        operations = [program.operations[step] for step in region.operations]
        kernel = next((operation.operator for operation in operations if operation.kind is OpKind.ATTENTION), None)
        operators = Counter(operation.operator for operation in operations if operation.kind is not OpKind.VIEW)
        yield records.AttentionCost(region.module, kernel or "by hand", dict(operators))


def overtaking(forms: Sequence[MeasuredForm], sizes: Mapping[str, int]) -> tuple[records.Overtaking, ...]:
    """Return the sizes from which on the peak of a form is above or below that of the first form."""
    first, *others = forms
    return tuple(turn for other in others for dim in sizes for turn in _turns(first, other, dim, sizes))


def _turns(one: MeasuredForm, other: MeasuredForm, dim: str, sizes: Mapping[str, int]) -> Iterator[records.Overtaking]:
    if one.peak is None or other.peak is None:
        return
    both = one.peak.program.symbols.keys() & other.peak.program.symbols.keys()
    if dim not in both:
        return
    fixed = {name: size for name, size in sizes.items() if name in both and name != dim}
    for stretch in compare(one.peak, other.peak, dim, fixed)[:_MAX_CROSSOVERS]:
        less, more = (one, other) if stretch.order == "less" else (other, one)
        if stretch.order != "equal":
            yield records.Overtaking(dim, stretch.first, less.form.name, more.form.name)


def _numbers(sizes: Mapping[str, int]) -> Callable[[Size], int]:
    """Return a function that evaluates sizes, with a cache: layers repeat, so few sizes are different."""
    cache: dict[Size, int] = {}

    def number(size: Size) -> int:
        if isinstance(size, int):
            return size
        if size not in cache:
            cache[size] = value_of(size, sizes)
        return cache[size]

    return number


def _work(program: Program, moves: Sequence[Moved], number: Callable[[Size], int], parameters: int) -> records.Work:
    operations = [operation for operation in program.operations if operation.kind is not OpKind.VIEW]
    return records.Work(
        operations=len(operations),
        views=len(program.operations) - len(operations),
        macs=sum(number(operation.macs) for operation in operations),
        flops=sum(number(operation.flops) for operation in operations),
        bytes_read=sum(number(move.read) + number(move.weights) for move in moves),
        bytes_written=sum(number(move.written) for move in moves),
        parameters=parameters,
    )


def _operations(program: Program, moves: Sequence[Moved], number: Callable[[Size], int]) -> records.OperationCosts:
    steps = [step for step, operation in enumerate(program.operations) if operation.kind is not OpKind.VIEW]
    return records.OperationCosts(
        names=tuple(program.operations[step].name for step in steps),
        flops=tuple(number(program.operations[step].flops) for step in steps),
        bytes_moved=tuple(number(moves[step].bytes) for step in steps),
    )


def _peak(peak: Peak) -> records.Peak:
    operation = peak.operation
    return records.Peak(
        bytes=peak.bytes,
        step=peak.step or 0,
        operation=operation.name if operation else "",
        operator=operation.operator if operation else "",
        module=operation.module if operation else "",
        workspace=peak.workspace,
        alive=tuple(
            records.Alive(buffer.bytes, buffer.module, buffer.made_by or "") for buffer in peak.alive[:_MAX_ALIVE]
        ),
        others=max(0, len(peak.alive) - _MAX_ALIVE),
    )


def _timeline(values: Sequence[int], peak: Peak) -> records.Timeline:
    operation = peak.operation
    return records.Timeline(
        steps=len(values),
        points=thinned(values),
        peak_step=peak.step or 0,
        peak_operation=operation.name if operation else "",
        peak_module=operation.module if operation else "",
    )


def _regions(program: Program, parts: Partition, number: Callable[[Size], int]) -> tuple[records.RegionRule, ...]:
    """Sum up the regions by rule, in the order of their first region; single operations come last."""
    by_rule: dict[str, list[Region]] = {}
    for region in parts.regions:
        by_rule.setdefault(region.rule, []).append(region)
    alone = by_rule.pop(records.ALONE, None)
    rules = [*by_rule.items(), *([(records.ALONE, alone)] if alone else [])]
    return tuple(_rule(rule, regions, program, number) for rule, regions in rules)


def _rule(rule: str, regions: Sequence[Region], program: Program, number: Callable[[Size], int]) -> records.RegionRule:
    lengths = [
        sum(program.operations[step].kind is not OpKind.VIEW for step in region.operations) for region in regions
    ]
    internal = sum(number(region.internal_bytes) for region in regions)
    return records.RegionRule(
        rule=rule,
        regions=len(regions),
        operations=sum(lengths),
        largest=max(lengths),
        flops=sum(number(region.flops) for region in regions),
        internal_bytes=internal,
        kept_out_bytes=internal + sum(number(region.reread_bytes) for region in regions),
        escaping=sum(bool(region.escapes) for region in regions),
    )


def _formulas(program: Program, bytes_moved: Size, peak: PeakFunction, sizes: Mapping[str, int]) -> records.Formulas:
    return records.Formulas(
        macs=format_size(total(operation.macs for operation in program.operations)),
        flops=format_size(total(operation.flops for operation in program.operations)),
        bytes_moved=format_size(bytes_moved),
        peak=peak.text,
        crossovers=tuple(turn for dim in program.symbols for turn in _crossovers(peak, dim, sizes)),
    )


def _crossovers(peak: PeakFunction, dim: str, sizes: Mapping[str, int]) -> Iterator[records.Crossover]:
    fixed = {name: size for name, size in sizes.items() if name != dim and name in peak.program.symbols}
    stretches = peak.stretches(dim, fixed)
    for before, after in itertools.pairwise(stretches[: _MAX_CROSSOVERS + 1]):
        yield records.Crossover(dim, after.first, _place(peak, before), _place(peak, after))


def _place(peak: PeakFunction, stretch: Stretch) -> str:
    operation = peak.program.operations[stretch.candidate.step]
    return f"{operation.operator} in {operation.module or 'the model'}"


def _modules(
    subject: Subject, moves: Sequence[Moved], number: Callable[[Size], int], peak: Peak, timeline: Sequence[int]
) -> tuple[records.ModuleCost, ...]:
    """Return the costs by module, in the order of their first operation; modules with parameters only come last."""
    program = subject.program
    rows: dict[str, dict[str, int]] = {}
    empty = {"operations": 0, "macs": 0, "flops": 0, "bytes_moved": 0, "peak": 0}
    for step, operation in enumerate(program.operations):
        row = rows.setdefault(module_of(operation.module), dict(empty))
        row["peak"] = max(row["peak"], timeline[step])
        if operation.kind is OpKind.VIEW:
            continue
        row["operations"] += 1
        row["macs"] += number(operation.macs)
        row["flops"] += number(operation.flops)
        row["bytes_moved"] += number(moves[step].bytes)
    at_peak: dict[str, int] = {}
    for path, octets in peak.modules.items():
        at_peak[module_of(path)] = at_peak.get(module_of(path), 0) + octets
    paths = dict.fromkeys((*rows, *at_peak, *(path for path, count in subject.parameters.items() if count)))
    return tuple(
        records.ModuleCost(
            path=path,
            kind=subject.kinds.get(path, ""),
            parameters=subject.parameters.get(path, 0),
            at_peak=at_peak.get(path, 0),
            **rows.get(path, empty),
        )
        for path in paths
    )
