"""Rows as CSV for a spreadsheet. Numbers keep every digit; a name cannot become a formula or end a line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from sardonyx.reporting.formatting import visible

_FORMULA = ("=", "+", "-", "@")  # a text that begins with one of these is a formula to a spreadsheet


def write(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return the heading and every row; None is an empty entry."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(_entry, heading))
    writer.writerows(map(_entry, row) for row in rows)
    return stream.getvalue()


def _entry(value: object) -> object:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return visible(f"'{value}" if value.startswith(_FORMULA) else value)
        case _:
            return value
