"""The module tree as rows of a table: the kind of each module, and equal layers as one row."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TypeAlias

from sardonyx.records import module_tree
from sardonyx.reporting import formatting
from sardonyx.reporting.document import Cell, View

DEEPEST = 20  # levels that are indented


Modules: TypeAlias = Iterable[tuple[str, str, module_tree.Numbers]]  # path, tag, own numbers


def module_rows(modules: Modules, view: View, top: str = "") -> list[module_tree.Row]:
    """Return the rows of the tree as `tree_rows` does, or none if the model has no modules."""
    listed = list(modules)
    return tree_rows(listed, view, top) if any(path for path, _tag, _numbers in listed) else []


def tree_rows(modules: Modules, view: View, top: str = "") -> list[module_tree.Row]:
    """Return the rows of the tree of at least one module; the tag of a branch is the kind of its module.

    If all modules lie at or below `top`, the tree starts there.
    """
    listed = list(modules)
    tags = {path: tag for path, tag, _numbers in listed}
    entries = [module_tree.Entry(path, module_kind(path, tags), numbers) for path, _tag, numbers in listed]
    root = module_tree.build(entries, len(listed[0][2]))
    if top and len(root.children) == 1:
        (root,) = root.children  # containers in between own nothing, so the label of the top includes them
    is_whole = view.verbose or view.depth is not None
    return list(module_tree.rows(root, view.depth)) if is_whole else _fitting(root, view.rows)


def module_cell(row: module_tree.Row) -> Cell:
    """Return a module in the tree: how many equal ones it represents, and an ellipsis if modules below are hidden."""
    copies = f" ×{row.branch.copies}" if row.branch.copies > 1 else ""
    hidden = " …" if row.hidden else ""
    return Cell(f"{formatting.module(row.branch.label, 48)}{copies}{hidden}", min(row.depth, DEEPEST))


def _fitting(root: module_tree.Branch, most: int) -> list[module_tree.Row]:
    """Return as many levels as fit into a number of rows, at least one."""
    shown = list(module_tree.rows(root, 1))
    for depth in itertools.count(2):
        deeper = list(itertools.islice(module_tree.rows(root, depth), most + 1))
        if len(deeper) > most or len(deeper) == len(shown):
            return shown
        shown = deeper
    raise AssertionError("a tree has a depth")


def module_kind(path: str, tags: dict[str, str]) -> str:
    """Return the last step of a tag without its index, or "" if the tag repeats the path or that of a module above."""
    tag = tags[path]
    if tag.strip("/") == path.replace(".", "/") or tag == _tag_above(path, tags):
        return ""
    return tag.rpartition("/")[2].partition(".")[0]


def _tag_above(path: str, tags: dict[str, str]) -> str | None:
    while path:
        path = path.rpartition(".")[0]
        if path in tags:
            return tags[path]
    return None
