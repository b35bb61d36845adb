"""Where the model attends, on the page: heads, masks, forms, what it costs; and memory while the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.records.analysis import Form
from sardonyx.reporting import attention_sites as figures
from sardonyx.reporting import formatting
from sardonyx.reporting.attention_sites import Line, Moved, Spent
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots.timeline import timeline
from sardonyx.reporting.run_bundle import RunBundle


@dataclass(frozen=True, slots=True)
class Row:
    """A line and what it costs before and after; empty where that was not measured, None where nothing tells."""

    line: Line
    time: tuple[Spent | None, ...] = ()
    within: tuple[Spent | None, ...] = ()  # its modules
    memory: tuple[Moved | None, ...] = ()


def section(dossier: RunBundle) -> Section:
    """The places of attention, and the memory timeline."""
    sites = dossier.run.attention
    rows = [_row(line, dossier) for line in figures.lines(sites)]
    html = rendered(
        "attention",
        figures=figures,
        sentence=figures.sentence(sites),
        rows=rows,
        total=_row(Line("all", "", sites), dossier) if len(rows) > 1 else None,
        timed=dossier.profiled is not None,
        weighed=dossier.forms is not None,
        memory=None if dossier.forms is None else _memory(dossier, dossier.forms),
    )
    return Section("attention", "Attention and memory", html)


def _row(line: Line, dossier: RunBundle) -> Row:
    forms = [[site.before for site in line.sites], [site.after for site in line.sites]]
    modules = [module for module in line.modules if module]  # what of the model's own work is attention's, none says
    profiled, analysed = dossier.profiled or (), dossier.forms or ()
    return Row(
        line,
        time=tuple(figures.spent(each, model) for each, model in zip(forms, profiled, strict=False)),
        within=tuple(figures.spent_within(modules, model) for model in profiled),
        memory=tuple(figures.moved(modules, form) for form in analysed),
    )


def _memory(dossier: RunBundle, forms: Sequence[Form]) -> dict[str, Any]:
    """The picture, and its numbers in words."""
    labels = ("before", "after")
    timelines = {label: form.memory.timeline for label, form in zip(labels, forms, strict=True)}
    sizes = dossier.analysis.sizes if dossier.analysis is not None else {}
    return {
        "picture": timeline(timelines, dossier.label).inline(),
        "forms": list(zip(labels, forms, strict=True)),
        "sizes": ", ".join(f"{formatting.name(name)}={formatting.count(size)}" for name, size in sizes.items()),
    }
