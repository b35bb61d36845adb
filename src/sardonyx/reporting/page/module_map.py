"""The map of the page: the module tree as bars, as wide as their nodes, bytes or time, before over after.

Both on one scale and in the same colours, so that what became less is narrower and found again at once. The markup has
the nodes; `assets/map.js` draws the others too, from the data of the module tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sardonyx.reporting import formatting
from sardonyx.reporting.page.modules import COLUMNS, ModuleTree, module_tree
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots import svg
from sardonyx.reporting.plots.icicle import Amount, Panel, families, icicle
from sardonyx.reporting.profile import ms
from sardonyx.reporting.run_bundle import RunBundle

UNTIMED = "No times: run sardonyx optimize MODEL --run FOLDER, and report the folder."
AT_FIRST = 2.0  # width of the narrowest bar in the markup; the script draws all


@dataclass(frozen=True, slots=True)
class Measure:
    """Something that modules have before and after."""

    id: str
    title: str
    written: Callable[[float], str]


MEASURES = (
    Measure("nodes", "Nodes", lambda amount: formatting.plural(int(amount), "node")),
    Measure("bytes", "Bytes of constants", lambda amount: formatting.size(int(amount))),
    Measure("ms", "Time in kernels", lambda amount: f"{ms(amount)} ms"),
)


def section(dossier: RunBundle) -> Section:
    """The nodes as a picture, and which kinds of modules have which colour."""
    found = module_tree(dossier)
    colors = shared_colors(found)
    picture = _picture(found, MEASURES[0], colors, narrowest=AT_FIRST, deepest=10)
    measures = [(each, each.id != "ms" or found.timed) for each in MEASURES]
    html = rendered("map", picture=picture.inline(), measures=measures, untimed=UNTIMED, colors=colors)
    return Section("map", "Map", html, {"families": list(colors)})


def map_picture(dossier: RunBundle, measure: Measure) -> svg.Picture | None:
    """One measure by itself; None where it was not measured."""
    found = module_tree(dossier)
    if measure.id == "ms" and not found.timed:
        return None
    return _picture(found, measure, shared_colors(found), title=f"{measure.title} of {dossier.label}")


def shared_colors(found: ModuleTree) -> dict[str, int]:
    """The same for all measures: of the families that have the largest parts of them."""
    weighed: list[Amount] = []
    for column in COLUMNS:
        if column != "parameters" and (found.timed or not column.startswith("ms")):
            place = COLUMNS.index(column)
            whole = sum(amounts[place] for amounts in found.own.values()) or 1.0
            weighed += [
                Amount(branch.path, branch.tag, found.own[branch.path][place] / whole, 0.0, "")
                for branch in found.modules
            ]
    return families(weighed)


def _picture(
    found: ModuleTree,
    measure: Measure,
    colors: Mapping[str, int],
    *,
    title: str = "",
    narrowest: float = 0.4,
    deepest: int = 24,
) -> svg.Picture:
    panels = [_panel(found, measure, side) for side in ("before", "after")]
    about = "A bar is as wide as what a module has with all below it; what is its own is where nothing stands under it"
    return icicle(panels, title or measure.title, about, colors, narrowest=narrowest, deepest=deepest)


def _panel(found: ModuleTree, measure: Measure, side: str) -> Panel:
    column, totals = COLUMNS.index(f"{measure.id}_{side}"), found.totals()
    modules: list[Amount] = []
    for branch in found.modules:
        own, total = found.own[branch.path][column], totals[branch.path][column]
        kind = f" {branch.tag}" if branch.tag else ""
        itself = "all of it" if own == total else f"{measure.written(own)} of it" if own else "nothing"
        hover = f"{branch.path or '(model)'}{kind}: {measure.written(total)}, {itself} itself"
        modules.append(Amount(branch.path, branch.tag, own, total, hover))
    whole = totals[""][column]
    return Panel(side.capitalize(), measure.written(whole), modules, whole)
