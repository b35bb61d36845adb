"""What gates may ask of each kind of record: the names, what they mean, and how their numbers are read from it.

The words are those that help and documentation show. A name that two kinds have in `common` means the same in
both, so that a record of one can be the baseline of the other; all other names are compared within a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.comparison import Comparison
from sardonyx.export_record import Export
from sardonyx.gate.expressions import Gate, parse
from sardonyx.gate.measures import Measure, ratio, share, worst
from sardonyx.inspection import Adoption, Coverage, Inspection, ModuleInspection, Opportunities
from sardonyx.record import Counts, Extraction, Run, Verdict
from sardonyx.tuning_record import Tuning

Measures = dict[str, Measure]


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of record, and what may be asked of it."""

    title: str  # with its article: "an inspection"
    record: type[Any]
    measures: Callable[[Any], Measures]
    names: Mapping[str, str]  # name -> what it is
    shares: Collection[str] = ()  # names that may be asked for in percent
    forms: Sequence[str] = ()  # a name after one of these and a dot asks of that form
    common: Collection[str] = ()  # names that mean the same in other kinds

    def parse(self, text: str, *, baseline: bool = False) -> Gate:
        """An expression about a record of this kind; `baseline`: whether there is one to ask for."""
        return parse(text, tuple(self.names), shares=self.shares, forms=self.forms, baseline=baseline)

    def help(self) -> str:
        """The paragraph that a command's help has about its gates."""
        return (
            f"--fail-if knows {', '.join(self.names)}. With --baseline FILE, a record that was written before, a limit "
            "may be 'baseline', 'baseline + 1%' or '1.05 * baseline'; docs/gates.md says what each is."
        )


_COUNTED = {
    "nodes": "compute nodes, bodies of control flow and functions included",
    "constants": "Constant nodes",
    "initializers": "initializers",
    "bytes": "bytes of all constant data, wherever it is stored",
}
_FILE = {"file_bytes": "bytes of the file and of what belongs to it"}
_PLACED = {
    "coverage": "share of all nodes, Constants included, that their module was seen running",
    "placed": "share of all nodes whose module is known, seen or inherited",
    "inherited": "nodes that got their module from what they feed or what feeds them",
    "root_nodes": "nodes that count to the model itself because nothing better is known",
}
_PROVEN = {
    "max_err": "the largest absolute difference of any output, over all trials",
    "max_abs": "the same under its longer name",
    "max_rel": "the largest relative difference",
    "max_ulp": "the largest difference in units in the last place",
    "trials": "sets of inputs both were run on",
}
_TUNED = {"latency_ratio": "time of a run of the result over that of the source, with --tune; below 1 is faster"}
NEEDS_VERDICT, NEEDS_TUNING = tuple(_PROVEN), tuple(_TUNED)
_REMOVED = {f"{name}_removed": f"how many fewer than before: {what}" for name, what in (_COUNTED | _FILE).items()}
_SIZES = (*_COUNTED, *_FILE, *_REMOVED)
_SHARES = ("coverage", "placed")
_SECONDS = {"seconds": "time the command took"}


def _counted(counts: Counts) -> Measures:
    return {
        "nodes": Measure(counts.nodes),
        "constants": Measure(counts.constants),
        "initializers": Measure(counts.initializers),
        "bytes": Measure(counts.bytes),
    }


def _placed(coverage: Coverage) -> Measures:
    every = coverage.direct + coverage.inherited + coverage.root
    return {
        "coverage": share(coverage.direct, every),
        "placed": share(coverage.direct + coverage.inherited, every),
        "inherited": Measure(coverage.inherited),
        "root_nodes": Measure(coverage.root),
    }


