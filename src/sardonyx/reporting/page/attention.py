"""The attention blocks on the page: heads, masks, forms, costs; and the memory while the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from sardonyx.records.analysis import Form
from sardonyx.reporting import formatting, run
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots.charts import timeline
from sardonyx.reporting.run import Moved, SiteGroup, Spent
from sardonyx.reporting.run_bundle import RunBundle


class Row(Struct, frozen=True):
    """A group of blocks with its costs before and after: empty if not measured, None if unknown."""

    group: SiteGroup
    time: tuple[Spent | None, ...] = ()
    within: tuple[Spent | None, ...] = ()  # its modules
    memory: tuple[Moved | None, ...] = ()


def section(bundle: RunBundle) -> Section:
    """Return the attention blocks and the memory timeline."""
    sites = bundle.run.attention
    rows = [_row(group, bundle) for group in run.groups(sites)]
    html = rendered(
        "attention",
        figures=run,
        sentence=run.sentence(sites),
        rows=rows,
        total=_row(SiteGroup("all", "", sites), bundle) if len(rows) > 1 else None,
        timed=bundle.profiled is not None,
        weighed=bundle.forms is not None,
        memory=None if bundle.forms is None else _memory(bundle, bundle.forms),
    )
    return Section("attention", "Attention and memory", html)


def _row(group: SiteGroup, bundle: RunBundle) -> Row:
    forms = [[site.before for site in group.sites], [site.after for site in group.sites]]
    modules = [module for module in group.modules if module]  # which of the model's own nodes are attention is unknown
    profiled, analysed = bundle.profiled or (), bundle.forms or ()
    return Row(
        group,
        time=tuple(run.spent(own, model) for own, model in zip(forms, profiled, strict=False)),
        within=tuple(run.spent_within(modules, model) for model in profiled),
        memory=tuple(run.moved(modules, form) for form in analysed),
    )


def _memory(bundle: RunBundle, forms: Sequence[Form]) -> dict[str, Any]:
    """Return the picture and its numbers."""
    labels = ("before", "after")
    timelines = {label: form.memory.timeline for label, form in zip(labels, forms, strict=True)}
    sizes = bundle.analysis.sizes if bundle.analysis is not None else {}
    return {
        "picture": timeline(timelines, bundle.label).inline(),
        "forms": list(zip(labels, forms, strict=True)),
        "sizes": ", ".join(f"{formatting.name(name)}={formatting.count(size)}" for name, size in sizes.items()),
    }
