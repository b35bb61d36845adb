"""`sardonyx.locate`: find the first module whose outputs differ in two models, and what each module contributes."""

from __future__ import annotations

import functools
import itertools
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import ModelError, RuntimeFailure, UsageError
from sardonyx.inputs.generator import ExampleInputs
from sardonyx.ir.module_region import Flow
from sardonyx.ir.origins import Source, Tagged, tagged
from sardonyx.ir.scopes import declared_shape, label
from sardonyx.records.comparison import DifferingModule, LocatedModel, Location, ModuleShare, Substitution
from sardonyx.records.environment import environment
from sardonyx.records.input_specs import read_arrays
from sardonyx.records.inspection import Port
from sardonyx.records.progress import Progress
from sardonyx.records.provenance import lowest_common, owner_of
from sardonyx.records.run import Accuracy
from sardonyx.runtime import Array, Value
from sardonyx.runtime.sessions import Runtime, parse_runtimes
from sardonyx.verbs.locate.module_search import (
    Between,
    Border,
    BorderPair,
    Finding,
    Interval,
    ModuleSearch,
    between,
    comparable_arrays,
    has_modules,
    in_order,
    module_borders,
    owning,
    pair_borders,
    relative_error,
)
from sardonyx.verification.border_probe import BorderProbe, Values
from sardonyx.verification.compare import seeds_from
from sardonyx.verification.output_comparison import OutputComparer, Precise
from sardonyx.verification.reference import Reference

if TYPE_CHECKING:
    from torch import nn

    from sardonyx.frontend.tracing.engine import LiveValues

_GENERATED_TRIALS = 4  # generated inputs
_LEAST_SHARE = 0.01  # of a module that is listed
_LISTED_NODES = 20  # listed in the record
_DOMINANT_SHARE = 0.5  # of the error: with so much in one module, it does not accumulate gradually
_ONLY_CAUSE_SHARE = 0.9  # of the error, above which no other module takes part
_RUNS_PER_MODULE = 6  # so many runs allow one module to be put into the second model alone, which takes three
_GRADUAL_SPREAD = 4.0  # modules over which an error is spread if it accumulates gradually
Model: TypeAlias = "Source | nn.Module"


def locate(
    a: Model,
    b: Source,
    *,
    inputs: ExampleInputs = None,
    kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    most_runs: int = 24,
    runtimes: Sequence[Runtime | str] = (Runtime.ORT,),
    threads: int | None = None,
    progress: Progress | None = None,
) -> Location:
    """Find the first module whose outputs differ beyond the tolerance, and the modules that cause the final error.

    Args:
        a: The reference: a path, a ModelProto, an onnx-ir Model, or the PyTorch module that `b` was exported from.
        b: The model to compare with it, an ONNX model with module tags.
        inputs: The inputs to compare on: the path of an .npz file, a dict, or a list of dicts; for a PyTorch module
            also a tensor or a sequence of positional inputs. Generated if None.
        kwargs: Keyword inputs of a PyTorch module in addition to positional ones.
        seed: Seed of the generated inputs.
        most_runs: The largest number of runs that measure the shares of modules in the error.
        runtimes: The runtime of `a`, then that of `b` if it is another one: "ort", "reference" or "openvino".
        threads: Threads of the runtime.
        progress: Called with the current phase, and the completed fraction if known.

    Returns:
        The record: the first module that differs, the most responsible ones, and whether the error accumulates.

    Raises:
        UsageError: If the inputs do not fit the models, or the models have other inputs.
    """
    began = time.perf_counter()
    report: Progress = progress or (lambda _phase, _fraction: None)
    second = tagged(b)
    if isinstance(a, (str, os.PathLike, ir.Model)) or hasattr(a, "graph"):
        pair = _graphs(tagged(a), second, inputs, seed, runtimes, threads, report)  # pyright: ignore[reportArgumentType]
    else:
        pair = _live(a, second, inputs, kwargs, seed, runtimes, threads, report)
    return _located(pair, second, most_runs, report, began)


class _Trial(Struct, frozen=True, eq=False):
    """One set of inputs on which the outputs were compared."""

    label: str
    feeds: Mapping[str, Value]
    expected: list[Value]
    results: list[Value]
    failures: list[str]


