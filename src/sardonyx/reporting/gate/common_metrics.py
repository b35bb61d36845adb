"""Names that several kinds of records have, with what they mean, and how their numbers are read."""

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
    "coverage": "share of all nodes, Constants included, that their module was seen running",
    "placed": "share of all nodes whose module is known, seen or inherited",
    "inherited": "nodes that got their module from what they feed or what feeds them",
    "root_nodes": "nodes that count to the model itself because nothing better is known",
}
PROVEN = {
    "max_err": "the largest absolute difference of any output, over all trials",
    "max_abs": "the same under its longer name",
    "max_rel": "the largest relative difference",
    "max_ulp": "the largest difference in units in the last place",
    "trials": "sets of inputs both were run on",
}
TUNED = {"latency_ratio": "time of a run of the result over that of the source, with --tune; below 1 is faster"}
NEEDS_VERDICT, NEEDS_TUNING = tuple(PROVEN), tuple(TUNED)
REMOVED = {f"{name}_removed": f"how many fewer than before: {what}" for name, what in (COUNTED | FILE).items()}
SIZES = (*COUNTED, *FILE, *REMOVED)
SHARES = ("coverage", "placed")
SECONDS = {"seconds": "time the command took"}
OWNING = {"modules": "modules that own a node"}
PARAMETERS = {"parameters": "elements of weights"}


def counted(counts: Counts) -> Measures:
    """The size of a graph."""
    return {
        "nodes": Measure(counts.nodes),
        "constants": Measure(counts.constants),
        "initializers": Measure(counts.initializers),
        "bytes": Measure(counts.bytes),
    }


def placed(coverage: Coverage) -> Measures:
    """How the modules of the nodes are known."""
    every = coverage.direct + coverage.inherited + coverage.root
    return {
        "coverage": share(coverage.direct, every),
        "placed": share(coverage.direct + coverage.inherited, every),
        "inherited": Measure(coverage.inherited),
        "root_nodes": Measure(coverage.root),
    }


def proven(*verdicts: Verdict | None) -> Measures:
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


def changed(before: Mapping[str, float], after: Mapping[str, float]) -> Measures:
    """Sizes after, and how much smaller they are; percentages are taken of what there was before."""
    now = {name: Measure(value, before[name]) for name, value in after.items()}
    return now | {f"{name}_removed": Measure(before[name] - value, before[name]) for name, value in after.items()}


def spent(seconds: Mapping[str, float]) -> Measure:
    """All phases, where the whole was not timed by itself."""
    return Measure(seconds["total"] if "total" in seconds else sum(seconds.values()))


def plain(measures: Measures) -> dict[str, float]:
    """The numbers alone."""
    return {name: measure.value for name, measure in measures.items()}


def tuned(tuning: Tuning | None) -> Measures:
    """How fast the result is beside its source; nothing where nothing was measured."""
    pace = next((each for each in tuning.standing if each.name == tuning.chosen), None) if tuning else None
    return {} if pace is None else {"latency_ratio": ratio(pace.ratio, pace.low, pace.high, pace.finding)}
