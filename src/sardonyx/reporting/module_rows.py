"""The module tree as lines of a table: what kind each module is, said once, and equal layers as one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from sardonyx.records import module_tree
from sardonyx.reporting import formatting
from sardonyx.reporting.options import View

FITTING = 40  # rows that still read at a glance


def module_rows(
    modules: Iterable[tuple[str, str, module_tree.Numbers]], view: View, top: str = ""
) -> list[module_tree.Row]:
    """The tree over (path, tag, own numbers); a branch carries the kind of its module, "" where nothing is known.

    Where all modules lie at or below `top`, the tree starts there.
    """
    known = list(modules)
    tags = {path: tag for path, tag, _numbers in known}
    entries = [module_tree.Entry(path, module_kind(path, tags), numbers) for path, _tag, numbers in known]
    width = len(known[0][2]) if known else 0
    root = module_tree.build(entries, width)
    if top and root.children:
        (root,) = root.children  # what lies between holds nothing else, so it is named together with the top
    return list(module_tree.rows(root, view.depth)) if view.verbose or view.depth is not None else _fitting(root)


def module_label(row: module_tree.Row) -> str:
    """A module in the tree: indented, how many equal ones it stands for, and whether something below is not shown."""
    copies = f" ×{row.branch.copies}" if row.branch.copies > 1 else ""
    below = " …" if row.hidden else ""
    return f"{'  ' * min(row.depth, 20)}{formatting.name(row.branch.label, 48) or '(model)'}{copies}{below}"


def nested_label(row: module_tree.Row) -> str:
    """The same where spaces at the beginning are lost: in Markdown, and in cells of a page."""
    return f"{'› ' * min(row.depth, 20)}{module_label(row).lstrip()}"


def _fitting(root: module_tree.Branch) -> list[module_tree.Row]:
    """As many levels as a reader takes in, at least one."""
    shown = list(module_tree.rows(root, 1))
    for depth in itertools.count(2):
        deeper = list(itertools.islice(module_tree.rows(root, depth), FITTING + 1))
        if len(deeper) > FITTING or len(deeper) == len(shown):
            return shown
        shown = deeper
    raise AssertionError("a tree has a depth")


def module_kind(path: str, tags: dict[str, str]) -> str:
    """The last step of a tag without its index; nothing for a tag that is the path again, or that of a module above."""
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