class _First:
    """The reference in ONNX."""

    def __init__(self, probe: BorderProbe, feeds: Mapping[str, Value], pairs: Sequence[BorderPair]) -> None:
        self._probe, self._feeds = probe, feeds
        self._names = [(pair.first.name or "") if pair.first is not None else "" for pair in pairs]

    def values_from(self, given: Mapping[int, Array] | None, places: Sequence[int]) -> Mapping[int, Value]:
        """Return the values at some borders if those at earlier ones are replaced."""
        names = [self._names[place] for place in places]
        if given is not None:
            replaced = {self._names[place]: array for place, array in given.items()}
            values = self._probe.between(self._feeds, replaced, names)
        else:
            _, values = self._probe.run(self._feeds, names)
        return {place: values[self._names[place]] for place in places}

    def rounded(self, places: Sequence[int]) -> tuple[Mapping[int, Value], Mapping[int, Value]] | None:
        """Return the values at some borders, and those in double precision; None if the model does not run in it."""
        exact = self._probe.in_double(self._feeds, [self._names[place] for place in places])
        return exact and (self.values_from(None, places), {place: exact[1][self._names[place]] for place in places})


class _Second(_First):
    """The model that is compared with the reference."""

    def __init__(self, probe: BorderProbe, feeds: Mapping[str, Value], pairs: Sequence[BorderPair]) -> None:
        super().__init__(probe, feeds, pairs)
        self._names = [pair.second.name or "" for pair in pairs]

    def outputs_after(self, values: Mapping[int, Array]) -> list[Value]:
        """Return the outputs if the values at some borders are replaced."""
        return self._probe.replacing(self._feeds, {self._names[place]: array for place, array in values.items()})


class _LiveFirst:
    """The reference as a PyTorch module; rounding is measured in the second model instead."""

    def __init__(self, live: LiveValues, keys: Mapping[ir.Value, Any], pairs: Sequence[BorderPair]) -> None:
        self._live = live
        self._keys = [keys[pair.second] for pair in pairs]

    def values_from(self, given: Mapping[int, Array] | None, places: Sequence[int]) -> Mapping[int, Value]:
        """Return the values at some borders if those at earlier ones are replaced."""
        replaced = {self._keys[place]: array for place, array in (given or {}).items()}
        try:
            values = self._live.values([self._keys[place] for place in places], replaced)
        except UsageError as error:
            raise RuntimeFailure(error.message) from error
        return {place: values.get(self._keys[place]) for place in places}


class _Pair(Struct, frozen=True, eq=False):
    """The two models on one trial, with the borders that correspond."""

    first: LocatedModel
    second: LocatedModel
    trial: _Trial
    search: ModuleSearch | None  # None: the outputs agree
    pairs: Sequence[BorderPair]
    slices: Sequence[Between]
    flows: tuple[Flow | None, Flow]
    unpaired: Sequence[str]
    probes: Sequence[BorderProbe]
    live: LiveValues | None = None


def _runtimes(names: Sequence[Runtime | str]) -> tuple[Runtime, Runtime]:
    if len(names) > 2:
        raise UsageError("there are two models and more than two runtimes", hint="give one runtime, or one for each")
    chosen = parse_runtimes(names)
    return chosen[0], chosen[-1]


def _graphs(
    first: Tagged,
    second: Tagged,
    inputs: Any,
    seed: int,
    runtimes: Sequence[Runtime | str],
    threads: int | None,
    report: Progress,
) -> _Pair:
    """Compare two ONNX models on the trials; the first trial on which they differ is searched."""
    one, other = _runtimes(runtimes)
    _check_inputs(first.model, second.model)
    reference = Reference(
        first.model,
        inputs=inputs,
        seeds=seeds_from(seed),
        trials=_GENERATED_TRIALS if inputs is None else 0,
        runtimes=(one,),
        threads=threads,
        progress=lambda text: report(text, None),
        own_types=True,
    )
    answers = [
        answer for answer in reference.answers() if 0 not in answer.inputs.dims.values() and not answer.hides_row
    ]
    probes = (
        BorderProbe(first.model, reference.runtime, threads=threads),
        BorderProbe(second.model, other, threads=threads),
    )
    trial = None
    for answer in answers or reference.answers():
        report(f"comparing the outputs: {answer.style}", None)
        feeds = _converted(answer.inputs.feeds, second.model)
        trial = _compared(probes, answer.style, dict(answer.inputs.feeds), feeds, answer.outputs, reference.random)
        if trial.failures:
            break
    assert trial is not None, "a reference without answers raises an error"
    flows = Flow(first.model), Flow(second.model)
    names = LocatedModel(first.name, "onnx", reference.name), LocatedModel(second.name, "onnx", probes[1].name)
    if not trial.failures:
        return _Pair(*names, trial, None, (), (), flows, (), probes)
    report("pairing the borders of modules", None)
    outputs = list(zip(first.model.graph.outputs, second.model.graph.outputs, strict=True))
    pairs, unpaired = pair_borders(*flows, outputs)
    slices = _slices(flows[1], pairs)
    feeds = _converted(trial.feeds, second.model)
    a, b = _First(probes[0], trial.feeds, pairs), _Second(probes[1], feeds, pairs)
    search = ModuleSearch(_borders(flows, pairs, slices), a, b, trial.expected, trial.results, a.rounded)
    return _Pair(*names, trial, search, pairs, slices, flows, unpaired, probes)


