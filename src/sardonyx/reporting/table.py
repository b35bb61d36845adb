"""Plain text tables: columns as wide as what is in them, two spaces between, nothing drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from sardonyx.reporting.formatting import Style

GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and on which side its cells stand."""

    heading: str
    right: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    """A row of cells, or a remark under the row before."""

    cells: Sequence[str]
    paint: Callable[[str], str] | None = None


def text_column(heading: str) -> Column:
    """A column of words."""
    return Column(heading, right=False)


def table(columns: Sequence[Column], lines: Iterable[Line], style: Style, indent: str = "  ") -> list[str]:
    """The table as lines; a row with a single cell runs across all columns."""
    body = list(lines)
    full = [line.cells for line in body if len(line.cells) == len(columns)]
    widths = [
        max(cell_len(column.heading), *(cell_len(cells[i]) for cells in full), 0) for i, column in enumerate(columns)
    ]
    shown = [style.faint(_row([column.heading for column in columns], columns, widths, indent))]
    for line in body:
        whole = _row(line.cells, columns, widths, indent) if len(line.cells) == len(columns) else indent + line.cells[0]
        shown.append(line.paint(whole) if line.paint else whole)
    return shown


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], indent: str) -> str:
    padded: list[str] = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        space = " " * (width - cell_len(cell))
        padded.append(space + cell if column.right else cell + space)
    return (indent + GAP.join(padded)).rstrip()
