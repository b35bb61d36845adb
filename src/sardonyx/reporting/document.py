"""The document model: what a view shows, independent of the format that it is written in.

Every record has one function that turns it into a `Document`; `writers/` turns documents into text for a terminal,
Markdown and HTML. Texts in a document are raw: names come from model files and may contain anything. Each writer
escapes them in one place, so no view can forget to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from sardonyx.reporting.formatting import count


class Tone(Enum):
    """How a text is emphasized."""

    PLAIN = "plain"
    FAINT = "faint"
    GOOD = "good"
    BAD = "bad"
    STRONG = "strong"


class Span(Struct, frozen=True):
    """A piece of text with its emphasis."""

    text: str
    tone: Tone = Tone.PLAIN
    code: bool = False  # a formula or an identifier, in a fixed-width font where the format has one
    target: str = ""  # the relative path of a file that the text links to, where the format has links


Text: TypeAlias = "str | int | Span | tuple[str | Span, ...]"  # a number is written as 12,345


def spans(text: Text) -> tuple[Span, ...]:
    """Return the pieces of a text."""
    pieces = text if isinstance(text, tuple) else (count(text) if isinstance(text, int) else text,)
    return tuple(Span(piece) if isinstance(piece, str) else piece for piece in pieces)


class Column(Struct, frozen=True):
    """A heading, the side on which the cells are aligned, and how important the column is."""

    heading: str
    detail: int = 0  # a narrow terminal leaves out the columns with the largest number first; 0: never
    right: bool = True
    whole: bool = False  # cells are never shortened, as those with numbers, which are aligned right
    optional: bool = False  # left out if all its cells are empty


def text_column(heading: str, detail: int = 0, *, whole: bool = False, optional: bool = False) -> Column:
    """Return a column of words, aligned left."""
    return Column(heading, detail, right=False, whole=whole, optional=optional)


class Cell(Struct, frozen=True):
    """An entry of a table that is indented, because it lies below another one in a tree."""

    text: Text
    depth: int = 0


def as_cell(cell: Text | Cell) -> Cell:
    """Return any entry of a table as a cell."""
    return cell if isinstance(cell, Cell) else Cell(cell)


class Row(Struct, frozen=True):
    """A row of a table. A row with a single cell is a remark that spans all columns."""

    cells: Sequence[Text | Cell]
    tone: Tone = Tone.PLAIN


class Table(Struct, frozen=True):
    """Rows under headings."""

    columns: Sequence[Column]
    rows: Sequence[Row]

    @classmethod
    def of(cls, columns: Iterable[Column | str], rows: Iterable[Row | Sequence[Text | Cell]]) -> Table:
        """Return a table; a heading alone is a column of numbers, cells alone are a row without emphasis.

        Columns that are optional, or that a narrow terminal may leave out, are left out if all their cells are empty.
        """
        every = [Column(each) if isinstance(each, str) else each for each in columns]
        listed = [each if isinstance(each, Row) else Row(each) for each in rows]
        full = [row.cells for row in listed if len(row.cells) == len(every)]
        needless = {at for at, each in enumerate(every) if full and (each.detail or each.optional)}
        kept = [at for at in range(len(every)) if at not in needless or any(row[at] != "" for row in full)]
        shown = (row.cells if len(row.cells) < len(every) else [row.cells[at] for at in kept] for row in listed)
        return cls([every[at] for at in kept], [Row(cells, row.tone) for cells, row in zip(shown, listed, strict=True)])


class Paragraph(Struct, frozen=True):
    """One sentence or a few."""

    text: Text
    tone: Tone = Tone.PLAIN


class Notes(Struct, frozen=True):
    """A list of sentences."""

    items: Sequence[Text]


class Facts(Struct, frozen=True):
    """Values under their labels."""

    values: Mapping[str, Text]

    @classmethod
    def of(cls, values: Mapping[str, Text | None]) -> Facts:
        """Return the values that are not None."""
        return cls({label: value for label, value in values.items() if value is not None})


class Code(Struct, frozen=True):
    """A block of code in the given language."""

    text: str
    language: str = ""


class Image(Struct, frozen=True):
    """A picture in a file beside the document."""

    title: str
    target: str  # relative path


class Section(Struct, frozen=True):
    """Blocks under a title."""

    title: Text
    blocks: Sequence[Block]
    folded: bool = False  # hidden until the reader opens it, where the format has that


Block: TypeAlias = "Paragraph | Notes | Facts | Table | Code | Image | Section"


class Document(Struct, frozen=True):
    """A whole view."""

    blocks: Sequence[Block]
    title: Text = ""
    head: Sequence[Block] = ()  # directly below the title
    sentence: Span | None = None  # the summary: the last line on a terminal, the first paragraph elsewhere
    level: int = 1  # of the title among headings; sections are one level below


class View(Struct, frozen=True):
    """How much of a record a document shows."""

    verbose: bool = False
    depth: int | None = None  # levels of the module tree; None: as many as fit into `rows`, or all if verbose
    rows: int = 14  # of a module tree: a document that is not verbose is one screen


def capped(lines: Sequence[Text], most: int | None, more: str) -> list[Text]:
    """Return at most so many lines, and if there are others `more`, in which {} or {:,} stands for their number."""
    rest = 0 if most is None else len(lines) - most
    return [*lines[:most], more.format(rest)] if rest > 0 else [*lines]


def table_section(
    title: Text,
    headings: Sequence[Column | str],
    rows: Iterable[Row | Sequence[Text | Cell]],
    *,
    text_columns: int = 1,
    above: Text = "",
    below: Text = "",
    most: int | None = None,
) -> Section:
    """Return a section with one table.

    Args:
        title: the title of the section.
        headings: of the columns, or columns.
        rows: the cells of each row; without any, the section is empty.
        text_columns: how many columns from the left hold text; the other headings are of numbers.
        above: a sentence before the table.
        below: a sentence after it.
        most: how many rows are shown; the number of the others stands below.
    """
    texts = (text_column(each) if isinstance(each, str) else each for each in headings[:text_columns])
    listed = list(rows)
    shown = listed[:most]
    below = below or (f"and {len(listed) - len(shown)} more" if len(shown) < len(listed) else "")
    table = Table.of((*texts, *headings[text_columns:]), shown)
    return Section(title, (Paragraph(above, Tone.FAINT), table, Paragraph(below, Tone.FAINT)) if listed else ())


def is_empty(block: Block) -> bool:
    """Return whether a block has nothing to show. Writers skip such blocks, sections without content included."""
    match block:
        case Paragraph(text=text):
            return not any(span.text for span in spans(text))
        case Notes(items=items):
            return not items
        case Facts(values=values):
            return not values
        case Table(rows=rows):
            return not rows
        case Code(text=text):
            return not text
        case Image():
            return False
        case Section(blocks=blocks):
            return all(map(is_empty, blocks))
