"""What gates may ask of records about models: runs, exports, inspections and what else counts nodes and bytes."""

from __future__ import annotations

from sardonyx.records.comparison import Comparison
from sardonyx.records.export import Export
from sardonyx.records.extraction import Extraction
from sardonyx.records.inspection import Adoption, Inspection, ModuleInspection, Opportunities
from sardonyx.records.run import Run, Verdict
from sardonyx.reporting.gate.common_metrics import (
    COUNTED,
    FILE,
    OWNING,
    PARAMETERS,
    PLACED,
    PROVEN,
    REMOVED,
    SECONDS,
    SHARES,
    SIZES,
    TUNED,
    changed,
    counted,
    placed,
    plain,
    proven,
    spent,
    tuned,
)
from sardonyx.reporting.gate.kinds import Measures, RecordKind
from sardonyx.reporting.gate.metric import Measure


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
        | proven(run.verdict)
        | tuned(run.tuning)
    )


def _of_export(made: Export) -> Measures:
    run = made.optimized
    return (
        counted(made.counts if run is None else run.after)
        | {
            "file_bytes": Measure(made.result.bytes),
            "parameters": Measure(made.module.parameters),
            "modules": Measure(made.modules),
            "unreached": Measure(len(made.unreached)),
            "seconds": spent(made.seconds),
        }
        | placed(made.coverage)
        | proven(made.verdict, None if run is None else run.verdict)
    )


def _of_inspection(found: Inspection) -> Measures:
    return (
        counted(found.counts)
        | {
            "file_bytes": Measure(found.file_bytes),
            "parameters": Measure(found.parameters),
            "modules": Measure(sum(module.nodes > 0 for module in found.modules)),
            "operators": Measure(len(found.ops)),
            "functions": Measure(len(found.functions)),
        }
        | placed(found.coverage)
    )


def _of_module(found: ModuleInspection) -> Measures:
    return {
        "nodes": Measure(found.nodes),
        "constants": Measure(found.constants),
        "parameters": Measure(found.parameters),
        "modules": Measure(sum(module.nodes > 0 for module in found.modules)),
        "operators": Measure(len(found.ops)),
        "shared_nodes": Measure(len(found.shared_nodes)),
    } | placed(found.coverage)


def _of_opportunities(found: Opportunities) -> Measures:
    unwanted = [pattern for pattern in found.patterns if not pattern.made]
    after = {f"{name}_after": value for name, value in counted(found.after).items()}
    return (
        counted(found.before)
        | after
        | {
            "found": Measure(sum(pattern.before for pattern in unwanted)),
            "left": Measure(sum(pattern.after for pattern in unwanted)),
        }
    )


def _of_extraction(found: Extraction) -> Measures:
    return (
        counted(found.counts)
        | {
            "file_bytes": Measure(found.result.bytes),
            "inputs": Measure(len(found.inputs)),
            "outputs": Measure(len(found.outputs)),
            "straddling": Measure(len(found.straddling)),
            "seconds": spent(found.seconds),
        }
        | proven(found.verdict, found.live)
    )


def _of_adoption(found: Adoption) -> Measures:
    return {"modules": Measure(found.modules)} | placed(found.coverage)


def _of_comparison(found: Comparison) -> Measures:
    sizes = ("nodes", "constants", "initializers")
    before, after = ({name: getattr(side, name) for name in sizes} for side in (found.before, found.after))
    return changed(before, after) | {
        "added": Measure(len(found.added)),
        "removed": Measure(len(found.removed)),
        "moved": Measure(len(found.moved)),
        "changed": Measure(len(found.changed)),
    }


RUN = RecordKind(
    Run,
    _of_run,
    COUNTED
    | FILE
    | REMOVED
    | {"rewrites": "rewrites that were applied", "rolled_back": "rewrites undone because the proof failed with them"}
    | SECONDS
    | PROVEN
    | TUNED,
    shares=(*SIZES, *TUNED),
    common=(*COUNTED, *FILE, *PROVEN),
)
VERDICT = RecordKind(Verdict, proven, PROVEN, common=tuple(PROVEN))
EXPORT = RecordKind(
    Export,
    _of_export,
    COUNTED
    | FILE
    | PARAMETERS
    | OWNING
    | {"unreached": "outermost modules whose weights the example inputs never reach"}
    | PLACED
    | PROVEN
    | SECONDS,
    shares=SHARES,
    alone=("unreached",),
    common=(*COUNTED, *FILE, *PLACED, *PROVEN),
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
    {"nodes": "compute nodes of it and of those below", "constants": "Constants that they read"}
    | PARAMETERS
    | OWNING
    | PLACED
    | {"operators": "different operators", "shared_nodes": "nodes that also work for modules outside it"},
    shares=SHARES,
)
OPPORTUNITIES = RecordKind(
    Opportunities,
    _of_opportunities,
    COUNTED
    | {f"{name}_after": f"the same once every pass has run: {what}" for name, what in COUNTED.items()}
    | {
        "found": "places of patterns that could be fused or dropped",
        "left": "how many of them would be left after every pass",
    },
    common=tuple(COUNTED),
)
EXTRACTION = RecordKind(
    Extraction,
    _of_extraction,
    COUNTED
    | FILE
    | {
        "inputs": "tensors that go into the module",
        "outputs": "tensors that come out of it",
        "straddling": "nodes that made the cut wider than was asked",
    }
    | SECONDS
    | PROVEN,
    common=(*COUNTED, *FILE, *PROVEN),
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
