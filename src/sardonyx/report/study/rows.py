"""A table's rows for drawing: by column name, and numbers where numbers are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from sardonyx.study_record import Entry, Table

Row: TypeAlias = Mapping[str, Entry]


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