def _check_inputs(first: ir.Model, second: ir.Model) -> None:
    one, other = ({value.name for value in model.graph.inputs} for model in (first, second))
    if one != other:
        raise UsageError(
            f"the models have other inputs: {', '.join(sorted(map(str, one ^ other)))} is only in one of them",
            hint="give two forms of the same model",
        )
    if len(first.graph.outputs) != len(second.graph.outputs):
        raise UsageError("the models have different numbers of outputs", hint="give two forms of the same model")


def _converted(feeds: Mapping[str, Value], model: ir.Model) -> dict[str, Value]:
    """Return the feeds in the floating-point types of another model."""
    types = {value.name: value.dtype for value in model.graph.inputs}

    def convert(name: str, value: Value) -> Value:
        kind = types.get(name)
        if kind is None or not kind.is_floating_point() or not isinstance(value, np.ndarray):
            return value
        return np.asarray(value.astype(kind.numpy()))

    return {name: convert(name, value) for name, value in feeds.items()}


def _compared(
    probes: tuple[BorderProbe, BorderProbe],
    style: str,
    feeds: Mapping[str, Value],
    converted: Mapping[str, Value],
    expected: list[Value],
    random: frozenset[str] = frozenset(),
) -> _Trial:
    """Run the second model and compare the outputs; rounding is measured in the first probe's model."""
    try:
        results, _ = probes[1].run(converted)
    except RuntimeFailure as failure:
        raise ModelError(f"the second model does not run on the inputs of the first: {failure.message}") from failure

    clean = results if probes[0] is probes[1] else expected
    exact = functools.cache(lambda: probes[0].in_double(feeds, ()))

    failures: list[str] = []
    for index, (one, other) in enumerate(zip(expected, results, strict=True)):
        name, pair = probes[0].output_names[index], comparable_arrays(one, other) or (one, other)
        comparer = OutputComparer([name], Accuracy.REASSOCIATES, random)
        failures += comparer.compare([pair[0]], [pair[1]], lambda index=index: _rounding_of(clean, exact(), index))
    return _Trial(style, feeds, expected, results, failures)


def _rounding_of(values: Sequence[Value], exact: Values | None, index: int) -> Precise | None:
    """Return the rounding error of one output, or None if the model does not run in double precision."""
    return None if exact is None else Precise(roundings=lambda: [([values[index]], [exact[0][index]])])


def _slices(flow: Flow, pairs: Sequence[BorderPair]) -> list[Between]:
    borders = frozenset(pair.second for pair in pairs)
    return [between(flow, pair.second, borders) for pair in pairs]


def _modules(flows: tuple[Flow | None, Flow], pairs: Sequence[BorderPair], slices: Sequence[Between]) -> list[str]:
    """Return for every border the module that computes it from the borders before it, in both models.

    A model without tags says nothing about it; if neither has tags, it is the node that computes the border.
    """
    first, second = flows
    known = frozenset(pair.first for pair in pairs if pair.first is not None)
    modules: list[str] = []
    for pair, part in zip(pairs, slices, strict=True):
        own = [part.module(second)] if has_modules(second) else []
        if first is not None and pair.first is not None and has_modules(first):
            own.append(between(first, pair.first, known).module(first))
        producer = pair.second.producer()
        modules.append(lowest_common(own) if own or producer is None else label(producer))
    return modules


def _borders(flows: tuple[Flow | None, Flow], pairs: Sequence[BorderPair], slices: Sequence[Between]) -> list[Border]:
    """Return the borders in the order of the second model, with the last border that is computed from each."""
    places = {pair.second: place for place, pair in enumerate(pairs)}
    last = [len(pairs) if pair.second in flows[1].outputs else -1 for pair in pairs]
    for place, part in enumerate(slices):
        for value in part.borders:
            last[places[value]] = max(last[places[value]], place)
    modules = _modules(flows, pairs, slices)
    return [
        Border(pair.second.name or "", module, use, pair.named)
        for pair, module, use in zip(pairs, modules, last, strict=True)
    ]


