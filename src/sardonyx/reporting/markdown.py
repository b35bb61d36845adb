"""Markdown that names from models cannot break out of: escaped words, and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sardonyx.reporting import formatting

_MEANS_SOMETHING = re.compile(r"[\\|`*\[\]~]")


def escaped(text: str) -> str:
    """Words on one line that mean nothing but themselves: no bar ends a cell, no bracket makes a link, no tag HTML."""
    shown = _MEANS_SOMETHING.sub(r"\\\g<0>", formatting.one_line(text))
    return shown.replace("&", "&amp;").replace("<", "&lt;")


def table(heads: Sequence[str], lines: Iterable[Sequence[str]], *, right: Sequence[bool] = ()) -> str:
    """A table of cells that are escaped here; columns that are `right` have their cells on the right."""
    sides = ["---:" if at < len(right) and right[at] else "---" for at in range(len(heads))]
    return "\n".join([_row(map(escaped, heads)), _row(sides), *(_row(map(escaped, cells)) for cells in lines)])


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