def _proven(*verdicts: Verdict | None) -> Measures:
    """The worst over all outputs of all proofs there are; nothing where there is none."""
    known = [verdict for verdict in verdicts if verdict is not None]
    if not known:
        return {}
    outputs = [output for verdict in known for output in verdict.outputs]
    largest = worst(output.max_abs for output in outputs)
    return {
        "max_err": Measure(largest),
        "max_abs": Measure(largest),
        "max_rel": Measure(worst(output.max_rel for output in outputs)),
        "max_ulp": Measure(worst(output.max_ulp for output in outputs)),
        "trials": Measure(sum(len(verdict.trials) for verdict in known)),
    }


def _changed(before: Mapping[str, float], after: Mapping[str, float]) -> Measures:
    """Sizes after, and how much smaller they are; percentages are taken of what there was before."""
    now = {name: Measure(value, before[name]) for name, value in after.items()}
    return now | {f"{name}_removed": Measure(before[name] - value, before[name]) for name, value in after.items()}


def _spent(seconds: Mapping[str, float]) -> Measure:
    """All phases, where the whole was not timed by itself."""
    return Measure(seconds["total"] if "total" in seconds else sum(seconds.values()))


def _plain(measures: Measures) -> dict[str, float]:
    return {name: measure.value for name, measure in measures.items()}


def _of_run(run: Run) -> Measures:
    before = _plain(_counted(run.before)) | {"file_bytes": run.source.bytes}
    after = _plain(_counted(run.after)) | {"file_bytes": run.result.bytes}
    return (
        _changed(before, after)
        | {
            "rewrites": Measure(sum(record.rewrites for record in run.passes)),
            "rolled_back": Measure(len(run.rolled_back)),
            "seconds": _spent(run.seconds),
        }
        | _proven(run.verdict)
        | _tuned(run.tuning)
    )


def _tuned(tuning: Tuning | None) -> Measures:
    pace = next((each for each in tuning.standing if each.name == tuning.chosen), None) if tuning else None
    return {} if pace is None else {"latency_ratio": ratio(pace.ratio, pace.low, pace.high, pace.finding)}


def _of_export(made: Export) -> Measures:
    run = made.optimized
    return (
        _counted(made.counts if run is None else run.after)
        | {
            "file_bytes": Measure(made.result.bytes),
            "parameters": Measure(made.module.parameters),
            "modules": Measure(made.modules),
            "seconds": _spent(made.seconds),
        }
        | _placed(made.coverage)
        | _proven(made.verdict, None if run is None else run.verdict)
    )


def _of_inspection(found: Inspection) -> Measures:
    return (
        _counted(found.counts)
        | {
            "file_bytes": Measure(found.file_bytes),
            "parameters": Measure(found.parameters),
            "modules": Measure(sum(module.nodes > 0 for module in found.modules)),
            "operators": Measure(len(found.ops)),
            "functions": Measure(len(found.functions)),
        }
        | _placed(found.coverage)
    )


def _of_module(found: ModuleInspection) -> Measures:
    return {
        "nodes": Measure(found.nodes),
        "constants": Measure(found.constants),
        "parameters": Measure(found.parameters),
        "modules": Measure(sum(module.nodes > 0 for module in found.modules)),
        "operators": Measure(len(found.ops)),
        "shared_nodes": Measure(len(found.shared_nodes)),
    } | _placed(found.coverage)


def _of_opportunities(found: Opportunities) -> Measures:
    unwanted = [pattern for pattern in found.patterns if not pattern.made]
    after = {f"{name}_after": value for name, value in _counted(found.after).items()}
    return (
        _counted(found.before)
        | after
        | {
            "found": Measure(sum(pattern.before for pattern in unwanted)),
            "left": Measure(sum(pattern.after for pattern in unwanted)),
        }
    )


def _of_extraction(found: Extraction) -> Measures:
    return (
        _counted(found.counts)
        | {
            "file_bytes": Measure(found.result.bytes),
            "inputs": Measure(len(found.inputs)),
            "outputs": Measure(len(found.outputs)),
            "straddling": Measure(len(found.straddling)),
            "seconds": _spent(found.seconds),
        }
        | _proven(found.verdict, found.live)
    )


