"""`sardonyx.locate`: find the first module whose outputs differ in two models, and what each module contributes."""

from __future__ import annotations

import functools
import itertools
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
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
from sardonyx.records.provenance import Hierarchy, lowest_common, owner_of
from sardonyx.records.run import Accuracy
from sardonyx.runtime import Array, Value
from sardonyx.runtime.sessions import Runtime, parse_runtimes
from sardonyx.verbs.locate.module_search import (
    Between,
    Border,
    BorderPair,
    Finding,
    FirstModel,
    Interval,
    ModuleSearch,
    Rounded,
    SecondModel,
    between,
    comparable_arrays,
    has_modules,
    in_order,
    module_borders,
    owning,
    pair_borders,
    relative_error,
)
from sardonyx.verification.border_probe import BorderProbe
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
        models = _graphs(tagged(a), second, inputs, seed, runtimes, threads, report)  # pyright: ignore[reportArgumentType]
    else:
        models = _live(a, second, inputs, kwargs, seed, runtimes, threads, report)
    return models.located(most_runs, report, began)


class _Trial(Struct, frozen=True, eq=False):
    """One set of inputs on which the outputs were compared."""

    label: str
    feeds: Mapping[str, Value]
    expected: list[Value]
    results: list[Value]
    failures: list[str]


class _Probed:
    """A model in ONNX on one trial; a place is that of a border with one of these values."""

    def __init__(self, probe: BorderProbe, feeds: Mapping[str, Value], borders: Sequence[ir.Value | None]) -> None:
        self._probe, self._feeds = probe, feeds
        self._names = [(border.name or "") if border is not None else "" for border in borders]

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
) -> _Models:
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
    a = BorderProbe(first.model, reference.runtime, threads=threads)
    b = BorderProbe(second.model, other, threads=threads)
    trials: list[_Trial] = []  # a reference without answers raises an error
    for answer in answers or reference.answers():
        report(f"comparing the outputs: {answer.style}", None)
        feeds = _converted(answer.inputs.feeds, second.model)
        trials.append(_compared(a, b, answer.style, answer.inputs.feeds, feeds, answer.outputs, reference.random))
        if trials[-1].failures:
            break
    trial, flows = trials[-1], (Flow(first.model), Flow(second.model))
    pairs, unpaired = list[BorderPair](), list[str]()
    if trial.failures:
        report("pairing the borders of modules", None)
        outputs = zip(first.model.graph.outputs, second.model.graph.outputs, strict=True)
        pairs, unpaired = pair_borders(*flows, outputs)
    reached = _Probed(a, trial.feeds, [pair.first for pair in pairs])
    return _Models(
        LocatedModel(first.name, "onnx", reference.name),
        LocatedModel(second.name, "onnx", b.name),
        second.hierarchy,
        trial,
        flows,
        (a, b),
        pairs,
        unpaired,
        reached,
        _Probed(b, _converted(trial.feeds, second.model), [pair.second for pair in pairs]),
        reached.rounded,
    )


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
    a: BorderProbe,
    b: BorderProbe,
    style: str,
    feeds: Mapping[str, Value],
    converted: Mapping[str, Value],
    expected: list[Value],
    random: frozenset[str] = frozenset(),
) -> _Trial:
    """Run the second model and compare the outputs; rounding is measured in the first probe's model."""
    try:
        results, _ = b.run(converted)
    except RuntimeFailure as failure:
        raise ModelError(f"the second model does not run on the inputs of the first: {failure.message}") from failure
    clean = results if a is b else expected
    in_double = functools.cache(lambda: a.in_double(feeds, ()))

    def rounding(index: int) -> Precise | None:
        exact = in_double()
        return None if exact is None else Precise(roundings=lambda: [([clean[index]], [exact[0][index]])])

    failures: list[str] = []
    for index, (one, other) in enumerate(zip(expected, results, strict=True)):
        left, right = comparable_arrays(one, other) or (one, other)
        comparer = OutputComparer([a.output_names[index]], Accuracy.REASSOCIATES, random)
        failures += comparer.compare([left], [right], functools.partial(rounding, index))
    return _Trial(style, feeds, expected, results, failures)


