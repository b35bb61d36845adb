"""The results of several models as one table with a row for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sardonyx.errors import GateNotMet
from sardonyx.records.base import Record
from sardonyx.reporting import formatting
from sardonyx.reporting.document import Column, Document, Row, Span, Table, Tone


class ModelResult(msgspec.Struct, frozen=True):
    """What a command found out about one of several models, or why it failed."""

    path: str
    record: Record | None
    code: int  # exit code
    error: str = ""
    hint: str | None = None


def results_document(
    results: Sequence[ModelResult], columns: Sequence[Column], cells: Callable[[Any], tuple[str, ...]], done: str
) -> Document:
    """Return the table of several models.

    Args:
        results: of all models.
        columns: the name of the model first.
        cells: returns the cells of a record after the name.
        done: what happened to the models that did not fail, as a participle.
    """
    rows = [
        Row((result.path, *(_failed(columns) if result.record is None else cells(result.record))), _tone(result))
        for result in results
    ]
    gates = sum(result.code == GateNotMet.exit_code for result in results)
    failed = sum(result.code != 0 for result in results) - gates
    clauses = [f"{len(results) - failed} {done}"]
    clauses += [f"{failed} failed"] if failed else []
    clauses += [f"{gates} did not meet a gate"] if gates else []
    sentence = f"{formatting.plural(len(results), 'model')}: {', '.join(clauses)}"
    return Document((Table(columns, rows),), sentence=Span(sentence, Tone.BAD if failed or gates else Tone.STRONG))


def _tone(result: ModelResult) -> Tone:
    return Tone.BAD if result.code else Tone.PLAIN


def _failed(columns: Sequence[Column]) -> list[str]:
    """Return the cells of a model that failed: dots, and the word in the first column of text after its name."""
    cells = ["·" if column.right else "" for column in columns[1:]]
    cells[cells.index("")] = "failed"
    return cells