def _of_adoption(found: Adoption) -> Measures:
    return {"modules": Measure(found.modules)} | _placed(found.coverage)


def _of_comparison(found: Comparison) -> Measures:
    sizes = ("nodes", "constants", "initializers")
    before, after = ({name: getattr(side, name) for name in sizes} for side in (found.before, found.after))
    return _changed(before, after) | {
        "added": Measure(len(found.added)),
        "removed": Measure(len(found.removed)),
        "moved": Measure(len(found.moved)),
        "changed": Measure(len(found.changed)),
    }


RUN = Kind(
    "an optimization",
    Run,
    _of_run,
    _COUNTED
    | _FILE
    | _REMOVED
    | {"rewrites": "rewrites that were applied", "rolled_back": "rewrites undone because the proof failed with them"}
    | _SECONDS
    | _PROVEN
    | _TUNED,
    shares=(*_SIZES, *_TUNED),
    common=(*_COUNTED, *_FILE, *_PROVEN),
)
VERDICT = Kind("a verdict", Verdict, _proven, _PROVEN, common=tuple(_PROVEN))
_OWNING = {"modules": "modules that own a node"}
_PARAMETERS = {"parameters": "elements of weights"}
EXPORT = Kind(
    "an export",
    Export,
    _of_export,
    _COUNTED | _FILE | _PARAMETERS | _OWNING | _PLACED | _PROVEN | _SECONDS,
    shares=_SHARES,
    common=(*_COUNTED, *_FILE, *_PLACED, *_PROVEN),
)
INSPECTION = Kind(
    "an inspection",
    Inspection,
    _of_inspection,
    _COUNTED
    | _FILE
    | _PARAMETERS
    | _OWNING
    | _PLACED
    | {"operators": "different operators", "functions": "functions that the model defines"},
    shares=_SHARES,
    common=(*_COUNTED, *_FILE, *_PLACED),
)
MODULE = Kind(
    "an inspection of a module",
    ModuleInspection,
    _of_module,
    {"nodes": "compute nodes of it and of those below", "constants": "Constants that they read"}
    | _PARAMETERS
    | _OWNING
    | _PLACED
    | {"operators": "different operators", "shared_nodes": "nodes that also work for modules outside it"},
    shares=_SHARES,
)
OPPORTUNITIES = Kind(
    "a list of opportunities",
    Opportunities,
    _of_opportunities,
    _COUNTED
    | {f"{name}_after": f"the same once every pass has run: {what}" for name, what in _COUNTED.items()}
    | {
        "found": "places of patterns that could be fused or dropped",
        "left": "how many of them would be left after every pass",
    },
    common=tuple(_COUNTED),
)
EXTRACTION = Kind(
    "an extraction",
    Extraction,
    _of_extraction,
    _COUNTED
    | _FILE
    | {
        "inputs": "tensors that go into the module",
        "outputs": "tensors that come out of it",
        "straddling": "nodes that made the cut wider than was asked",
    }
    | _SECONDS
    | _PROVEN,
    common=(*_COUNTED, *_FILE, *_PROVEN),
)
ADOPTION = Kind("an adoption", Adoption, _of_adoption, _OWNING | _PLACED, shares=_SHARES, common=tuple(_PLACED))
COMPARISON = Kind(
    "a comparison",
    Comparison,
    _of_comparison,
    {name: f"{what}, of the second model" for name, what in _COUNTED.items() if name != "bytes"}
    | {f"{name}_removed": f"how many fewer than in the first: {name}" for name in _COUNTED if name != "bytes"}
    | {
        "added": "nodes of the second model without a counterpart",
        "removed": "nodes of the first model without a counterpart",
        "moved": "nodes that another module owns",
        "changed": "nodes with other attributes",
    },
    shares=[f"{name}{end}" for name in _COUNTED if name != "bytes" for end in ("", "_removed")],
    common=("nodes", "constants", "initializers"),
)
