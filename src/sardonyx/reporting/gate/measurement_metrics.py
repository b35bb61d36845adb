"""Gate names of records about costs, times and studies.

A measured time has an interval, and a gate trips only if the whole interval is beyond the limit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from sardonyx.records.analysis import Analysis, Decomposed
from sardonyx.records.bench import Benchmark, Comparison, Timing
from sardonyx.records.expressions import Measure, ratio, share
from sardonyx.records.fleet import Fleet
from sardonyx.records.profile import Profile
from sardonyx.records.study import Study
from sardonyx.reporting.gate.kinds import Measures, RecordKind

FORMS = ("standard", "decomposed", "fused")
_OF_FORM = {
    "nodes": "nodes of the graph, if there is one",
    "attentions": "attentions",
    "operations": "operations, without views",
    "views": "views, which cost nothing",
    "macs": "multiply-adds of matrix products",
    "flops": "2 × macs and all other arithmetic",
    "bytes_read": "bytes that operations read",
    "bytes_written": "bytes that operations write",
    "traffic_bytes": "bytes read and written",
    "traffic_if_fused_bytes": "the same if every region were one kernel",
    "traffic_reduction": "the share that fusing saves",
    "intensity": "flops per byte moved",
    "regions": "fusable regions, without single operations",
    "parameters": "elements of parameters, tied ones once",
    "weight_bytes": "bytes of parameters, buffers and constants",
    "input_bytes": "bytes of the inputs",
    "activation_bytes": "bytes of activations at the peak, freed after their last use",
    "activation_as_run_bytes": "the same, freed when Python frees them (standard only)",
    "peak_bytes": "weights, inputs and activations at the peak",
}


_IN_MB = {name: name.removesuffix("_bytes") + "_mb" for name in _OF_FORM if name.endswith("_bytes")}


def _of_analysis(analysis: Analysis) -> Measures:
    """Return the numbers of each form; without a prefix, those of the standard form or of the last file.

    A missing number is NaN, so that a gate on it trips.
    """
    figures = {form.name: _with_mb(form.figures()) for form in analysis.forms}
    nothing = _with_mb(dict.fromkeys(_OF_FORM))
    of_torch = any(source.kind == "torch" for source in analysis.sources)
    plain = analysis.forms[0 if of_torch else -1].name
    named = {f"{form}.{name}": value for form in FORMS for name, value in figures.get(form, nothing).items()}
    return {name: _known(value, 1.0) for name, value in (figures[plain] | named).items()}


def _with_mb(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    values = {mb: figures[name] for name, mb in _IN_MB.items()}
    return dict(figures) | {name: None if value is None else value / 1e6 for name, value in values.items()}


def _known(value: float | None, whole: float | None = None) -> Measure:
    return Measure(math.nan if value is None else value, whole)


def _of_decomposed(decomposed: Decomposed) -> Measures:
    return {
        "nodes": Measure(decomposed.nodes),
        "nodes_before": _known(decomposed.nodes_before),
        "attentions": Measure(len(decomposed.attentions)),
    }


def _of_benchmark(bench: Benchmark) -> Measures:
    """Return the numbers of the last file, the worst over several sizes."""
    last = [point.timings[-1] for point in bench.points]
    ratios = [_ratio(timing.against_first) for timing in last if timing.against_first is not None]
    starts = [timing.starts for timing in last]
    peak = _highest(_starting([start.peak_bytes for start in group]) for group in starts)
    peak_mb = Measure(peak.value / 1e6, None, peak.lowest / 1e6, peak.highest / 1e6)
    return {
        "latency_ratio": _highest(ratios),
        "latency_ms": _highest(map(_latency, last)),
        "load_ms": _highest(_starting([1000 * start.load_seconds for start in group]) for group in starts),
        "first_run_ms": _highest(_starting([1000 * start.first_run_seconds for start in group]) for group in starts),
        "peak_bytes": peak,
        "peak_mb": peak_mb,
        "nodes": Measure(bench.files[-1].nodes),
        "file_bytes": Measure(bench.files[-1].bytes),
    }


def _ratio(compared: Comparison) -> Measure:
    return ratio(compared.ratio, compared.low, compared.high, compared.finding)


def _latency(timing: Timing) -> Measure:
    return Measure(1000 * timing.median, None, 1000 * timing.low_quartile, 1000 * timing.high_quartile)


def _starting(numbers: Sequence[float | None]) -> Measure:
    """Return the median over the starts, with the smallest and the largest as interval."""
    known = sorted(number for number in numbers if number is not None)
    return Measure(known[len(known) // 2], None, known[0], known[-1]) if known else Measure(math.nan)


def _highest(measures: Iterable[Measure]) -> Measure:
    known = [measure for measure in measures if measure.known]
    if not known:
        return Measure(math.nan)
    ends = (max(measure.lowest for measure in known), max(measure.highest for measure in known))
    return Measure(max(measure.value for measure in known), known[0].whole, *ends)


def _of_profile(profile: Profile) -> Measures:
    """Return the numbers of the last file."""
    first, last = profile.models[0], profile.models[-1]
    return {
        "kernel_ms": Measure(last.kernel_ms),
        "run_ms": Measure(last.plain_ms),
        "attributed": share(last.attributed_ms, last.kernel_ms),
        "kernel_ratio": share(last.kernel_ms, first.kernel_ms),
        "kernels": Measure(len(last.kernels)),
        "nodes": Measure(last.nodes),
    }


def _of_fleet(fleet: Fleet) -> Measures:
    counts = Counter(row.status for row in fleet.models)
    every = len(fleet.models)
    before, after = (
        sum(row.numbers.get(f"{what}_{when}", 0) for row in fleet.models)
        for what in ["bytes" if fleet.command == "quantize" else "nodes"]
        for when in ("before", "after")
    )
    return {
        "models": Measure(every),
        "done": Measure(counts["done"] + counts["reused"], every),
        "failed": Measure(counts["failed"], every),
        "reused": Measure(counts["reused"], every),
        "saved": Measure(1 - after / before if before else math.nan, 1.0),
    }


def _of_study(study: Study) -> Measures:
    return {
        "models": Measure(len(study.models)),
        "cells": Measure(study.cells),
        "failures": Measure(len(study.failures)),
        "findings": Measure(len(study.findings)),
    }


ANALYSIS = RecordKind(
    Analysis,
    _of_analysis,
    _OF_FORM | {mb: f"{_OF_FORM[name]}, in MB of 10⁶" for name, mb in _IN_MB.items()},
    shares=("traffic_reduction",),
    forms=FORMS,
)
DECOMPOSED = RecordKind(
    Decomposed,
    _of_decomposed,
    {
        "nodes": "nodes of the graph with every attention decomposed",
        "nodes_before": "nodes of the graph that torch traces, if it does",
        "attentions": "attentions that were decomposed",
    },
)
BENCHMARK = RecordKind(
    Benchmark,
    _of_benchmark,
    {
        "latency_ratio": "time of a run of the last file over that of the first, below 1 is faster",
        "latency_ms": "milliseconds a run of the last file takes",
        "load_ms": "milliseconds to load it into a fresh process",
        "first_run_ms": "milliseconds of the first run there",
        "peak_bytes": "the most memory that loading and a first run took, in bytes",
        "peak_mb": "the same in MB of 10⁶",
        "nodes": "compute nodes of the last file",
        "file_bytes": "bytes of the last file",
    },
    shares=("latency_ratio",),
    common=("nodes", "file_bytes"),
)
PROFILE = RecordKind(
    Profile,
    _of_profile,
    {
        "kernel_ms": "milliseconds a run of the last file spends in kernels",
        "run_ms": "milliseconds a run takes while nothing is profiled",
        "attributed": "share of the time in kernels that belongs to a module or to the model itself",
        "kernel_ratio": "time in kernels of the last file over that of the first",
        "kernels": "kernels that run",
        "nodes": "compute nodes of the last file",
    },
    shares=("attributed", "kernel_ratio"),
    common=("nodes",),
)
FLEET = RecordKind(
    Fleet,
    _of_fleet,
    {
        "models": "models of the command",
        "done": "models with a result",
        "failed": "models that failed",
        "reused": "models with a result of an earlier run",
        "saved": "share of the nodes of all models that is saved; of their bytes for `quantize`",
    },
    shares=("done", "failed", "reused", "saved"),
    alone=("failed",),
)
STUDY = RecordKind(
    Study,
    _of_study,
    {
        "models": "models that were studied",
        "cells": "pieces of work, failed ones included",
        "failures": "pieces of work that failed",
        "findings": "findings",
    },
)
