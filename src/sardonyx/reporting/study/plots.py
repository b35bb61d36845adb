"""The pictures of a study: one for each table that has a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sardonyx.records.study import Study, Table
from sardonyx.reporting.study import heat, intervals


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture and its title."""

    title: str
    svg: str


@dataclass(frozen=True, slots=True)
class _Plot:
    """How a table is drawn."""

    file: str
    title: str
    draw: Callable[[Table, str], str]


_PLOTS: Mapping[str, _Plot] = {
    "overview": _Plot("latency.svg", "Latency of the optimized model over the original", intervals.latency),
    "pass_matrix": _Plot("passes.svg", "Nodes that each pass removes", heat.pass_matrix),
    "attribution_time": _Plot("passes_time.svg", "Time that each pass saves", heat.pass_times),
    "order": _Plot("order.svg", "Results of shuffled orders", heat.orders),
    "correlation_points": _Plot("correlation.svg", "Counted savings and measured time", intervals.scatter),
    "tolerance_spread": _Plot("tolerance.svg", "How far results move", heat.tolerance),
}


def pictures(study: Study) -> dict[str, Picture]:
    """Return pictures by file name, for the tables that the study has and that are not empty."""
    tables = {table.name: table for table in study.tables}
    return {
        plot.file: Picture(plot.title, plot.draw(tables[name], plot.title))
        for name, plot in _PLOTS.items()
        if name in tables and tables[name].rows
    }
