"""A table of a study as CSV for a spreadsheet, JSON for a program and Markdown for a reader.

CSV and JSON hold every number in full; Markdown rounds for the eye. A row is one observation in all three. Names come
from models: only JSON has them as they are, CSV spells out what is unprintable and quotes what would be a formula.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import msgspec

from sardonyx.records.study import Entry, Table
from sardonyx.reporting import formatting, markdown

MOST_SHOWN = 200  # rows of a table on a page; the CSV has them all
_FORMULA = ("=", "+", "-", "@")  # what a spreadsheet takes for a formula at the head of a text


def table_files(table: Table) -> Iterator[tuple[str, bytes]]:
    """File names and their contents."""
    yield f"{table.name}.csv", table_csv(table).encode()
    yield f"{table.name}.json", table_json(table)
    yield f"{table.name}.md", f"# {markdown.escaped(table.title)}\n\n{table_markdown(table)}\n".encode()


def table_csv(table: Table) -> str:
    """The heading and every row, numbers in full; nothing for what is not known."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([_plain(column) for column in table.columns])
    writer.writerows([_plain(entry) for entry in row] for row in table.rows)
    return stream.getvalue()


def table_json(table: Table) -> bytes:
    """What the table is, and its rows as objects."""
    document = {
        "name": table.name,
        "title": table.title,
        "about": table.about,
        "timed": table.timed,
        "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def table_markdown(table: Table, most: int = MOST_SHOWN) -> str:
    """How the numbers were got, and the rows as a reader wants them."""
    right = [all(not isinstance(row[at], str) for row in table.rows) for at in range(len(table.columns))]
    heads = [column.replace("_", " ") for column in table.columns]
    body = markdown.table(heads, ([shown(entry) for entry in row] for row in table.rows[:most]), right=right)
    rest = len(table.rows) - most
    more = f"and {formatting.plural(rest, 'more row')} in `{table.name}.csv`" if rest > 0 else ""
    return "\n\n".join(filter(None, (markdown.escaped(table.about), body, more)))


def shown(entry: Entry) -> str:
    """An entry for the eye: four digits, and a dash for what is not known."""
    match entry:
        case None:
            return "–"
        case bool():
            return "yes" if entry else "no"
        case int():
            return formatting.count(entry)
        case float():
            return number(entry)
        case str():
            return formatting.name(entry, 120)


def number(value: float) -> str:
    """A measured number in four digits; very small and very large ones with a power of ten."""
    if value == 0:
        return "0"
    return f"{value:.2e}" if not 1e-3 <= abs(value) < 1e6 else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _plain(entry: Entry) -> str | int | float:
    match entry:
        case None:
            return ""
        case bool():
            return "true" if entry else "false"
        case str():
            return formatting.visible(f"'{entry}" if entry.startswith(_FORMULA) else entry)
        case _:
            return entry
