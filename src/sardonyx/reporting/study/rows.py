"""Access to the rows of a study table by column name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from sardonyx.records.study import Entry, Table

Row: TypeAlias = Mapping[str, Entry]
FASTER, SLOWER, SAME = "faster", "slower", "no difference"


def rows(table: Table) -> list[Row]:
    """Return each row as a mapping from column to entry."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def number(entry: Entry) -> float | None:
    """Return a number, or None for any other entry."""
    return float(entry) if isinstance(entry, (int, float)) and not isinstance(entry, bool) else None


def numbers(row: Row, *columns: str) -> tuple[float, ...] | None:
    """Return the numbers of several columns, or None if one is missing."""
    values = [number(row.get(column)) for column in columns]
    known = [value for value in values if value is not None]
    return tuple(known) if len(known) == len(values) else None


def claim(row: Row) -> str:
    """Return the finding of a comparison if its whole interval is on that side of 1, otherwise no difference."""
    finding, ends = row.get("finding"), numbers(row, "low", "high")
    if ends is None or finding not in (FASTER, SLOWER):
        return SAME
    low, high = ends
    return str(finding) if (high < 1 if finding == FASTER else low > 1) else SAME
