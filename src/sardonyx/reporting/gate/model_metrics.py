"""Gate names of records about models: runs, exports, inspections and others that count nodes and bytes."""

from __future__ import annotations

from sardonyx.records.comparison import Comparison
from sardonyx.records.export import Export
from sardonyx.records.expressions import Measure, ratio
from sardonyx.records.extraction import Extraction
from sardonyx.records.inspection import Adoption, Inspection, ModuleInspection, Opportunities
from sardonyx.records.location import Location
from sardonyx.records.quantization import Quantization
from sardonyx.records.run import Run, Verdict
from sardonyx.reporting.gate.kinds import (
    COUNTED,
    FILE,
    OWNING,
    PARAMETERS,
    PLACED,
    REMOVED,
    SECONDS,
    SHARES,
    SIZES,
    TUNED,
    VERIFIED,
    Measures,
    RecordKind,
    changed,
    counted,
    placed,
    plain,
    spent,
    tuned,
    verified,
)


def _of_run(run: Run) -> Measures:
    before = plain(counted(run.before)) | {"file_bytes": run.source.bytes}
    after = plain(counted(run.after)) | {"file_bytes": run.result.bytes}
    return (
        changed(before, after)
        | {
            "rewrites": Measure(sum(record.rewrites for record in run.passes)),
            "rolled_back": Measure(len(run.rolled_back)),
            "seconds": spent(run.seconds),
        }
        | verified(run.verdict)
        | tuned(run.tuning)
    )


def _of_export(export: Export) -> Measures:
    run = export.optimized
    return (
        counted(export.counts if run is None else run.after)
        | {
            "file_bytes": Measure(export.result.bytes),
            "parameters": Measure(export.module.parameters),
            "modules": Measure(export.modules),
            "unreached": Measure(len(export.unreached)),
            "seconds": spent(export.seconds),
        }
        | placed(export.coverage)
        | verified(export.verdict, None if run is None else run.verdict)
    )


def _of_inspection(inspection: Inspection) -> Measures:
    return (
        counted(inspection.counts)
        | {
            "file_bytes": Measure(inspection.file_bytes),
            "parameters": Measure(inspection.parameters),
            "modules": Measure(sum(m.nodes > 0 for m in inspection.modules)),
            "operators": Measure(len(inspection.ops)),
            "functions": Measure(len(inspection.functions)),
        }
        | placed(inspection.coverage)
    )


def _of_module(module: ModuleInspection) -> Measures:
    return {
        "nodes": Measure(module.nodes),
        "constants": Measure(module.constants),
        "parameters": Measure(module.parameters),
        "modules": Measure(sum(m.nodes > 0 for m in module.modules)),
        "operators": Measure(len(module.ops)),
        "shared_nodes": Measure(len(module.shared_nodes)),
    } | placed(module.coverage)


def _of_opportunities(opportunities: Opportunities) -> Measures:
    after = {f"{name}_after": value for name, value in counted(opportunities.after).items()}
    return (
        counted(opportunities.before)
        | after
        | {
            "found": Measure(opportunities.found),
            "left": Measure(opportunities.left),
        }
    )


def _of_extraction(extraction: Extraction) -> Measures:
    return (
        counted(extraction.counts)
        | {
            "file_bytes": Measure(extraction.result.bytes),
            "inputs": Measure(len(extraction.inputs)),
            "outputs": Measure(len(extraction.outputs)),
            "straddling": Measure(len(extraction.straddling)),
            "seconds": spent(extraction.seconds),
        }
        | verified(extraction.verdict, extraction.live)
    )


def _of_quantization(quantization: Quantization) -> Measures:
    before = plain(counted(quantization.before)) | {"file_bytes": quantization.source.bytes}
    after = plain(counted(quantization.after)) | {"file_bytes": quantization.result.bytes}
    return (
        changed(before, after)
        | {
            "products": Measure(len(quantization.products)),
            "samples": Measure(quantization.loss.samples),
            "seconds": spent(quantization.seconds),
        }
        | _losses(quantization)
    )


def _losses(quantization: Quantization) -> Measures:
    """Return the judged loss with its intervals, and the time of the result if it was measured."""
    scores, choice = quantization.loss.scores, quantization.choice
    names = ("relative_l2", "cosine", "top1", "metric")
    intervals = {} if scores is None else {name: getattr(scores, name) for name in names}
    losses = {
        "metric_drop" if name == "metric" else name: Measure(each.value, 1.0, each.low, each.high)
        for name, each in intervals.items()
        if each is not None
    }
    time = None if choice is None else choice.points[choice.chosen].time
    timed = {} if time is None else {"latency_ratio": ratio(time.ratio, time.low, time.high, time.finding)}
    return losses | timed


def _of_adoption(adoption: Adoption) -> Measures:
    return {"modules": Measure(adoption.modules)} | placed(adoption.coverage)