class _Models(Struct, frozen=True, eq=False):
    """The two models on one trial, with the borders that correspond, none if the outputs agree."""

    first: LocatedModel
    second: LocatedModel
    hierarchy: Hierarchy  # of the second
    trial: _Trial
    flows: tuple[Flow | None, Flow]
    probes: Sequence[BorderProbe]
    pairs: Sequence[BorderPair]
    unpaired: Sequence[str]  # modules without a border that corresponds
    reference: FirstModel  # at these borders, as the next
    compared: SecondModel
    rounded: Rounded
    live: LiveValues | None = None

    def _borders(self, slices: Sequence[Between]) -> list[Border]:
        """Return the borders in the order of the second model, with the last border that is computed from each."""
        outputs = self.flows[1].outputs
        places = {pair.second: place for place, pair in enumerate(self.pairs)}
        last = [len(self.pairs) if pair.second in outputs else -1 for pair in self.pairs]
        for place, part in enumerate(slices):
            for value in part.borders:
                last[places[value]] = max(last[places[value]], place)
        return [
            Border(pair.second.name or "", module, use, pair.named)
            for pair, module, use in zip(self.pairs, self._modules(slices), last, strict=True)
        ]

    def _modules(self, slices: Sequence[Between]) -> Iterable[str]:
        """Yield for every border the module that computes it from the borders before it, in both models.

        A model without tags says nothing about it; if neither has tags, it is the node that computes the border.
        """
        first, second = self.flows
        known = frozenset(pair.first for pair in self.pairs if pair.first is not None)
        for pair, part in zip(self.pairs, slices, strict=True):
            own = [part.module(second)] if has_modules(second) else []
            if first is not None and pair.first is not None and has_modules(first):
                own.append(between(first, pair.first, known).module(first))
            producer = pair.second.producer()
            yield lowest_common(own) if own or producer is None else label(producer)

    def located(self, most_runs: int, report: Progress, began: float) -> Location:
        """Search the first difference, measure the shares, and return the record."""
        trial, live = self.trial, self.live
        notes = [] if live is None else list(live.notes)
        module: DifferingModule | None = None
        shares: tuple[ModuleShare, ...] = ()
        substitutions: list[Substitution] = []
        if trial.failures:
            borders = frozenset(pair.second for pair in self.pairs)
            slices = [between(self.flows[1], pair.second, borders) for pair in self.pairs]
            models = self.reference, self.compared
            search = ModuleSearch(self._borders(slices), *models, trial.expected, trial.results, self.rounded)
            report("searching the first module that differs", None)
            finding = search.first_difference()
            report("measuring the shares of modules", None)
            intervals = search.intervals(most_runs if finding is not None else 0)
            shares = _shares(search, intervals, most_runs // _RUNS_PER_MODULE)
            names = [search.borders[place].name for place in search.left_out]
            if names:
                notes.append(f"not compared, because the models hold other values there: {', '.join(names)}")
            if search.harmless is not None:
                name, why = search.borders[search.harmless.index].name, search.harmless.reason
                notes.append(f"'{name}' differs before it, but without an effect on the error: {why}")
            module = None if finding is None else self._differing(search, finding, slices)
            for index, error in search.errors:
                border = search.borders[index] if index >= 0 else Border("", "", 0, False)
                substitutions.append(Substitution(index + 1, border.module, border.name, error))
        parts = [max(share.share, 0.0) for share in shares]
        spread = sum(parts) ** 2 / sum(part**2 for part in parts) if any(parts) else 0.0
        return Location(
            environment=environment(),
            first=self.first,
            second=self.second,
            same=not trial.failures,
            gradual=spread >= _GRADUAL_SPREAD and max(parts, default=0.0) < _DOMINANT_SHARE,
            module=module,
            shares=shares,
            spread=spread,
            error=relative_error(trial.expected, trial.results),
            failures=tuple(trial.failures),
            trial=trial.label,
            borders=len(self.pairs),
            unpaired=tuple(self.unpaired),
            runs=sum(probe.runs for probe in self.probes) + (0 if live is None else live.runs),
            substitutions=tuple(substitutions),
            peak_bytes=max((probe.peak_bytes for probe in self.probes), default=0),
            seconds=time.perf_counter() - began,
            notes=tuple(notes),
        )

    def _differing(self, search: ModuleSearch, finding: Finding, slices: Sequence[Between]) -> DifferingModule:
        border, flow = search.borders[finding.index], self.flows[1]
        compared = frozenset(one.second for place, one in enumerate(self.pairs) if place not in search.left_out)
        part = between(flow, self.pairs[finding.index].second, compared)
        modules = part.modules(flow)
        is_tagged = has_modules(flow)
        module = lowest_common([border.module, part.module(flow)]) if search.left_out and is_tagged else border.module
        share = search.share_of(finding)
        side = part.side_nodes(flow) if is_tagged else []
        # If other modules read numbers that enter a module unseen, they would share the error: then the module itself
        # has the fault, and not those that these numbers come from.
        others = [other.nodes for other in slices if other.nodes != part.nodes]
        are_read_elsewhere = all(any(node in nodes for nodes in others) for node in side)
        if share is None or share < _ONLY_CAUSE_SHARE or not are_read_elsewhere:
            module = lowest_common([module, *(owner_of(flow.origins[node]) for node in side)])
        return DifferingModule(
            module=module,
            tag=self.hierarchy.tag(module),
            value=border.name,
            error=finding.error,
            reason=finding.reason,
            share=share,
            nodes=tuple(label(node) for node in part.nodes if node in part.after or not part.after)[:_LISTED_NODES],
            modules=tuple(modules) if len(modules) > 1 else (),
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
        places = range(interval.start + 1, interval.end + 1)
        merged.setdefault(tuple(dict.fromkeys(search.borders[place].module for place in places)), []).append(interval)
    summed = [(sum(part.share for part in parts), modules, parts) for modules, parts in merged.items()]
    listed: list[ModuleShare] = []
    for share, modules, parts in sorted(summed, key=lambda entry: -entry[0]):
        if share >= _LEAST_SHARE:
            adjacent = all(one.end == other.start for one, other in itertools.pairwise(parts))
            alone = search.alone(parts[0].start, parts[-1].end) if adjacent and len(listed) < most else None
            error = search.module_error(parts[-1].end)
            finite = error if error is not None and math.isfinite(error) else None
            names = modules if len(modules) > 1 else ()
            listed.append(ModuleShare(lowest_common(modules), share, names, finite, alone))
    return tuple(listed)


def _live(
    module: Any,
    second: Tagged,
    inputs: Any,
    kwargs: Mapping[str, Any] | None,
    seed: int,
    runtimes: Sequence[Runtime | str],
    threads: int | None,
    report: Progress,
) -> _Models:
    """Compare a PyTorch module with an ONNX model on one example."""
    from sardonyx.frontend.installed import require_torch

    require_torch()
    from sardonyx.frontend.tracing.engine import LiveValues

    report("running the PyTorch module", None)
    live = LiveValues(module, *_example(module, second.model, inputs, kwargs, seed))
    feeds = live.feeds([value.name or "" for value in second.model.graph.inputs if not value.is_initializer()])
    expected, outputs = live.outputs(), second.model.graph.outputs
    probe = BorderProbe(second.model, _runtimes(runtimes)[1], threads=threads)
    if len(expected) != len(outputs):
        raise UsageError(
            f"the module has {len(expected)} outputs and the file {len(outputs)}",
            hint="give the model that the file was exported from",
        )
    style = "given" if inputs is not None else "example"
    trial = _compared(probe, probe, style, feeds, feeds, expected)
    flow = Flow(second.model)
    keys, unpaired = _live_pairs(flow, live, outputs) if trial.failures else ({}, [])
    pairs = in_order(flow, [BorderPair(None, value, False) for value in keys])
    reached = _Probed(probe, feeds, [pair.second for pair in pairs])
    return _Models(
        LocatedModel(type(module).__name__, "torch", live.name),
        LocatedModel(second.name, "onnx", probe.name),
        second.hierarchy,
        trial,
        (None, flow),
        (probe,),
        pairs,
        unpaired,
        _LiveFirst(live, keys, pairs),
        reached,
        reached.rounded,
        live,
    )


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
