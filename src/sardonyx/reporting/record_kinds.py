"""The measures of every kind of record; a measured time has an interval, and a gate trips only if all of it is beyond.

A number is declared here once, and every view of it follows: `--fail-if`, the CI summary, history, changes, tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec.structs import asdict, replace

from sardonyx.records.analysis import Analysis, Decomposed, Form
from sardonyx.records.bench import Benchmark, Placement, Profile, ProfiledModel, Start, Timing
from sardonyx.records.comparison import Comparison, Location
from sardonyx.records.export import Export, Extraction
from sardonyx.records.expressions import Number, ratio, worst
from sardonyx.records.inspection import Adoption, Coverage, Inspection, ModuleInspection, Opportunities
from sardonyx.records.quantization import Quantization
from sardonyx.records.run import Run, Verdict
from sardonyx.records.study import Fleet, Study
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.measures import (
    BYTES,
    COUNT,
    DIFFERENCE,
    MEGABYTES,
    MILLISECONDS,
    PLAIN,
    RATIO,
    SECONDS,
    SHARE,
    Measure,
    RecordKind,
    Unit,
)

Sizes: TypeAlias = Callable[[Any], Mapping[str, float]]


def _lower(name: str, meaning: str, of: Callable[[Any], Any], unit: Unit = COUNT, **more: Any) -> Measure:
    return Measure(name, meaning, of, unit, "lower", **more)


def _higher(name: str, meaning: str, of: Callable[[Any], Any], unit: Unit = COUNT, **more: Any) -> Measure:
    return Measure(name, meaning, of, unit, "higher", **more)


# Measures that several kinds have.

_COUNTED = {
    "nodes": "compute nodes, bodies of control flow and functions included",
    "constants": "Constant nodes",
    "initializers": "initializers",
    "bytes": "bytes of all constant data, wherever it is stored",
}
_SIZES = _COUNTED | {"file_bytes": "bytes of the file and of what belongs to it"}


def _sizes(of: Sizes, names: Mapping[str, str], before: Sizes | None = None) -> Iterator[Measure]:
    """Yield a measure for each size, and how much smaller it is if there is a size before."""

    def at(name: str, sizes: Sizes) -> Callable[[Any], float]:
        return lambda record: sizes(record)[name]

    def saved(name: str, sizes: Sizes) -> Callable[[Any], float]:
        return lambda record: sizes(record)[name] - of(record)[name]

    units = {name: BYTES if name.endswith("bytes") else COUNT for name in names}
    for name, what in names.items():
        whole = before and at(name, before)
        yield _lower(name, what, at(name, of), units[name], whole=whole, common=True)
    if before is None:
        return
    for name, what in names.items():
        meaning = f"how many fewer than before: {what}"
        yield _higher(f"{name}_removed", meaning, saved(name, before), units[name], whole=at(name, before))


def _placed(common: bool = True) -> Iterator[Measure]:
    def share(counted: Callable[[Coverage], int]) -> Callable[[Any], float]:
        def of(record: Any) -> float:
            nodes: Coverage = record.coverage
            every = nodes.direct + nodes.inherited + nodes.root
            return counted(nodes) / every if every else 1.0

        return of

    observed, known = share(lambda nodes: nodes.direct), share(lambda nodes: nodes.direct + nodes.inherited)
    what = "share of all nodes, constants included, whose module was observed"
    yield _higher("coverage", what, observed, SHARE, common=common)
    what = "share of all nodes whose module is known, observed or inherited"
    yield _higher("placed", what, known, SHARE, common=common)
    what = "nodes that inherited their module from a consumer or a producer"
    yield Measure("inherited", what, lambda record: record.coverage.inherited, common=common)
    what = "nodes without a module, assigned to the model itself"
    yield _lower("root_nodes", what, lambda record: record.coverage.root, common=common)


def _verified(verdicts: Callable[[Any], Sequence[Verdict | None]]) -> Iterator[Measure]:
    """Yield the worst differences over all outputs of all verdicts; a record without a verdict has none."""

    def over(value: Callable[[Sequence[Verdict]], float]) -> Callable[[Any], float | None]:
        def of(record: Any) -> float | None:
            known = [verdict for verdict in verdicts(record) if verdict is not None]
            return value(known) if known else None

        return of

    def largest(name: str) -> Callable[[Any], float | None]:
        return over(lambda known: worst(getattr(output, name) for verdict in known for output in verdict.outputs))

    differences = {
        "max_err": ("the largest absolute difference of any output, over all trials", "max_abs"),
        "max_abs": ("the same as max_err", "max_abs"),
        "max_rel": ("the largest relative difference", "max_rel"),
        "max_ulp": ("the largest difference in units in the last place", "max_ulp"),
    }
    for name, (what, attribute) in differences.items():
        unit = PLAIN if name == "max_ulp" else DIFFERENCE
        yield _lower(name, what, largest(attribute), unit, common=True)
    count = over(lambda known: sum(len(verdict.trials) for verdict in known))
    yield Measure("trials", "trials on which both models were run", count, common=True)


def _spent(record: Any) -> float:
    """Return the total time, or the sum of all phases if it was not measured."""
    seconds: Mapping[str, float] = record.seconds
    return seconds["total"] if "total" in seconds else sum(seconds.values())


_SECONDS = _lower("seconds", "time the command took", _spent, SECONDS)
_PARAMETERS = Measure("parameters", "elements of weights", lambda record: record.parameters)
_MODULES = Measure("modules", "modules that own a node", lambda record: sum(each.nodes > 0 for each in record.modules))
_OPERATORS = Measure("operators", "different operators", lambda record: len(record.ops))
_RATIO = _lower("latency_ratio", "", lambda _record: None, RATIO, title="after / before")


# Records about models.


def _of_source(record: Run | Quantization) -> Mapping[str, float]:
    return asdict(record.before) | {"file_bytes": record.source.bytes}


def _of_result(record: Run | Quantization) -> Mapping[str, float]:
    return asdict(record.after) | {"file_bytes": record.result.bytes}


def _of_export(export: Export) -> Mapping[str, float]:
    counts = export.counts if export.optimized is None else export.optimized.after
    return asdict(counts) | {"file_bytes": export.result.bytes}


def _tuned(run: Run) -> Number | None:
    tuning = run.tuning
    return _ratio(next((pace for pace in tuning.standing if pace.name == tuning.chosen), None)) if tuning else None


_TUNED = "time of a run of the result over that of the source, with --tune; below 1 is faster"
RUN = RecordKind(
    Run,
    (
        *_sizes(_of_result, _SIZES, _of_source),
        Measure("rewrites", "rewrites that were applied", lambda run: sum(record.rewrites for record in run.passes)),
        _lower("rolled_back", "rewrites undone because verification failed", lambda run: len(run.rolled_back)),
        _SECONDS,
        *_verified(lambda run: [run.verdict]),
        _RATIO.at(_tuned, _TUNED),
    ),
)
VERDICT = RecordKind(Verdict, tuple(_verified(lambda verdict: [verdict])))
NEEDS_VERDICT, NEEDS_TUNING = tuple(VERDICT.names), (_RATIO.name,)

_UNREACHED = "outermost modules whose weights the example inputs never reach"
EXPORT = RecordKind(
    Export,
    (
        *_sizes(_of_export, _SIZES),
        _PARAMETERS.at(lambda export: export.module.parameters),
        _MODULES.at(lambda export: export.modules),
        _lower("unreached", _UNREACHED, lambda export: len(export.unreached), alone=True),
        *_placed(),
        *_verified(lambda export: [export.verdict, None if export.optimized is None else export.optimized.verdict]),
        _SECONDS,
    ),
)
INSPECTION = RecordKind(
    Inspection,
    (
        *_sizes(lambda inspection: asdict(inspection.counts) | {"file_bytes": inspection.file_bytes}, _SIZES),
        _PARAMETERS,
        _MODULES,
        *_placed(),
        _OPERATORS,
        Measure("functions", "functions that the model defines", lambda inspection: len(inspection.functions)),
    ),
)
_SHARED = "nodes that also do the work of modules outside it"
MODULE = RecordKind(
    ModuleInspection,
    (
        _lower("nodes", "compute nodes of it and of those below", lambda module: module.nodes),
        _lower("constants", "constants that they read", lambda module: module.constants),
        _PARAMETERS,
        _MODULES,
        *_placed(common=False),
        _OPERATORS,
        _lower("shared_nodes", _SHARED, lambda module: len(module.shared_nodes)),
    ),
)


_ONCE_RUN = "the same once every pass has run: {}"
OPPORTUNITIES = RecordKind(
    Opportunities,
    (
        *_sizes(lambda opportunities: asdict(opportunities.before), _COUNTED),
        *(
            replace(each, name=f"{each.name}_after", meaning=_ONCE_RUN.format(each.meaning), common=False)
            for each in _sizes(lambda opportunities: asdict(opportunities.after), _COUNTED)
        ),
        Measure("found", "matches that passes would rewrite or skip", lambda opportunities: opportunities.found),
        _lower("left", "matches that passes would skip", lambda opportunities: opportunities.left),
    ),
)
_WIDER = "nodes that made the extracted part wider than requested"
EXTRACTION = RecordKind(
    Extraction,
    (
        *_sizes(lambda extraction: asdict(extraction.counts) | {"file_bytes": extraction.result.bytes}, _SIZES),
        Measure("inputs", "inputs of the module", lambda extraction: len(extraction.inputs)),
        Measure("outputs", "outputs of the module", lambda extraction: len(extraction.outputs)),
        _lower("straddling", _WIDER, lambda extraction: len(extraction.straddling)),
        _SECONDS,
        *_verified(lambda extraction: [extraction.verdict, extraction.live]),
    ),
)


def _loss(score: str) -> Callable[[Quantization], Number | None]:
    """Return where a judged loss lies, with its interval."""

    def of(quantization: Quantization) -> Number | None:
        found = None if quantization.loss.scores is None else getattr(quantization.loss.scores, score)
        return None if found is None else Number(found.value, 1.0, found.low, found.high)

    return of


def _chosen_time(quantization: Quantization) -> Number | None:
    choice = quantization.choice
    return None if choice is None else _ratio(choice.points[choice.chosen].time)


_OF_OUTPUT = "of the worst output"
_L2 = f"norm of the difference over the norm of the source's output, {_OF_OUTPUT}"
_COSINE = f"cosine of the angle between the outputs of source and result, {_OF_OUTPUT}"
_TOP1 = f"share of rows whose largest element is the same, {_OF_OUTPUT}"
_DROP = "mean of --metric over the samples, of the source minus that of the result"
_CHOSEN = "time of a run of the result over that of the source, if it was chosen; below 1 is faster"
QUANTIZATION = RecordKind(
    Quantization,
    (
        *_sizes(_of_result, _SIZES, _of_source),
        Measure("products", "products and lookups that were quantized", lambda made: len(made.products)),
        _lower("relative_l2", _L2, _loss("relative_l2"), SHARE),
        _higher("cosine", _COSINE, _loss("cosine"), PLAIN),
        _higher("top1", _TOP1, _loss("top1"), SHARE),
        _lower("metric_drop", _DROP, _loss("metric"), PLAIN),
        _RATIO.at(_chosen_time, _CHOSEN),
        Measure("samples", "samples on which the loss is measured", lambda made: made.loss.samples),
        _SECONDS,
    ),
)
ADOPTION = RecordKind(Adoption, (_MODULES.at(lambda adoption: adoption.modules), *_placed()))

_REFUSED = "nodes that the runtime refuses"
_UNKNOWN_PLACE = "nodes that were not measured, or depend on attributes"
PLACEMENT = RecordKind(
    Placement,
    (
        _lower("fallback_nodes", "nodes that fall back to the CPU", lambda placed: placed.fallback_nodes, alone=True),
        _lower("unsupported_nodes", _REFUSED, lambda placed: placed.unsupported_nodes, alone=True),
        _lower("unknown_nodes", _UNKNOWN_PLACE, lambda placed: placed.unknown_nodes, alone=True),
        _lower("copies", "values that cross between device and CPU", lambda placed: placed.copies),
        _lower("away_flops", "share of the arithmetic away from the device", lambda placed: placed.away_flops, SHARE),
    ),
)


def _of_second(measure: Measure) -> Measure:
    name, _, removed = measure.name.partition("_")
    meaning = f"how many fewer than in the first: {name}" if removed else f"{measure.meaning}, of the second model"
    return replace(measure, meaning=meaning)


_COMPARED = {name: what for name, what in _COUNTED.items() if name != "bytes"}
COMPARISON = RecordKind(
    Comparison,
    (
        *map(_of_second, _sizes(lambda two: asdict(two.after), _COMPARED, lambda two: asdict(two.before))),
        Measure("added", "nodes of the second model without a counterpart", lambda compared: len(compared.added)),
        Measure("removed", "nodes of the first model without a counterpart", lambda compared: len(compared.removed)),
        Measure("moved", "nodes that another module owns", lambda compared: len(compared.moved)),
        Measure("changed", "nodes with other attributes", lambda compared: len(compared.changed)),
    ),
)


_BLAMED = "share of the most responsible module in the squared error"
_LARGEST = Measure("largest_share", _BLAMED, lambda found: max((e.share for e in found.shares), default=0.0), SHARE)
LOCATION = RecordKind(
    Location,
    (
        _lower("error", "relative error of the outputs, root mean square", lambda found: found.error, SHARE),
        _LARGEST,
        Measure("spread", "effective number of modules that cause the error", lambda found: found.spread, PLAIN),
        Measure("runs", "runs of either model", lambda found: found.runs),
        _SECONDS.at(lambda found: found.seconds),
    ),
)


# Records about costs, times and studies.

FORMS = ("standard", "decomposed", "fused")
_AMOUNT = Unit(lambda number: fmt.amount(round(number)))
_AT_PEAK = "bytes of activations at the peak, freed after their last use"
_AS_RUN = "the same, freed when Python frees them (standard only)"
_INTENSITY = Unit(lambda number: f"{number:.1f}")
_OF_FORM = (  # name, title, meaning, unit
    ("nodes", "graph nodes", "nodes of the graph, if there is one", COUNT),
    ("attentions", "", "attentions", COUNT),
    ("operations", "", "operations, without views", COUNT),
    ("views", "views, which cost nothing", "views, which cost nothing", COUNT),
    ("macs", "multiply-adds", "multiply-adds of matrix products", _AMOUNT),
    ("flops", "", "2 × macs and all other arithmetic", _AMOUNT),
    ("traffic_bytes", "bytes moved", "bytes read and written", BYTES),
    ("bytes_read", "read", "bytes that operations read", BYTES),
    ("bytes_written", "written", "bytes that operations write", BYTES),
    ("traffic_if_fused_bytes", "bytes moved if regions were fused", "the same if every region were one kernel", BYTES),
    ("traffic_reduction", "", "the share that fusing saves", SHARE),
    ("intensity", "flops per byte moved", "flops per byte moved", _INTENSITY),
    ("regions", "fusable regions", "fusable regions, without single operations", COUNT),
    ("parameters", "", "elements of parameters, tied ones once", COUNT),
    ("weight_bytes", "weights", "bytes of parameters, buffers and constants", BYTES),
    ("input_bytes", "inputs", "bytes of the inputs", BYTES),
    ("activation_bytes", "activations at the peak", _AT_PEAK, BYTES),
    ("activation_as_run_bytes", "as torch frees them", _AS_RUN, BYTES),
    ("peak_bytes", "peak: weights, inputs, activations", "weights, inputs and activations at the peak", BYTES),
)


def _figure(name: str, scale: float = 1.0) -> Callable[[Form], float | None]:
    def figure(form: Form) -> float | None:
        found = form.figures()[name]
        return None if found is None else found / scale

    return figure


FIGURES = tuple(
    Measure(name, what, _figure(name), unit, "lower" if unit is BYTES else "", title=title)
    for name, title, what, unit in _OF_FORM
)


_IN_MB = tuple(
    _lower(f"{each.name[:-5]}mb", f"{each.meaning}, in MB of 10⁶", _figure(each.name, 1e6), MEGABYTES)
    for each in FIGURES
    if each.name.endswith("_bytes")
)


def _form(analysis: Analysis, name: str) -> Form | None:
    """Return a form; without a name the standard one, or the last file."""
    if not name:
        return analysis.forms[0 if any(source.kind == "torch" for source in analysis.sources) else -1]
    return next((form for form in analysis.forms if form.name == name), None)


ANALYSIS = RecordKind(Analysis, (*FIGURES, *_IN_MB), FORMS, _form)
_TRACED = "nodes of the graph that torch traces, if it does"
DECOMPOSED = RecordKind(
    Decomposed,
    (
        Measure("nodes", "nodes of the graph with every attention decomposed", lambda decomposed: decomposed.nodes),
        Measure("nodes_before", _TRACED, lambda decomposed: decomposed.nodes_before),
        Measure("attentions", "attentions that were decomposed", lambda decomposed: len(decomposed.attentions)),
    ),
)


def _last(of: Callable[[Timing], Number | None]) -> Callable[[Benchmark], Number | None]:
    """Return the number of the last file, the worst over several sizes."""

    def worst_of(bench: Benchmark) -> Number | None:
        found = (of(point.timings[-1]) for point in bench.points)
        known = [number for number in found if number is not None]
        if not known:
            return None
        ends = (max(number.lowest for number in known), max(number.highest for number in known))
        return Number(max(number.value for number in known), None, *ends)

    return worst_of


def _ratio(compared: Any) -> Number | None:
    """Return a relative time with its interval, as `bench` and tuning record it."""
    return None if compared is None else ratio(compared.ratio, compared.low, compared.high, compared.finding)


def _latency(timing: Timing) -> Number:
    return Number(1000 * timing.median, None, 1000 * timing.low_quartile, 1000 * timing.high_quartile)


def _starts(of: Callable[[Start], float | None], scale: float = 1.0) -> Callable[[Benchmark], Number | None]:
    """Return the median over the starts, with the smallest and the largest as interval."""

    def median(timing: Timing) -> Number | None:
        known = sorted(scale * number for start in timing.starts if (number := of(start)) is not None)
        return Number(known[len(known) // 2], None, known[0], known[-1]) if known else None

    return _last(median)


_AGAINST_FIRST = "time of a run of the last file over that of the first, below 1 is faster"
_LATENCY = "milliseconds a run of the last file takes"
_LOAD, _FIRST_RUN = "milliseconds to load it into a fresh process", "milliseconds of the first run there"
_LOADED = "the most memory that loading and a first run took, in bytes"
_NODES_OF_LAST = _lower("nodes", "compute nodes of the last file", lambda bench: bench.files[-1].nodes, common=True)
BENCHMARK = RecordKind(
    Benchmark,
    (
        _RATIO.at(_last(lambda timing: _ratio(timing.against_first)), _AGAINST_FIRST),
        _lower("latency_ms", _LATENCY, _last(_latency), MILLISECONDS, title="latency"),
        _lower("load_ms", _LOAD, _starts(lambda start: start.load_seconds, 1e3), MILLISECONDS),
        _lower("first_run_ms", _FIRST_RUN, _starts(lambda start: start.first_run_seconds, 1e3), MILLISECONDS),
        _lower("peak_bytes", _LOADED, _starts(lambda start: start.peak_bytes), BYTES, title="peak memory"),
        _lower("peak_mb", "the same in MB of 10⁶", _starts(lambda start: start.peak_bytes, 1e-6), MEGABYTES),
        _NODES_OF_LAST,
        _lower("file_bytes", "bytes of the last file", lambda bench: bench.files[-1].bytes, BYTES, common=True),
    ),
)


def _of_profile(of: Callable[[ProfiledModel], float]) -> Callable[[Profile], float]:
    """Return the number of the last file."""
    return lambda profile: of(profile.models[-1])


def _over_first(profile: Profile) -> float:
    first, last = profile.models[0].kernel_ms, profile.models[-1].kernel_ms
    return last / first if first else 1.0


_KERNEL_MS, _RUN_MS = (
    "milliseconds a run of the last file spends in kernels",
    "milliseconds a run takes while nothing is profiled",
)
_ATTRIBUTED = "share of the time in kernels that belongs to a module or to the model itself"
_KERNEL_RATIO = "time in kernels of the last file over that of the first"
PROFILE = RecordKind(
    Profile,
    (
        _lower("kernel_ms", _KERNEL_MS, _of_profile(lambda model: model.kernel_ms), MILLISECONDS),
        _lower("run_ms", _RUN_MS, _of_profile(lambda model: model.plain_ms), MILLISECONDS),
        _higher("attributed", _ATTRIBUTED, _of_profile(lambda model: model.attributed), SHARE),
        _lower("kernel_ratio", _KERNEL_RATIO, _over_first, RATIO),
        _lower("kernels", "kernels that run", _of_profile(lambda model: len(model.kernels))),
        _NODES_OF_LAST.at(_of_profile(lambda model: model.nodes)),
    ),
)


def _models(*statuses: str) -> Callable[[Fleet], int]:
    return lambda fleet: sum(not statuses or row.status in statuses for row in fleet.models)


def _saved(fleet: Fleet) -> float | None:
    what = "bytes" if fleet.command == "quantize" else "nodes"
    before, after = (sum(row.numbers.get(f"{what}_{when}", 0) for row in fleet.models) for when in ("before", "after"))
    return 1 - after / before if before else None


_EVERY = _models()
_SAVED = "share of the nodes of all models that is saved; of their bytes for `quantize`"
FLEET = RecordKind(
    Fleet,
    (
        Measure("models", "models of the command", _EVERY),
        _higher("done", "models with a result", _models("done", "reused"), whole=_EVERY),
        _lower("failed", "models that failed", _models("failed"), whole=_EVERY, alone=True),
        Measure("reused", "models with a result of an earlier run", _models("reused"), whole=_EVERY),
        _higher("saved", _SAVED, _saved, SHARE),
    ),
)
STUDY = RecordKind(
    Study,
    (
        Measure("models", "models that were studied", lambda study: len(study.models)),
        Measure("cells", "pieces of work, failed ones included", lambda study: study.cells),
        _lower("failures", "pieces of work that failed", lambda study: len(study.failures)),
        Measure("findings", "findings", lambda study: len(study.findings)),
    ),
)


def kinds() -> Iterable[RecordKind]:
    """Return every kind of record that has numbers to compare."""
    return [declared for declared in globals().values() if isinstance(declared, RecordKind)]


def kind_of(tag: str) -> RecordKind:
    """Return the kind of record with this tag."""
    return next(kind for kind in kinds() if kind.record.record_tag() == tag)
