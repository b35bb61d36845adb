"""A table's rows for drawing: by column name, and numbers where numbers are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from sardonyx.records.study import Entry, Table

Row: TypeAlias = Mapping[str, Entry]
FASTER, SLOWER, SAME = "faster", "slower", "no difference"


def rows(table: Table) -> list[Row]:
    """Each row by its columns."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def number(entry: Entry) -> float | None:
    """A number, or None for what is none."""
    return float(entry) if isinstance(entry, (int, float)) and not isinstance(entry, bool) else None


def numbers(row: Row, *columns: str) -> tuple[float, ...] | None:
    """Several, where all are known."""
    found = [number(row.get(column)) for column in columns]
    known = [each for each in found if each is not None]
    return tuple(known) if len(known) == len(found) else None


def claim(row: Row) -> str:
    """What a comparison found, believed only with its whole interval on that side of one; else no difference."""
    found, ends = row.get("finding"), numbers(row, "low", "high")
    if ends is None or found not in (FASTER, SLOWER):
        return SAME
    low, high = ends
    return str(found) if (high < 1 if found == FASTER else low > 1) else SAME
