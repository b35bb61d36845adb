"""Documents as plain text: aligned columns, an indent of two spaces, colour where the terminal has it.

Unprintable characters are made visible here, so that no name can move the cursor, change the reading direction or
colour the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.cells import cell_len

from sardonyx.reporting.document import (
    Block,
    Cell,
    Code,
    Column,
    Document,
    Facts,
    Image,
    Notes,
    Paragraph,
    Section,
    Span,
    Table,
    Text,
    Tone,
    is_empty,
    spans,
)
from sardonyx.reporting.formatting import visible

_GAP = "  "
_INDENT = "  "
_CODES = {Tone.STRONG: "1", Tone.FAINT: "2", Tone.GOOD: "32", Tone.BAD: "1;31"}


class Style(Struct, frozen=True):
    """Whether emphasis is shown as colour."""

    color: bool = False

    def paint(self, tone: Tone, text: str) -> str:
        """Return the text in the colour of its tone."""
        code = _CODES.get(tone)
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code and text.strip() else text


PLAIN = Style()


def write(document: Document, style: Style = PLAIN) -> str:
    """Return the whole document; its last line is the sentence."""
    title = [_strong(document.title, style)] if any(span.text for span in spans(document.title)) else []
    head = [*title, *_lines(document.head, style)]
    parts = [head, *(list(_block(block, style)) for block in document.blocks if not is_empty(block))]
    if document.sentence is not None:
        parts.append([_text(document.sentence, style)])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def sentence(document: Document, style: Style = PLAIN) -> str:
    """Return the summary line only."""
    return "" if document.sentence is None else _text(document.sentence, style) + "\n"


def table_lines(table: Table, style: Style = PLAIN, indent: str = _INDENT) -> list[str]:
    """Return the lines of a table: columns as wide as their contents, two spaces between them."""
    rows = [[_cell(cell, style) for cell in row.cells] for row in table.rows]
    headings = [_plain(column.heading) for column in table.columns]
    full = [headings, *(cells for cells in rows if len(cells) == len(headings))]
    widths = [max(width for _, width in column) for column in zip(*full, strict=True)]
    lines = [style.paint(Tone.FAINT, _aligned(headings, table.columns, widths, indent))]
    for row, cells in zip(table.rows, rows, strict=True):
        spanning = len(cells) != len(headings)
        line = indent + cells[0][0] if spanning else _aligned(cells, table.columns, widths, indent)
        lines.append(style.paint(row.tone, line))
    return lines


def _lines(blocks: Sequence[Block], style: Style) -> Iterator[str]:
    """Yield the lines of the blocks of a section, with an empty line between two tables."""
    has_table = False
    for block in blocks:
        if is_empty(block):
            continue
        if has_table and isinstance(block, Table):
            yield ""
        yield from _block(block, style)
        has_table = has_table or isinstance(block, Table)


def _block(block: Block, style: Style) -> Iterator[str]:
    match block:
        case Paragraph(text=text, tone=tone):
            yield style.paint(tone, _INDENT + _text(text, style))
        case Notes(items=items):
            yield from (_INDENT + _text(item, style) for item in items)
        case Facts(values=values):
            width = max(cell_len(visible(label)) for label in values)
            for label, value in values.items():
                yield f"{_INDENT}{visible(label)}{' ' * (width - cell_len(visible(label)))}{_GAP}{_text(value, style)}"
        case Table():
            yield from table_lines(block, style)
        case Code(text=text):
            yield from (_INDENT + visible(line) for line in text.rstrip("\n").split("\n"))
        case Image(title=title, target=target):
            yield f"{_INDENT}{visible(title)}: {visible(target)}"
        case Section(title=title, blocks=blocks):
            yield _strong(title, style)
            yield from _lines(blocks, style)


def _strong(text: Text, style: Style) -> str:
    """Return a title: pieces without a tone of their own are strong."""
    pieces = (Span(span.text, Tone.STRONG if span.tone is Tone.PLAIN else span.tone) for span in spans(text))
    return _text(tuple(pieces), style)


def _text(text: Text, style: Style) -> str:
    """Return a text with every unprintable character made visible: the only place where that happens."""
    return "".join(style.paint(span.tone, visible(span.text)) for span in spans(text))


def _plain(text: Text) -> tuple[str, int]:
    written = _text(text, PLAIN)
    return written, cell_len(written)


def _cell(cell: Text | Cell, style: Style) -> tuple[str, int]:
    """Return a cell as it is printed, and how many columns of the terminal it takes."""
    text, depth = (cell.text, cell.depth) if isinstance(cell, Cell) else (cell, 0)
    indent = _INDENT * depth
    return indent + _text(text, style), len(indent) + _plain(text)[1]


def _aligned(cells: Sequence[tuple[str, int]], columns: Sequence[Column], widths: Sequence[int], indent: str) -> str:
    padded: list[str] = []
    for (text, used), column, width in zip(cells, columns, widths, strict=True):
        space = " " * (width - used)
        padded.append(space + text if column.right else text + space)
    return (indent + _GAP.join(padded)).rstrip()
