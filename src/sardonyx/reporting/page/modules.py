"""The module tree of the page, as rows and as a map: nodes, parameters, bytes and time before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup
from msgspec import Struct

from sardonyx.records import module_tree as tree
from sardonyx.records.bench import ProfiledModel
from sardonyx.records.provenance import lineage
from sardonyx.records.quantization import Quantization
from sardonyx.records.run import ModuleCount, Run
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import View
from sardonyx.reporting.module_rows import tree_rows
from sardonyx.reporting.page.section import Section, Strings, rendered
from sardonyx.reporting.plots import svg
from sardonyx.reporting.plots.profile import Amount, Panel, families, icicle
from sardonyx.reporting.profile import ms
from sardonyx.reporting.run_bundle import RunBundle

# The module tree as the page's script reads it: every module with what it owns, and which modules share a row.
#
# Rows are merged by kinds and node counts, so that a microsecond more or less does not separate equal layers;
# parameters, bytes and times are then summed over the modules of a row.

Amounts = tuple[float, ...]
COLUMNS = ("nodes_before", "nodes_after", "parameters", "bytes_before", "bytes_after", "ms_before", "ms_after")
DIGITS = 4  # of milliseconds: a tenth of a microsecond


class ModuleTree(Struct, frozen=True):
    """All modules of a model, parents before children, and the rows that show them."""

    modules: tuple[tree.Branch, ...]  # unfolded; the numbers are nodes before and after
    parents: tuple[int, ...]  # places in `modules`; -1 above the model
    own: dict[str, Amounts]  # by path, in the order of COLUMNS
    tags: dict[str, str]
    rows: tuple[tree.ModuleRow, ...]
    timed: bool

    def totals(self) -> dict[str, Amounts]:
        """Return the totals of each module with everything below it, by path."""
        totals = [list(self.own[branch.path]) for branch in self.modules]
        for place in reversed(range(1, len(totals))):
            parent = totals[self.parents[place]]
            for column, amount in enumerate(totals[place]):
                parent[column] += amount
        return {branch.path: tuple(amounts) for branch, amounts in zip(self.modules, totals, strict=True)}


def module_tree(bundle: RunBundle) -> ModuleTree:
    """Return every module that owns something before or after, and those above them."""
    return _tree(bundle.run.modules, bundle.profiled or ())


def _tree(counted: Iterable[ModuleCount], profiled: Sequence[ProfiledModel] = ()) -> ModuleTree:
    counts = {module.path: module for module in counted}
    times = [{module.path: module.self_ms for module in model.modules} for model in profiled]
    tags = {path: module.tag for path, module in counts.items()}
    for module in (module for model in profiled for module in model.modules if module.self_ms):
        tags.setdefault(module.path, module.tag)
    nothing = ModuleCount("", "", 0, 0)
    found = [(path, tag, counts.get(path, nothing)) for path, tag in tags.items()] or [("", "", nothing)]
    nodes = [(path, tag, (count.before, count.after)) for path, tag, count in found]
    rows = tuple(tree_rows(nodes, View(verbose=True)))
    kinds = {path: row.branch.tag for row in rows for path in row.paths}
    root = tree.build((tree.Entry(path, kinds.get(path, ""), numbers) for path, _tag, numbers in nodes), 2, fold=False)
    modules, parents, own = list[tree.Branch](), list[int](), dict[str, Amounts]()
    stack = [(root, -1)]
    while stack:
        branch, parent = stack.pop()
        stack.extend((child, len(modules)) for child in reversed(branch.children))
        modules.append(branch)
        parents.append(parent)
        count, spent = counts.get(branch.path, nothing), (by_path.get(branch.path, 0.0) for by_path in times)
        stored = (count.parameters, count.bytes_before, count.bytes_after)
        own[branch.path] = (count.before, count.after, *stored, *(round(time, DIGITS) for time in spent))
    return ModuleTree(tuple(modules), tuple(parents), own, tags, rows, timed=bool(times))


def island(modules: ModuleTree, run: Run) -> dict[str, Any]:
    """Return the tree as JSON data, with the rewrites and the missed fusions of each module."""
    at = {branch.path: place for place, branch in enumerate(modules.modules)}
    return {
        **_tree_data(modules),
        "rewrites": [[record.name, _by_place(record.modules, at)] for record in run.passes if record.modules],
        "missed": [
            [record.name, group.reason, _by_place(group.modules, at)]
            for record in run.passes
            for group in record.refusals
            if group.modules
        ],
    }


def _tree_data(modules: ModuleTree) -> dict[str, Any]:
    """Return the tree as JSON data: columns instead of objects, names and tags in tables."""
    at = {branch.path: place for place, branch in enumerate(modules.modules)}
    kinds = Strings(branch.tag for branch in modules.modules)
    tags = Strings(modules.tags.values())
    own = [modules.own[branch.path] for branch in modules.modules]
    width = len(COLUMNS) if modules.timed else len(COLUMNS) - 2
    return {
        "parents": modules.parents,
        "names": [branch.label for branch in modules.modules],
        "kinds": [kinds.texts, [kinds.at[branch.tag] for branch in modules.modules]],
        "tags": [tags.data(), [tags.at.get(modules.tags.get(branch.path, ""), -1) for branch in modules.modules]],
        "own": {name: [amounts[place] for amounts in own] for place, name in enumerate(COLUMNS[:width])},
        "rows": [
            [row.depth, row.branch.label, row.branch.copies, [at[path] for path in row.paths]] for row in modules.rows
        ],
    }


def _by_place(modules: dict[str, int], at: dict[str, int]) -> list[int]:
    """Return place, count, place, count, … of each module, or of the nearest one above it that is shown."""
    counts = Counter[int]()
    for path, count in modules.items():
        counts[next(at[above] for above in reversed(lineage(path)) if above in at)] += count
    return [number for pair in sorted(counts.items()) for number in pair]


STATIC_ROWS = 40  # rows that a page without a script shows
STATIC_LEVELS = 3  # levels among them


def section(bundle: RunBundle) -> Section:
    """Return the upper levels of the tree as markup, and the whole tree as data."""
    modules, profiled = module_tree(bundle), None
    if bundle.profiled is not None:  # the times that those of the modules are part of
        kernels, runs = ([ms(getattr(each, of)) for each in bundle.profiled] for of in ("kernel_ms", "plain_ms"))
        profiled = {"kernels": fmt.from_to(*kernels), "runs": fmt.from_to(*runs)}
    return Section("modules", "Modules", _markup(modules, {}, profiled), island(modules, bundle.run))


def quantized_section(quantization: Quantization, precisions: Mapping[str, str]) -> Section:
    """Return the tree of a quantization, with the precisions of each module and those below it."""
    modules = _tree(quantization.modules)
    within: dict[str, set[str]] = {branch.path: set() for branch in modules.modules}
    for path, precision in precisions.items():
        for above in lineage(path):
            within.get(above, set()).add(precision)
    names = sorted(set(precisions.values()))
    places = [[names.index(each) for each in sorted(within[branch.path])] for branch in modules.modules]
    data = {**_tree_data(modules), "precisions": [names, places]}
    return Section("modules", "Modules", _markup(modules, within, None), data)


def _markup(modules: ModuleTree, precisions: Mapping[str, set[str]], profiled: dict[str, str] | None) -> Markup:
    totals = modules.totals()
    fitting = (d for d in range(STATIC_LEVELS, 1, -1) if sum(row.depth <= d for row in modules.rows) <= STATIC_ROWS)
    depth = next(fitting, 1)
    lines = [_line(row, totals, precisions) for row in modules.rows if row.depth <= depth]
    sizes = {"modules": len(modules.modules), "whole": len(modules.rows), "depth": depth}
    untimed = not modules.timed and not precisions
    return rendered("modules", lines=lines, timed=modules.timed, untimed=untimed, profiled=profiled, **sizes)


def _line(row: tree.ModuleRow, totals: Mapping[str, Amounts], precisions: Mapping[str, set[str]]) -> dict[str, Any]:
    """Return a row as the page shows it before its script starts.

    Its bars show the bytes if something was quantized, otherwise the nodes, in percent of those of the larger graph.
    """
    first = COLUMNS.index("bytes_before" if precisions else "nodes_before")
    most = max(*totals[""][first : first + 2], 1)
    summed = [sum(column) for column in zip(*(totals[path] for path in row.paths), strict=True)]
    before, after, parameters, bytes_before, bytes_after, *times = summed
    return {
        "path": row.branch.path,
        "label": fmt.module(row.branch.label),
        "copies": row.branch.copies,
        "kind": fmt.name(row.branch.tag),
        "depth": row.depth,
        "precisions": ", ".join(sorted({each for path in row.paths for each in precisions.get(path, ())})),
        "cells": (
            *(fmt.count(int(nodes)) for nodes in (before, after)),
            fmt.amount(int(parameters)) if parameters else "·",
            *(fmt.size(int(octets)) if octets else "·" for octets in (bytes_before, bytes_after)),
            *map(ms, times),
        ),
        "before": round(100 * summed[first] / most, 2),
        "after": round(100 * summed[first + 1] / most, 2),
    }


UNTIMED = "No times: run sardonyx optimize MODEL --run FOLDER, and report the folder."
MIN_BAR_IN_MARKUP = 2.0  # width of the narrowest bar in the markup; the script draws all


class Measure(Struct, frozen=True):
    """A quantity that modules have before and after."""

    id: str
    title: str
    written: Callable[[float], str]


MEASURES = (
    Measure("nodes", "Nodes", lambda amount: fmt.plural(int(amount), "node")),
    Measure("bytes", "Bytes of constants", lambda amount: fmt.size(int(amount))),
    Measure("ms", "Time in kernels", lambda amount: f"{ms(amount)} ms"),
)


def map_section(bundle: RunBundle) -> Section:
    """Return the nodes as a picture, and the colours of the kinds of modules."""
    tree = module_tree(bundle)
    colors = shared_colors(tree)
    picture = _picture(tree, MEASURES[0], colors, narrowest=MIN_BAR_IN_MARKUP, deepest=10)
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
    for place, column in enumerate(COLUMNS):
        if column != "parameters" and (tree.timed or not column.startswith("ms")):
            total = sum(amounts[place] for amounts in tree.own.values()) or 1.0
            own = ((branch, tree.own[branch.path][place] / total) for branch in tree.modules)
            shares += (Amount(branch.path, branch.tag, share, 0.0, "") for branch, share in own)
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
