"""The module tree of the page: what each module had and has of nodes, parameters, bytes and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sardonyx import tree
from sardonyx.rendering import words
from sardonyx.rendering.dossier import Dossier
from sardonyx.rendering.page.module_data import Amounts, island, module_tree
from sardonyx.rendering.page.section import Section, rendered
from sardonyx.rendering.profile_figures import ms

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


def section(dossier: Dossier) -> Section:
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
        words.name(row.branch.label) or "(model)",
        row.branch.copies,
        words.name(row.branch.tag),
        row.depth,
        (
            *(words.count(int(each)) for each in (before, after)),
            words.amount(int(parameters)) if parameters else "·",
            *(words.size(int(each)) if each else "·" for each in (bytes_before, bytes_after)),
            *(ms(each) for each in times),
        ),
        round(100 * before / most, 2),
        round(100 * after / most, 2),
    )
