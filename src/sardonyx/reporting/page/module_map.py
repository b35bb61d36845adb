"""The map of the page: the module tree as bars, as wide as their nodes, bytes or time, before above after.

Both share one scale and the same colours, so that a module that became smaller is narrower and easy to find. The markup
shows the nodes; `assets/map.js` draws the other measures from the data of the module tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from sardonyx.reporting import formatting
from sardonyx.reporting.page.modules import COLUMNS, ModuleTree, module_tree
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots import svg
from sardonyx.reporting.plots.profile import Amount, Panel, families, icicle
from sardonyx.reporting.profile import ms
from sardonyx.reporting.run_bundle import RunBundle

UNTIMED = "No times: run sardonyx optimize MODEL --run FOLDER, and report the folder."
AT_FIRST = 2.0  # width of the narrowest bar in the markup; the script draws all


class Measure(Struct, frozen=True):
    """A quantity that modules have before and after."""

    id: str
    title: str
    written: Callable[[float], str]


MEASURES = (
    Measure("nodes", "Nodes", lambda amount: formatting.plural(int(amount), "node")),
    Measure("bytes", "Bytes of constants", lambda amount: formatting.size(int(amount))),
    Measure("ms", "Time in kernels", lambda amount: f"{ms(amount)} ms"),
)


def section(bundle: RunBundle) -> Section:
    """Return the nodes as a picture, and the colours of the kinds of modules."""
    tree = module_tree(bundle)
    colors = shared_colors(tree)
    picture = _picture(tree, MEASURES[0], colors, narrowest=AT_FIRST, deepest=10)
    measures = [(measure, measure.id != "ms" or tree.timed) for measure in MEASURES]
    markup = rendered("map", picture=picture.inline(), measures=measures, untimed=UNTIMED, colors=colors)
    return Section("map", "Map", markup, {"families": list(colors)})


def map_picture(bundle: RunBundle, measure: Measure) -> svg.Picture | None:
    """Return the picture of one measure, or None if it was not measured."""
    tree = module_tree(bundle)
    if measure.id == "ms" and not tree.timed:
        return None
    return _picture(tree, measure, shared_colors(tree), title=f"{measure.title} of {bundle.label}")


def shared_colors(tree: ModuleTree) -> dict[str, int]:
    """Return the colours of the largest families of modules, the same for all measures."""
    shares: list[Amount] = []
    for column in COLUMNS:
        if column != "parameters" and (tree.timed or not column.startswith("ms")):
            place = COLUMNS.index(column)
            total = sum(amounts[place] for amounts in tree.own.values()) or 1.0
            shares += [
                Amount(branch.path, branch.tag, tree.own[branch.path][place] / total, 0.0, "")
                for branch in tree.modules
            ]
    return families(shares)


def _picture(
    tree: ModuleTree,
    measure: Measure,
    colors: Mapping[str, int],
    *,
    title: str = "",
    narrowest: float = 0.4,
    deepest: int = 24,
) -> svg.Picture:
    panels = [_panel(tree, measure, side) for side in ("before", "after")]
    about = "A bar is as wide as the total of a module; the part without a bar below it is the module's own"
    return icicle(panels, title or measure.title, about, colors, narrowest=narrowest, deepest=deepest)


def _panel(tree: ModuleTree, measure: Measure, side: str) -> Panel:
    column, totals = COLUMNS.index(f"{measure.id}_{side}"), tree.totals()
    modules: list[Amount] = []
    for branch in tree.modules:
        own, total = tree.own[branch.path][column], totals[branch.path][column]
        kind = f" {branch.tag}" if branch.tag else ""
        itself = "all of it" if own == total else f"{measure.written(own)} of it" if own else "nothing"
        hover = f"{branch.path or '(model)'}{kind}: {measure.written(total)}, {itself} itself"
        modules.append(Amount(branch.path, branch.tag, own, total, hover))
    whole = totals[""][column]
    return Panel(side.capitalize(), measure.written(whole), modules, whole)
