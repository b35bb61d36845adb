"""Rows for spreadsheets and data frames, as CSV and as Parquet. Numbers keep every digit."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
from collections.abc import Iterable, Sequence
from typing import Any

from sardonyx.reporting.formatting import visible

_FORMULA = ("=", "+", "-", "@")  # a text that begins with one of these is a formula to a spreadsheet


def write_csv(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return the heading and every row as CSV: None is an empty entry, and no name becomes a formula or ends a line."""
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


def has_parquet() -> bool:
    """Return whether pyarrow is installed, which writes the files."""
    return importlib.util.find_spec("pyarrow") is not None


def write_parquet(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    """Return the rows as Parquet: None is a missing entry, and entries of several types become text."""
    arrow: Any = importlib.import_module("pyarrow")  # imported when it is used; it has no types
    parquet: Any = importlib.import_module("pyarrow.parquet")
    stream = io.BytesIO()
    entries = {name: _typed([row[place] for row in rows]) for place, name in enumerate(columns)}
    parquet.write_table(arrow.table(entries), stream, compression="zstd")
    return stream.getvalue()


def _typed(entries: list[Any]) -> list[Any]:
    kinds = {_kind(entry) for entry in entries if entry is not None}
    return entries if len(kinds) <= 1 else [None if entry is None else str(entry) for entry in entries]


def _kind(entry: object) -> str:
    return "number" if isinstance(entry, (int, float)) and not isinstance(entry, bool) else type(entry).__name__