def _of_comparison(comparison: Comparison) -> Measures:
    sizes = ("nodes", "constants", "initializers")
    before, after = ({name: getattr(side, name) for name in sizes} for side in (comparison.before, comparison.after))
    return changed(before, after) | {
        "added": Measure(len(comparison.added)),
        "removed": Measure(len(comparison.removed)),
        "moved": Measure(len(comparison.moved)),
        "changed": Measure(len(comparison.changed)),
    }


def _of_location(location: Location) -> Measures:
    return {
        "error": Measure(location.error, 1.0),
        "largest_share": Measure(max((share.share for share in location.shares), default=0.0), 1.0),
        "spread": Measure(location.spread),
        "runs": Measure(location.runs),
        "seconds": Measure(location.seconds),
    }


RUN = RecordKind(
    Run,
    _of_run,
    COUNTED
    | FILE
    | REMOVED
    | {"rewrites": "rewrites that were applied", "rolled_back": "rewrites undone because verification failed"}
    | SECONDS
    | VERIFIED
    | TUNED,
    shares=(*SIZES, *TUNED),
    common=(*COUNTED, *FILE, *VERIFIED),
)
VERDICT = RecordKind(Verdict, verified, VERIFIED, common=tuple(VERIFIED))
EXPORT = RecordKind(
    Export,
    _of_export,
    COUNTED
    | FILE
    | PARAMETERS
    | OWNING
    | {"unreached": "outermost modules whose weights the example inputs never reach"}
    | PLACED
    | VERIFIED
    | SECONDS,
    shares=SHARES,
    alone=("unreached",),
    common=(*COUNTED, *FILE, *PLACED, *VERIFIED),
)
INSPECTION = RecordKind(
    Inspection,
    _of_inspection,
    COUNTED
    | FILE
    | PARAMETERS
    | OWNING
    | PLACED
    | {"operators": "different operators", "functions": "functions that the model defines"},
    shares=SHARES,
    common=(*COUNTED, *FILE, *PLACED),
)
MODULE = RecordKind(
    ModuleInspection,
    _of_module,
    {"nodes": "compute nodes of it and of those below", "constants": "constants that they read"}
    | PARAMETERS
    | OWNING
    | PLACED
    | {"operators": "different operators", "shared_nodes": "nodes that also do the work of modules outside it"},
    shares=SHARES,
)
OPPORTUNITIES = RecordKind(
    Opportunities,
    _of_opportunities,
    COUNTED
    | {f"{name}_after": f"the same once every pass has run: {what}" for name, what in COUNTED.items()}
    | {
        "found": "matches that passes would rewrite or skip",
        "left": "matches that passes would skip",
    },
    common=tuple(COUNTED),
)
EXTRACTION = RecordKind(
    Extraction,
    _of_extraction,
    COUNTED
    | FILE
    | {
        "inputs": "inputs of the module",
        "outputs": "outputs of the module",
        "straddling": "nodes that made the extracted part wider than requested",
    }
    | SECONDS
    | VERIFIED,
    common=(*COUNTED, *FILE, *VERIFIED),
)
QUANTIZATION = RecordKind(
    Quantization,
    _of_quantization,
    COUNTED
    | FILE
    | REMOVED
    | {
        "products": "products and lookups that were quantized",
        "relative_l2": "norm of the difference over the norm of the source's output, of the worst output",
        "cosine": "cosine of the angle between the outputs of source and result, of the worst output",
        "top1": "share of rows whose largest element is the same, of the worst output",
        "metric_drop": "mean of --metric over the samples, of the source minus that of the result",
        "latency_ratio": "time of a run of the result over that of the source, if it was chosen; below 1 is faster",
        "samples": "samples on which the loss is measured",
    }
    | SECONDS,
    shares=(*SIZES, "top1"),
    common=(*COUNTED, *FILE),
)
ADOPTION = RecordKind(Adoption, _of_adoption, OWNING | PLACED, shares=SHARES, common=tuple(PLACED))
COMPARISON = RecordKind(
    Comparison,
    _of_comparison,
    {name: f"{what}, of the second model" for name, what in COUNTED.items() if name != "bytes"}
    | {f"{name}_removed": f"how many fewer than in the first: {name}" for name in COUNTED if name != "bytes"}
    | {
        "added": "nodes of the second model without a counterpart",
        "removed": "nodes of the first model without a counterpart",
        "moved": "nodes that another module owns",
        "changed": "nodes with other attributes",
    },
    shares=[f"{name}{end}" for name in COUNTED if name != "bytes" for end in ("", "_removed")],
    common=("nodes", "constants", "initializers"),
)
LOCATION = RecordKind(
    Location,
    _of_location,
    {
        "error": "relative error of the outputs, root mean square",
        "largest_share": "share of the most responsible module in the squared error",
        "spread": "effective number of modules that cause the error",
        "runs": "runs of either model",
    }
    | SECONDS,
    shares=("error", "largest_share"),
)
