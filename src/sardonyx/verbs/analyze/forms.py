"""Turn a program into one form of an analysis: work, memory, traffic, fusion regions, and costs by module.

Programs of torch models and of ONNX files are treated alike.
"""

from __future__ import annotations

import functools
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
from sardonyx.verbs.analyze.costs.dataflow import Moved, Region, moved
from sardonyx.verbs.analyze.costs.fusion_regions import partition
from sardonyx.verbs.analyze.costs.peak_memory import (
    Peak,
    PeakFunction,
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
    formulas, octets = zip(*(_formula_and_bytes(part, sizes) for part in parts), strict=True)
    known = [size for size in octets if size is not None]
    return Cache(" + ".join(formulas), sum(known) if len(known) == len(octets) else None, parts)


def _formula_and_bytes(part: CachePart, sizes: Mapping[str, int]) -> tuple[str, int | None]:
    """Return the bytes of one group as a product of a number and the dynamic dimensions, and their number if known."""
    fixed = part.tensors * part.element_bytes * math.prod(dim for dim in part.shape if isinstance(dim, int))
    factors, octets, is_known = [f"{fixed:,}"], fixed, True
    for dim in (dim for dim in part.shape if isinstance(dim, str)):
        factors.append(dim if dim.isidentifier() or dim.endswith(")") else f"({dim})")
        limit, _, inner = dim.removeprefix("min(").removesuffix(")").rpartition(", ")
        terms = inner.split(" + ")
        numbers = {term: int(term) for term in terms if term.isdecimal()} | dict(sizes)
        is_known = is_known and numbers.keys() >= set(terms)
        size = sum(numbers.get(term, 0) for term in terms)
        octets *= min(int(limit), size) if limit else size
    return " · ".join(factors), octets if is_known else None


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

    @functools.cache  # layers repeat, so few sizes are different
    def number(size: Size) -> int:
        return value_of(size, sizes)

    alive = liveness(program)
    peak, timeline = alive.at(sizes), alive.values(sizes)
    parts = partition(program)
    moves = moved(program)
    unfused, fused = total(operation.bytes for operation in moves), total(region.bytes for region in parts)
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
            timeline=records.Timeline(
                steps=len(timeline),
                points=thinned(timeline),
                peak_step=peak.step or 0,
                peak_operation=peak.operation.name if peak.operation else "",
                peak_module=peak.operation.module if peak.operation else "",
            ),
        ),
        traffic=records.Traffic(number(unfused), number(fused)),
        regions=tuple(_regions(program, parts, number)),
        attentions=tuple(_attentions(program, parts)) if subject.attentions is None else subject.attentions,
        formulas=None
        if function is None
        else records.Formulas(
            macs=format_size(total(operation.macs for operation in program.operations)),
            flops=format_size(total(operation.flops for operation in program.operations)),
            bytes_moved=format_size(unfused),
            peak=function.text,
            crossovers=tuple(turn for dim in program.symbols for turn in _crossovers(function, dim, sizes)),
        ),
        modules=_modules(subject, moves, number, peak, timeline),
        notes=(*program.notes, *subject.notes),
        operations=_operations(program, moves, number),
    )
    return MeasuredForm(form, function)


def _attentions(program: Program, regions: Sequence[Region]) -> Iterator[records.AttentionCost]:
    """Yield each attention region with its kernel, or with the operators that it consists of."""
    for region in regions:
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
        less, more = (one, other) if stretch.value == "less" else (other, one)
        if stretch.value != "equal":
            yield records.Overtaking(dim, stretch.first, less.form.name, more.form.name)


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
        alive=peak.alive[:_MAX_ALIVE],
        others=max(0, len(peak.alive) - _MAX_ALIVE),
    )


def _regions(program: Program, parts: Sequence[Region], number: Callable[[Size], int]) -> Iterator[records.RegionRule]:
    """Sum up the regions by rule, in the order of their first region; single operations come last."""
    by_rule: dict[str, list[Region]] = {}
    for region in sorted(parts, key=lambda region: region.rule == records.ALONE):
        by_rule.setdefault(region.rule, []).append(region)
    for rule, regions in by_rule.items():
        lengths = [
            sum(program.operations[step].kind is not OpKind.VIEW for step in region.operations) for region in regions
        ]
        internal = sum(number(region.internal_bytes) for region in regions)
        yield records.RegionRule(
            rule=rule,
            regions=len(regions),
            operations=sum(lengths),
            largest=max(lengths),
            flops=sum(number(region.flops) for region in regions),
            internal_bytes=internal,
            kept_out_bytes=internal + sum(number(region.reread_bytes) for region in regions),
            escaping=sum(bool(region.escapes) for region in regions),
        )


def _crossovers(peak: PeakFunction, dim: str, sizes: Mapping[str, int]) -> Iterator[records.Crossover]:
    fixed = {name: size for name, size in sizes.items() if name != dim and name in peak.program.symbols}
    stretches = peak.stretches(dim, fixed)
    steps = [peak.program.operations[stretch.value.step] for stretch in stretches]
    places = [f"{operation.operator} in {operation.module or 'the model'}" for operation in steps]
    for after, here, there in zip(stretches[1 : _MAX_CROSSOVERS + 1], places, places[1:], strict=False):
        yield records.Crossover(dim, after.first, here, there)


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
