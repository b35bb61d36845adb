"""The module tree of the page: what each module had and has of nodes, parameters, bytes and time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.records import module_tree as tree
from sardonyx.records.run import ModuleCount, Run
from sardonyx.reporting import formatting
from sardonyx.reporting.document import View
from sardonyx.reporting.module_rows import module_rows
from sardonyx.reporting.page.section import Section, Strings, rendered
from sardonyx.reporting.profile import ms
from sardonyx.reporting.run_bundle import RunBundle

# The module tree as the page's script reads it: every module with what it owns, and which of them are one line.
#
# Lines are folded by what the graph says (kinds and node counts), so that a microsecond more or less does not part
# equal
# layers; parameters, bytes and times are then summed over the modules of a line.

Amounts = tuple[float, ...]
COLUMNS = ("nodes_before", "nodes_after", "parameters", "bytes_before", "bytes_after", "ms_before", "ms_after")
DIGITS = 4  # of milliseconds: a tenth of a microsecond


@dataclass(frozen=True, slots=True)
class ModuleTree:
    """All modules of a model, parents before children, and the lines that show them."""

    modules: tuple[tree.Branch, ...]  # unfolded; the numbers are nodes before and after
    parents: tuple[int, ...]  # places in `modules`; -1 above the model
    own: dict[str, Amounts]  # by path, in the order of COLUMNS
    tags: dict[str, str]
    rows: tuple[tree.Row, ...]
    timed: bool

    def totals(self) -> dict[str, Amounts]:
        """What each module owns together with everything below it, by path."""
        found = [list(self.own[branch.path]) for branch in self.modules]
        for place in reversed(range(1, len(found))):
            above = found[self.parents[place]]
            for column, amount in enumerate(found[place]):
                above[column] += amount
        return {branch.path: tuple(amounts) for branch, amounts in zip(self.modules, found, strict=True)}


def module_tree(dossier: RunBundle) -> ModuleTree:
    """Every module that owns something before or after, and those above them."""
    counted = {each.path: each for each in dossier.run.modules}
    times = [{each.path: each.self_ms for each in model.modules} for model in dossier.profiled or ()]
    tags = {path: each.tag for path, each in counted.items()}
    for model in dossier.profiled or ():
        for each in model.modules:
            if each.self_ms:
                tags.setdefault(each.path, each.tag)
    nodes = [(path, tag, _nodes(counted.get(path))) for path, tag in tags.items()] or [("", "", (0, 0))]
    rows = tuple(module_rows(nodes, View(verbose=True)))
    kinds = {path: row.branch.tag for row in rows for path in row.paths}
    root = tree.build((tree.Entry(path, kinds.get(path, ""), numbers) for path, _tag, numbers in nodes), 2, fold=False)
    modules, parents = _listed(root)
    own = {branch.path: _own(counted.get(branch.path), times, branch.path) for branch in modules}
    return ModuleTree(modules, parents, own, tags, rows, timed=bool(times))


def _nodes(counted: ModuleCount | None) -> tuple[int, int]:
    return (0, 0) if counted is None else (counted.before, counted.after)


def _own(counted: ModuleCount | None, times: Iterable[dict[str, float]], path: str) -> Amounts:
    spent = tuple(round(by_path.get(path, 0.0), DIGITS) for by_path in times)
    if counted is None:
        return (0, 0, 0, 0, 0, *spent)
    return (*_nodes(counted), counted.parameters, counted.bytes_before, counted.bytes_after, *spent)


def _listed(root: tree.Branch) -> tuple[tuple[tree.Branch, ...], tuple[int, ...]]:
    """Every branch, parents before children, and the place of each one's parent."""
    modules: list[tree.Branch] = []
    parents: list[int] = []
    stack = [(root, -1)]
    while stack:
        branch, parent = stack.pop()
        stack.extend((child, len(modules)) for child in reversed(branch.children))
        modules.append(branch)
        parents.append(parent)
    return tuple(modules), tuple(parents)


def island(found: ModuleTree, run: Run) -> dict[str, Any]:
    """All of it as JSON: columns instead of objects, names and tags in tables."""
    at = {branch.path: place for place, branch in enumerate(found.modules)}
    kinds = Strings(branch.tag for branch in found.modules)
    tags = Strings(found.tags.values())
    own = [found.own[branch.path] for branch in found.modules]
    width = len(COLUMNS) if found.timed else len(COLUMNS) - 2
    return {
        "parents": found.parents,
        "names": [branch.label for branch in found.modules],
        "kinds": [kinds.texts, [kinds.at[branch.tag] for branch in found.modules]],
        "tags": [tags.data(), [tags.at.get(found.tags.get(branch.path, ""), -1) for branch in found.modules]],
        "own": {name: [amounts[place] for amounts in own] for place, name in enumerate(COLUMNS[:width])},
        "rows": [
            [row.depth, row.branch.label, row.branch.copies, [at[path] for path in row.paths]] for row in found.rows
        ],
        "rewrites": [[each.name, _by_place(each.modules, at)] for each in run.passes if each.modules],
        "refusals": [
            [each.name, group.reason, _by_place(group.modules, at)]
            for each in run.passes
            for group in each.refusals
            if group.modules
        ],
    }


def _by_place(modules: dict[str, int], at: dict[str, int]) -> list[int]:
    """Place, count, place, count, …: of each module, or of the nearest one above it that is shown."""
    counts: dict[int, int] = {}
    for path, count in modules.items():
        while path and path not in at:
            path = path.rpartition(".")[0]
        counts[at[path]] = counts.get(at[path], 0) + count
    return [number for pair in sorted(counts.items()) for number in pair]


AT_ONCE = 40  # lines that still read at a glance, and that a page without a script shows
DEEPEST = 3  # levels among them


@dataclass(frozen=True, slots=True)
class Line:
    """A module, or equal ones together, as the page shows it before its script starts."""

    path: str  # of the first
    label: str
    copies: int
    kind: str
    depth: int
    cells: tuple[str, ...]
    before: float  # share of all nodes of the larger graph, in percent
    after: float


def section(dossier: RunBundle) -> Section:
    """The upper levels of the tree as markup, all of it as data."""
    found = module_tree(dossier)
    totals = found.totals()
    most = max(*totals[""][:2], 1)
    depth = _depth(found.rows)
    lines = [_line(row, totals, most) for row in found.rows if row.depth <= depth]
    sizes = {"modules": len(found.modules), "whole": len(found.rows), "depth": depth}
    html = rendered("modules", lines=lines, timed=found.timed, **sizes)
    return Section("modules", "Modules", html, island(found, dossier.run))


def _depth(rows: Sequence[tree.Row]) -> int:
    """As many levels as read at a glance, at least one."""
    for depth in range(DEEPEST, 1, -1):
        if sum(row.depth <= depth for row in rows) <= AT_ONCE:
            return depth
    return 1


def _line(row: tree.Row, totals: Mapping[str, Amounts], most: float) -> Line:
    summed = [sum(column) for column in zip(*(totals[path] for path in row.paths), strict=True)]
    before, after, parameters, bytes_before, bytes_after, *times = summed
    return Line(
        row.branch.path,
        formatting.name(row.branch.label) or "(model)",
        row.branch.copies,
        formatting.name(row.branch.tag),
        row.depth,
        (
            *(formatting.count(int(each)) for each in (before, after)),
            formatting.amount(int(parameters)) if parameters else "·",
            *(formatting.size(int(each)) if each else "·" for each in (bytes_before, bytes_after)),
            *(ms(each) for each in times),
        ),
        round(100 * before / most, 2),
        round(100 * after / most, 2),
    )
