"""The measures of every kind of record; a measured time has an interval, and a gate trips only if all of it is beyond.

A number is declared here once, and every view of it follows: `--fail-if`, the CI summary, history, changes, tables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from sardonyx.records.analysis import Analysis, Decomposed, Form
from sardonyx.records.base import Record
from sardonyx.records.bench import Benchmark, Placement, Profile, Timing
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
    value,
)


def _lower(name: str, meaning: str, of: Callable[[Any], Any] | str = "", unit: Unit = COUNT, **more: Any) -> Measure:
    return Measure(name, meaning, of, unit, "lower", **more)


def _higher(name: str, meaning: str, of: Callable[[Any], Any] | str = "", unit: Unit = COUNT, **more: Any) -> Measure:
    return Measure(name, meaning, of, unit, "higher", **more)


def _kind(record: type[Record], *declared: Measure) -> RecordKind:
    return RecordKind(record, declared)


# Measures that several kinds have.

_COUNTED = {
    "nodes": "compute nodes, bodies of control flow and functions included",
    "constants": "Constant nodes",
    "initializers": "initializers",
    "bytes": "bytes of all constant data, wherever it is stored",
}
_SIZES = _COUNTED | {"file_bytes": "bytes of the file and of what belongs to it"}


def _fields(counts: str, file: str = "") -> dict[str, str]:
    """Return the field of each size: those of counts, and the bytes of the file if it is given."""
    return {name: f"{counts}.{name}" for name in _COUNTED} | ({"file_bytes": file} if file else {})


def _sizes(fields: Mapping[str, str], before: Mapping[str, str] | None = None) -> Iterator[Measure]:
    """Yield a measure for each size, and how much smaller it is if there is a size before."""
    before = before or {}
    units = {name: BYTES if name.endswith("bytes") else COUNT for name in fields}
    for name, of in fields.items():
        yield _lower(name, _SIZES[name], of, units[name], whole=before.get(name, ""), common=True)
    for name, whole in before.items():
        saved = functools.partial(_difference, whole, fields[name])
        yield _higher(f"{name}_removed", f"how many fewer than before: {_SIZES[name]}", saved, units[name], whole=whole)


def _difference(before: str, after: str, record: Any) -> float:
    return value(record, before) - value(record, after)


def _placed(common: bool = True) -> Iterator[Measure]:
    def share(*parts: str) -> Callable[[Any], float]:
        def of(record: Any) -> float:
            nodes: Coverage = record.coverage
            every = nodes.direct + nodes.inherited + nodes.root
            return sum(getattr(nodes, part) for part in parts) / every if every else 1.0

        return of

    what = "share of all nodes, constants included, whose module was observed"
    yield _higher("coverage", what, share("direct"), SHARE, common=common)
    what = "share of all nodes whose module is known, observed or inherited"
    yield _higher("placed", what, share("direct", "inherited"), SHARE, common=common)
    what = "nodes that inherited their module from a consumer or a producer"
    yield Measure("inherited", what, "coverage.inherited", common=common)
    yield _lower("root_nodes", "nodes without a module, assigned to the model itself", "coverage.root", common=common)


def _verified(verdicts: Callable[[Any], Sequence[Verdict | None]]) -> Iterator[Measure]:
    """Yield the worst differences over all outputs of all verdicts; a record without a verdict has none."""

    def over(number: Callable[[Sequence[Verdict]], float]) -> Callable[[Any], float | None]:
        def of(record: Any) -> float | None:
            known = [verdict for verdict in verdicts(record) if verdict is not None]
            return number(known) if known else None

        return of

    def largest(name: str) -> Callable[[Any], float | None]:
        return over(lambda known: worst(getattr(output, name) for verdict in known for output in verdict.outputs))

    what = "the largest absolute difference of any output, over all trials"
    yield _lower("max_err", what, largest("max_abs"), DIFFERENCE, common=True)
    yield _lower("max_abs", "the same as max_err", largest("max_abs"), DIFFERENCE, common=True)
    yield _lower("max_rel", "the largest relative difference", largest("max_rel"), DIFFERENCE, common=True)
    what = "the largest difference in units in the last place"
    yield _lower("max_ulp", what, largest("max_ulp"), PLAIN, common=True)
    count = over(lambda known: sum(len(verdict.trials) for verdict in known))
    yield Measure("trials", "trials on which both models were run", count, common=True)


def _spent(record: Any) -> float:
    """Return the total time, or the sum of all phases if it was not measured."""
    seconds: Mapping[str, float] = record.seconds
    return seconds["total"] if "total" in seconds else sum(seconds.values())


_SECONDS = _lower("seconds", "time the command took", _spent, SECONDS)
_PARAMETERS = Measure("parameters", "elements of weights")
_MODULES = Measure("modules", "modules that own a node", lambda record: sum(each.nodes > 0 for each in record.modules))
_OPERATORS = Measure("operators", "different operators", "ops")
_RATIO = _lower("latency_ratio", "", lambda _record: None, RATIO, title="after / before")


# Records about models.


def _tuned(run: Run) -> Number | None:
    tuning = run.tuning
    return _ratio(next((pace for pace in tuning.standing if pace.name == tuning.chosen), None)) if tuning else None


_CHANGED = (_fields("after", "result.bytes"), _fields("before", "source.bytes"))
RUN = _kind(
    Run,
    *_sizes(*_CHANGED),
    Measure("rewrites", "rewrites that were applied", lambda run: sum(record.rewrites for record in run.passes)),
    _lower("rolled_back", "rewrites undone because verification failed"),
    _SECONDS,
    *_verified(lambda run: [run.verdict]),
    _RATIO.at(_tuned, "time of a run of the result over that of the source, with --tune; below 1 is faster"),
)
VERDICT = _kind(Verdict, *_verified(lambda verdict: [verdict]))
NEEDS_VERDICT, NEEDS_TUNING = tuple(VERDICT.names), (_RATIO.name,)
EXPORT = _kind(
    Export,
    *_sizes(_fields("written", "result.bytes")),
    _PARAMETERS.at("module.parameters"),
    _MODULES.at("modules"),
    _lower("unreached", "outermost modules whose weights the example inputs never reach", alone=True),
    *_placed(),
    *_verified(lambda export: [export.verdict, None if export.optimized is None else export.optimized.verdict]),
    _SECONDS,
)
INSPECTION = _kind(
    Inspection,
    *_sizes(_fields("counts", "file_bytes")),
    *(_PARAMETERS, _MODULES, *_placed(), _OPERATORS),
    Measure("functions", "functions that the model defines"),
)
MODULE = _kind(
    ModuleInspection,
    _lower("nodes", "compute nodes of it and of those below"),
    _lower("constants", "constants that they read"),
    *(_PARAMETERS, _MODULES, *_placed(common=False), _OPERATORS),
    _lower("shared_nodes", "nodes that also do the work of modules outside it"),
)
_ONCE_RUN = "the same once every pass has run"
OPPORTUNITIES = _kind(
    Opportunities,
    *_sizes(_fields("before")),
    *(
        replace(each, name=f"{each.name}_after", meaning=f"{_ONCE_RUN}: {each.meaning}", common=False)
        for each in _sizes(_fields("after"))
    ),
    Measure("found", "matches that passes would rewrite or skip"),
    _lower("left", "matches that passes would skip"),
)
EXTRACTION = _kind(
    Extraction,
    *_sizes(_fields("counts", "result.bytes")),
    Measure("inputs", "inputs of the module"),
    Measure("outputs", "outputs of the module"),
    _lower("straddling", "nodes that made the extracted part wider than requested"),
    _SECONDS,
    *_verified(lambda extraction: [extraction.verdict, extraction.live]),
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
QUANTIZATION = _kind(
    Quantization,
    *_sizes(*_CHANGED),
    Measure("products", "products and lookups that were quantized"),
    _lower("relative_l2", _L2, _loss("relative_l2"), SHARE),
    _higher("cosine", _COSINE, _loss("cosine"), PLAIN),
    _higher("top1", _TOP1, _loss("top1"), SHARE),
    _lower("metric_drop", _DROP, _loss("metric"), PLAIN),
    _RATIO.at(_chosen_time, _CHOSEN),
    Measure("samples", "samples on which the loss is measured", "loss.samples"),
    _SECONDS,
)
ADOPTION = _kind(Adoption, _MODULES.at("modules"), *_placed())
PLACEMENT = _kind(
    Placement,
    _lower("fallback_nodes", "nodes that fall back to the CPU", alone=True),
    _lower("unsupported_nodes", "nodes that the runtime refuses", alone=True),
    _lower("unknown_nodes", "nodes that were not measured, or depend on attributes", alone=True),
    _lower("copies", "values that cross between device and CPU"),
    _lower("away_flops", "share of the arithmetic away from the device", unit=SHARE),
)


def _of_second(measure: Measure) -> Measure:
    name, _, removed = measure.name.partition("_")
    meaning = f"how many fewer than in the first: {name}" if removed else f"{measure.meaning}, of the second model"
    return replace(measure, meaning=meaning)


_SIDES = ({name: of for name, of in _fields(side).items() if name != "bytes"} for side in ("after", "before"))
COMPARISON = _kind(
    Comparison,
    *map(_of_second, _sizes(*_SIDES)),
    Measure("added", "nodes of the second model without a counterpart"),
    Measure("removed", "nodes of the first model without a counterpart"),
    Measure("moved", "nodes that another module owns"),
    Measure("changed", "nodes with other attributes"),
)
_BLAMED = "share of the most responsible module in the squared error"
LOCATION = _kind(
    Location,
    _lower("error", "relative error of the outputs, root mean square", unit=SHARE),
    Measure("largest_share", _BLAMED, lambda found: max((e.share for e in found.shares), default=0.0), SHARE),
    Measure("spread", "effective number of modules that cause the error", unit=PLAIN),
    Measure("runs", "runs of either model"),
    _SECONDS.at("seconds"),
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
DECOMPOSED = _kind(
    Decomposed,
    Measure("nodes", "nodes of the graph with every attention decomposed"),
    Measure("nodes_before", "nodes of the graph that torch traces, if it does"),
    Measure("attentions", "attentions that were decomposed"),
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


def _starts(name: str, scale: float = 1.0) -> Callable[[Benchmark], Number | None]:
    """Return the median over the starts, with the smallest and the largest as interval."""

    def median(timing: Timing) -> Number | None:
        found = (getattr(start, name) for start in timing.starts)
        known = sorted(scale * number for number in found if number is not None)
        return Number(known[len(known) // 2], None, known[0], known[-1]) if known else None

    return _last(median)


_AGAINST_FIRST = "time of a run of the last file over that of the first, below 1 is faster"
_LOADED = "the most memory that loading and a first run took, in bytes"
_NODES_OF_LAST = _lower("nodes", "compute nodes of the last file", lambda bench: bench.files[-1].nodes, common=True)
BENCHMARK = _kind(
    Benchmark,
    _RATIO.at(_last(lambda timing: _ratio(timing.against_first)), _AGAINST_FIRST),
    _lower("latency_ms", "milliseconds a run of the last file takes", _last(_latency), MILLISECONDS, title="latency"),
    _lower("load_ms", "milliseconds to load it into a fresh process", _starts("load_seconds", 1e3), MILLISECONDS),
    _lower("first_run_ms", "milliseconds of the first run there", _starts("first_run_seconds", 1e3), MILLISECONDS),
    _lower("peak_bytes", _LOADED, _starts("peak_bytes"), BYTES, title="peak memory"),
    _lower("peak_mb", "the same in MB of 10⁶", _starts("peak_bytes", 1e-6), MEGABYTES),
    _NODES_OF_LAST,
    _lower("file_bytes", "bytes of the last file", lambda bench: bench.files[-1].bytes, BYTES, common=True),
)


def _of_last(name: str) -> Callable[[Profile], float]:
    """Return where the number of the last file lies."""
    return lambda profile: value(profile.models[-1], name)


def _over_first(profile: Profile) -> float:
    first, last = profile.models[0].kernel_ms, profile.models[-1].kernel_ms
    return last / first if first else 1.0


_KERNEL_MS = "milliseconds a run of the last file spends in kernels"
_RUN_MS = "milliseconds a run takes while nothing is profiled"
_ATTRIBUTED = "share of the time in kernels that belongs to a module or to the model itself"
PROFILE = _kind(
    Profile,
    _lower("kernel_ms", _KERNEL_MS, _of_last("kernel_ms"), MILLISECONDS),
    _lower("run_ms", _RUN_MS, _of_last("plain_ms"), MILLISECONDS),
    _higher("attributed", _ATTRIBUTED, _of_last("attributed"), SHARE),
    _lower("kernel_ratio", "time in kernels of the last file over that of the first", _over_first, RATIO),
    _lower("kernels", "kernels that run", _of_last("kernels")),
    _NODES_OF_LAST.at(_of_last("nodes")),
)


def _models(*statuses: str) -> Callable[[Fleet], int]:
    return lambda fleet: sum(row.status in statuses for row in fleet.models)


def _saved(fleet: Fleet) -> float | None:
    what = "bytes" if fleet.command == "quantize" else "nodes"
    before, after = (sum(row.numbers.get(f"{what}_{when}", 0) for row in fleet.models) for when in ("before", "after"))
    return 1 - after / before if before else None


_SAVED = "share of the nodes of all models that is saved; of their bytes for `quantize`"
FLEET = _kind(
    Fleet,
    Measure("models", "models of the command"),
    _higher("done", "models with a result", _models("done", "reused"), whole="models"),
    _lower("failed", "models that failed", _models("failed"), whole="models", alone=True),
    Measure("reused", "models with a result of an earlier run", _models("reused"), whole="models"),
    _higher("saved", _SAVED, _saved, SHARE),
)
STUDY = _kind(
    Study,
    Measure("models", "models that were studied"),
    Measure("cells", "pieces of work, failed ones included"),
    _lower("failures", "pieces of work that failed"),
    Measure("findings", "findings"),
)


def kinds() -> Iterable[RecordKind]:
    """Return every kind of record that has numbers to compare."""
    return [declared for declared in globals().values() if isinstance(declared, RecordKind)]


def kind_of(tag: str) -> RecordKind:
    """Return the kind of record with this tag."""
    return next(kind for kind in kinds() if kind.record.record_tag() == tag)
