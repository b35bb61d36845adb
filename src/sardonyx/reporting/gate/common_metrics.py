"""Gate names that several kinds of records have: their meaning, and how their numbers are read."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.records.inspection import Coverage
from sardonyx.records.run import Counts, Verdict
from sardonyx.records.tuning import Tuning
from sardonyx.reporting.gate.kinds import Measures
from sardonyx.reporting.gate.metric import Measure, ratio, share, worst

COUNTED = {
    "nodes": "compute nodes, bodies of control flow and functions included",
    "constants": "Constant nodes",
    "initializers": "initializers",
    "bytes": "bytes of all constant data, wherever it is stored",
}
FILE = {"file_bytes": "bytes of the file and of what belongs to it"}
PLACED = {
    "coverage": "share of all nodes, constants included, whose module was observed",
    "placed": "share of all nodes whose module is known, observed or inherited",
    "inherited": "nodes that inherited their module from a consumer or a producer",
    "root_nodes": "nodes without a module, assigned to the model itself",
}
VERIFIED = {
    "max_err": "the largest absolute difference of any output, over all trials",
    "max_abs": "the same as max_err",
    "max_rel": "the largest relative difference",
    "max_ulp": "the largest difference in units in the last place",
    "trials": "trials on which both models were run",
}
TUNED = {"latency_ratio": "time of a run of the result over that of the source, with --tune; below 1 is faster"}
NEEDS_VERDICT, NEEDS_TUNING = tuple(VERIFIED), tuple(TUNED)
REMOVED = {f"{name}_removed": f"how many fewer than before: {what}" for name, what in (COUNTED | FILE).items()}
SIZES = (*COUNTED, *FILE, *REMOVED)
SHARES = ("coverage", "placed")
SECONDS = {"seconds": "time the command took"}
OWNING = {"modules": "modules that own a node"}
PARAMETERS = {"parameters": "elements of weights"}


def counted(counts: Counts) -> Measures:
    """Return the size of a graph."""
    return {
        "nodes": Measure(counts.nodes),
        "constants": Measure(counts.constants),
        "initializers": Measure(counts.initializers),
        "bytes": Measure(counts.bytes),
    }


def placed(coverage: Coverage) -> Measures:
    """Return how the modules of the nodes are known."""
    every = coverage.direct + coverage.inherited + coverage.root
    return {
        "coverage": share(coverage.direct, every),
        "placed": share(coverage.direct + coverage.inherited, every),
        "inherited": Measure(coverage.inherited),
        "root_nodes": Measure(coverage.root),
    }


def verified(*verdicts: Verdict | None) -> Measures:
    """Return the worst differences over all outputs of all verdicts; nothing without a verdict."""
    existing = [verdict for verdict in verdicts if verdict is not None]
    if not existing:
        return {}
    outputs = [output for verdict in existing for output in verdict.outputs]
    largest = worst(output.max_abs for output in outputs)
    return {
        "max_err": Measure(largest),
        "max_abs": Measure(largest),
        "max_rel": Measure(worst(output.max_rel for output in outputs)),
        "max_ulp": Measure(worst(output.max_ulp for output in outputs)),
        "trials": Measure(sum(len(verdict.trials) for verdict in existing)),
    }


def changed(before: Mapping[str, float], after: Mapping[str, float]) -> Measures:
    """Return the sizes after, and how much smaller they are; percentages are of the sizes before."""
    now = {name: Measure(value, before[name]) for name, value in after.items()}
    return now | {f"{name}_removed": Measure(before[name] - value, before[name]) for name, value in after.items()}


def spent(seconds: Mapping[str, float]) -> Measure:
    """Return the total time, or the sum of all phases if it was not measured."""
    return Measure(seconds["total"] if "total" in seconds else sum(seconds.values()))


def plain(measures: Measures) -> dict[str, float]:
    """Return the values without intervals."""
    return {name: measure.value for name, measure in measures.items()}


def tuned(tuning: Tuning | None) -> Measures:
    """Return the time of the result relative to its source; nothing without a tuning."""
    pace = next((pace for pace in tuning.standing if pace.name == tuning.chosen), None) if tuning else None
    return {} if pace is None else {"latency_ratio": ratio(pace.ratio, pace.low, pace.high, pace.finding)}