def _located(pair: _Pair, second: Tagged, most_runs: int, report: Progress, began: float) -> Location:
    """Search the first difference and measure the shares."""
    search, finding, shares = pair.search, None, ()
    notes = [] if pair.live is None else list(pair.live.notes)
    if search is not None:
        report("searching the first module that differs", None)
        finding = search.first_difference()
        report("measuring the shares of modules", None)
        shares = _shares(
            search, search.intervals(most_runs if finding is not None else 0), most_runs // _RUNS_PER_MODULE
        )
        names = [search.borders[place].name for place in search.left_out]
        if names:
            notes.append(f"not compared, because the models hold other values there: {', '.join(names)}")
        if search.harmless is not None:
            name = search.borders[search.harmless.index].name
            notes.append(f"'{name}' differs before it, but without an effect on the error: {search.harmless.reason}")
    parts = [max(share.share, 0.0) for share in shares]
    spread = sum(parts) ** 2 / sum(part**2 for part in parts) if any(parts) else 0.0
    trial = pair.trial
    return Location(
        environment=environment(),
        first=pair.first,
        second=pair.second,
        same=not trial.failures,
        gradual=spread >= _GRADUAL_SPREAD and max(parts, default=0.0) < _DOMINANT_SHARE,
        module=None if search is None or finding is None else _differing(pair, search, finding, second),
        shares=shares,
        spread=spread,
        error=relative_error(trial.expected, trial.results),
        failures=tuple(trial.failures),
        trial=trial.label,
        borders=len(pair.pairs),
        unpaired=tuple(pair.unpaired),
        runs=sum(probe.runs for probe in pair.probes) + (0 if pair.live is None else pair.live.runs),
        substitutions=() if search is None else _substitutions(search),
        peak_bytes=max((probe.peak_bytes for probe in pair.probes), default=0),
        seconds=time.perf_counter() - began,
        notes=tuple(notes),
    )


def _differing(pair: _Pair, search: ModuleSearch, finding: Finding, second: Tagged) -> DifferingModule:
    border, flow = search.borders[finding.index], pair.flows[1]
    compared = frozenset(one.second for place, one in enumerate(pair.pairs) if place not in search.left_out)
    part = between(flow, pair.pairs[finding.index].second, compared)
    modules = part.modules(flow)
    is_tagged = has_modules(flow)
    module = lowest_common([border.module, part.module(flow)]) if search.left_out and is_tagged else border.module
    share = search.share_of(finding)
    side = part.side_nodes(flow) if is_tagged else []
    if not _is_only_cause(share, side, [other for other in pair.slices if other.nodes != part.nodes]):
        module = lowest_common([module, *(owner_of(flow.origins[node]) for node in side)])
    return DifferingModule(
        module=module,
        tag=second.hierarchy.tag(module),
        value=border.name,
        error=finding.error,
        reason=finding.reason,
        share=share,
        nodes=tuple(label(node) for node in part.nodes if node in part.after or not part.after)[:_LISTED_NODES],
        modules=tuple(modules) if len(modules) > 1 else (),
    )


def _is_only_cause(share: float | None, side: Sequence[ir.Node], others: Sequence[Between]) -> bool:
    """Return whether a module has the fault itself, and not the numbers of other modules that enter it unseen.

    If other modules read these numbers too, they would share the error.
    """
    return (
        share is not None
        and share >= _ONLY_CAUSE_SHARE
        and all(any(node in other.nodes for other in others) for node in side)
    )


def _shares(search: ModuleSearch, intervals: Sequence[Interval], most: int) -> tuple[ModuleShare, ...]:
    """Return the shares of modules, largest first; intervals of the same module are added.

    Args:
        search: The search.
        intervals: The parts of the model with their shares.
        most: How many modules are put into the second model alone.
    """
    merged: dict[tuple[str, ...], list[Interval]] = {}
    for interval in intervals:
        modules = tuple(
            dict.fromkeys(search.borders[place].module for place in range(interval.start + 1, interval.end + 1))
        )
        merged.setdefault(modules, []).append(interval)
    listed: list[ModuleShare] = []
    for modules, parts in sorted(merged.items(), key=lambda item: -_sum(item[1])):
        if _sum(parts) >= _LEAST_SHARE:
            adjacent = all(one.end == other.start for one, other in itertools.pairwise(parts))
            alone = search.alone(parts[0].start, parts[-1].end) if adjacent and len(listed) < most else None
            error = _finite(search.module_error(parts[-1].end))
            names = modules if len(modules) > 1 else ()
            listed.append(ModuleShare(lowest_common(modules), _sum(parts), names, error, alone))
    return tuple(listed)


