"""Which pictures a study has: one for each table that somebody would rather see than read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sardonyx.records.study import Study, Table
from sardonyx.reporting.study import heat, intervals, spread


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture and what it shows."""

    title: str
    svg: str


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one table is drawn."""

    file: str
    title: str
    draw: Callable[[Table, str], str]


_KINDS: Mapping[str, _Kind] = {
    "overview": _Kind("latency.svg", "Latency of the optimized model over the original", intervals.latency),
    "pass_matrix": _Kind("passes.svg", "Nodes that each pass removes", heat.pass_matrix),
    "attribution_time": _Kind("passes_time.svg", "What each pass is worth in time", heat.pass_times),
    "order": _Kind("order.svg", "Results of shuffled orders", heat.orders),
    "correlation_points": _Kind("correlation.svg", "Savings by counting and by the clock", intervals.scatter),
    "tolerance_spread": _Kind("tolerance.svg", "How far results move", spread.tolerance),
}


def pictures(study: Study) -> dict[str, Picture]:
    """Pictures by file name, of those tables that the study has and that are not empty."""
    tables = {each.name: each for each in study.tables}
    return {
        kind.file: Picture(kind.title, kind.draw(tables[name], kind.title))
        for name, kind in _KINDS.items()
        if name in tables and tables[name].rows
    }
