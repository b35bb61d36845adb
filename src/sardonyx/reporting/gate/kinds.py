"""The gate names of a kind of record: their meaning, and how their numbers are read from it.

The meanings are shown by the help and the documentation. A name that two kinds have in `common` means the same in both,
so that a record of one can be the baseline of the other; all other names are compared within a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from sardonyx.records.base import Record
from sardonyx.records.expressions import Gate, Measure, Wording, parse, ratio, share, worst
from sardonyx.records.inspection import Coverage
from sardonyx.records.run import Counts, Tuning, Verdict

Measures = dict[str, Measure]
_FAIL_IF = Wording(
    "--fail-if",
    "write a name, a comparison and a limit: --fail-if 'nodes>120', --fail-if 'bytes > baseline + 1%'",
    "give an earlier record: --baseline FILE",
)


class RecordKind(Struct, frozen=True, eq=False):
    """One kind of record with its gate names."""

    record: type[Record]
    measures: Callable[[Any], Measures]
    names: Mapping[str, str]  # name -> meaning
    shares: Collection[str] = ()  # names that may have a percentage as limit
    alone: Collection[str] = ()  # names of numbers that should be zero: they need no limit
    forms: Sequence[str] = ()  # prefixes of names: form.name
    common: Collection[str] = ()  # names that mean the same in other kinds

    @property
    def title(self) -> str:
        """The name of a record of this kind in messages, with the article."""
        return self.record.title

    def parse(self, text: str, *, baseline: bool = False) -> Gate:
        """Return a parsed expression about a record of this kind; `baseline`: whether there is one."""
        return parse(
            text,
            tuple(self.names),
            shares=self.shares,
            forms=self.forms,
            alone=self.alone,
            baseline=baseline,
            wording=_FAIL_IF,
        )


# Names that several kinds have.

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
