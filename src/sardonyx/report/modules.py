"""The module tree as lines of a table: what kind each module is, said once, and equal layers as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sardonyx import tree
from sardonyx.report import words

_INDEX = re.compile(r"\.\d+$")


def module_rows(modules: Iterable[tuple[str, str, tree.Numbers]], depth: int | None) -> Iterator[tree.Row]:
    """The tree over (path, tag, own numbers); a branch carries the kind of its module, "" where nothing is known."""
    known = list(modules)
    tags = {path: tag for path, tag, _numbers in known}
    entries = [tree.Entry(path, _kind(path, tags), numbers) for path, _tag, numbers in known]
    width = len(known[0][2]) if known else 0
    return tree.rows(tree.build(entries, width), depth)


def module_label(row: tree.Row) -> str:
    """A module in the tree: indented, how many equal ones it stands for, and whether something below is not shown."""
    copies = f" ×{row.branch.copies}" if row.branch.copies > 1 else ""
    below = " …" if row.hidden else ""
    return f"{'  ' * min(row.depth, 20)}{words.name(row.branch.label, 48) or '(model)'}{copies}{below}"


def _kind(path: str, tags: dict[str, str]) -> str:
    """The last step of a tag without its index; nothing for a tag that is the path again, or that of a module above."""
    tag = tags[path]
    if tag.strip("/") == path.replace(".", "/") or tag == _tag_above(path, tags):
        return ""
    return _INDEX.sub("", tag.rpartition("/")[2])


def _tag_above(path: str, tags: dict[str, str]) -> str | None:
    while path:
        path = path.rpartition(".")[0]
        if path in tags:
            return tags[path]
    return None