def _substitutions(search: ModuleSearch) -> tuple[Substitution, ...]:
    places = [(search.borders[index] if index >= 0 else None, index, error) for index, error in search.errors]
    return tuple(
        Substitution(index + 1, "" if border is None else border.module, "" if border is None else border.name, error)
        for border, index, error in places
    )


def _sum(intervals: Sequence[Interval]) -> float:
    return sum(interval.share for interval in intervals)


def _finite(error: float | None) -> float | None:
    return error if error is not None and math.isfinite(error) else None


def _live(
    module: Any,
    second: Tagged,
    inputs: Any,
    kwargs: Mapping[str, Any] | None,
    seed: int,
    runtimes: Sequence[Runtime | str],
    threads: int | None,
    report: Progress,
) -> _Pair:
    """Compare a PyTorch module with an ONNX model on one example."""
    from sardonyx.frontend.installed import require_torch

    require_torch()
    from sardonyx.frontend.tracing.engine import LiveValues

    report("running the PyTorch module", None)
    live = LiveValues(module, *_example(module, second.model, inputs, kwargs, seed))
    names = [value.name or "" for value in second.model.graph.inputs if not value.is_initializer()]
    feeds = live.feeds(names)
    expected = live.outputs()
    probe = BorderProbe(second.model, _runtimes(runtimes)[1], threads=threads)
    if len(expected) != len(second.model.graph.outputs):
        raise UsageError(
            f"the module has {len(expected)} outputs and the file {len(second.model.graph.outputs)}",
            hint="give the model that the file was exported from",
        )
    trial = _compared((probe, probe), "given" if inputs is not None else "example", feeds, feeds, expected)
    flow = Flow(second.model)
    named = LocatedModel(type(module).__name__, "torch", live.name), LocatedModel(second.name, "onnx", probe.name)
    if not trial.failures:
        return _Pair(*named, trial, None, (), (), (None, flow), (), (probe,), live)
    keys, unpaired = _live_pairs(flow, live, second.model.graph.outputs)
    pairs = in_order(flow, [BorderPair(None, value, False) for value in keys])
    slices = _slices(flow, pairs)
    a, b = _LiveFirst(live, keys, pairs), _Second(probe, feeds, pairs)
    search = ModuleSearch(_borders((None, flow), pairs, slices), a, b, trial.expected, trial.results, b.rounded)
    return _Pair(*named, trial, search, pairs, slices, (None, flow), unpaired, (probe,), live)


def _example(
    module: nn.Module, file: ir.Model, inputs: Any, kwargs: Mapping[str, Any] | None, seed: int
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of the module: the user's, with arrays as tensors, or derived ones that fit the file."""
    import torch

    from sardonyx.frontend.inputs.examples import call_arguments, fitting_example

    if isinstance(inputs, (str, Path)):
        inputs = dict(read_arrays(Path(inputs)))
    if inputs is not None or kwargs:
        args, keywords = call_arguments(inputs, kwargs)
        return args, {name: torch.as_tensor(value) for name, value in keywords.items()}
    ports = [
        Port(value.name or "", value.dtype.numpy().name, declared_shape(value))
        for value in file.graph.inputs
        if value.dtype is not None
    ]
    example = fitting_example(module, ports, seed=seed)
    return example.args, example.kwargs


def _live_pairs(flow: Flow, live: LiveValues, outputs: Sequence[ir.Value]) -> tuple[dict[ir.Value, Any], list[str]]:
    """Return for values at the borders of the ONNX model the tensors of the module's calls that correspond."""
    borders = module_borders(flow)
    keys: dict[ir.Value, Any] = {}
    keys.update(zip(outputs, live.calls[""].outputs, strict=True))
    for path, border in sorted(borders.calls.items(), key=lambda item: -item[0].count(".")):
        call = live.calls.get(path)
        for values, tensors in () if call is None else ((border.outputs, call.outputs), (border.inputs, call.inputs)):
            if len(values) == 1 and tensors:
                keys.setdefault(values[0], tensors[0])
            elif len(values) == len(tensors):
                for value, key in zip(values, tensors, strict=True):
                    keys.setdefault(value, key)
    missing = {*borders.crossed, *(path for path in borders.calls if path not in live.calls)}
    return keys, sorted(missing & owning(flow))
