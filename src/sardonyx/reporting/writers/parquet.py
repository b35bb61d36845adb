"""Rows as Parquet, for data frames: every column has the type of its entries."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Sequence
from typing import Any


def is_available() -> bool:
    """Return whether pyarrow is installed, which writes the files."""
    return importlib.util.find_spec("pyarrow") is not None


def write(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    """Return the rows under their headings; None is a missing entry, and entries of several types become text."""
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
