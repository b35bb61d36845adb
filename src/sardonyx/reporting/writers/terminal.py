"""Documents as plain text: aligned columns, an indent of two spaces, colour where the terminal has it.

Unprintable characters are made visible here, so that no name can move the cursor, change the reading direction or
colour the terminal. With a width, sentences are wrapped between words; a table halves the indent of its tree, leaves
out its least important columns and then the middle of long cells until each row is one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from rich.cells import cell_len, set_cell_size

from sardonyx.reporting import document as doc
from sardonyx.reporting.document import Span, Text, Tone
from sardonyx.reporting.formatting import visible

_GAP = "  "
_INDENT = "  "
_NARROW_INDENT = " "  # of a level of a tree in a table that does not fit otherwise
_READABLE_COLUMNS = 24  # columns of the terminal that a shortened cell keeps while the table has columns to leave out
_MIN_COLUMNS = 12  # and if it has none
_NAME_COLUMNS = 48  # columns that the names of the first column keep while the table has columns to leave out
_HEADING_WIDTH = 8  # columns that the shortened heading of numbers keeps
_CODES = {Tone.STRONG: "1", Tone.FAINT: "2", Tone.GOOD: "32", Tone.BAD: "1;31"}


class Style(Struct, frozen=True):
    """Whether emphasis is shown as colour, and the width of the terminal."""

    color: bool = False
    width: int | None = None  # None: lines may have any length
    wraps: bool = True  # sentences are broken between words; in a pipe they stay one line each

    def paint(self, tone: Tone, text: str) -> str:
        """Return the text in the colour of its tone."""
        code = _CODES.get(tone)
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code and text.strip() else text


PLAIN = Style()


def write(document: doc.Document, style: Style = PLAIN) -> str:
    """Return the whole document; its last line is the sentence."""
    title = _strong(document.title)
    head = [*(_title(title, style) if any(span.text for span in title) else ()), *_lines(document.head, style)]
    parts = [head, *(list(_block(block, style)) for block in document.blocks if not doc.is_empty(block))]
    if document.sentence is not None:
        parts.append(_wrapped(document.sentence, style))
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _title(title: tuple[Span, ...], style: Style) -> list[str]:
    """Return a title in lines that fit the terminal; without spaces to break at, its middle is left out."""
    plain = _text(title, PLAIN)
    if style.width is None or not style.wraps or " " in plain or cell_len(plain) <= style.width:
        return _wrapped(title, style)
    return [style.paint(Tone.STRONG, _shortened(_Piece.of(title, PLAIN), style.width).text)]


def sentence(document: doc.Document, style: Style = PLAIN) -> str:
    """Return the summary line only."""
    return "" if document.sentence is None else _text(document.sentence, style) + "\n"


def table_lines(table: doc.Table, style: Style = PLAIN, indent: str = _INDENT) -> list[str]:
    """Return the lines of a table: columns as wide as their contents, two spaces between them."""
    step, width = _INDENT, None if style.width is None else style.width - len(indent)
    contents = _content_widths(table, step)
    if width is not None and _total(map(max, contents, _heading_widths(table))) > width:
        step = _NARROW_INDENT
        contents = _content_widths(table, step)
    widths = _fitted(table, contents, width)

    def aligned(cells: Sequence[Text | doc.Cell], style: Style) -> str:
        padded: list[str] = []
        for place, wide in widths.items():
            piece = _shortened(_Piece.of(cells[place], style, step), wide)
            space = " " * (wide - piece.width)
            padded.append(space + piece.text if table.columns[place].right else piece.text + space)
        return (indent + _GAP.join(padded)).rstrip()

    lines = [style.paint(Tone.FAINT, aligned([column.heading for column in table.columns], PLAIN))]
    for row in table.rows:
        if len(row.cells) == len(table.columns):
            lines.append(style.paint(row.tone, aligned(row.cells, style)))
        else:  # a remark
            cell = doc.as_cell(row.cells[0])
            start = indent + _INDENT * cell.depth
            lines += (style.paint(row.tone, line) for line in _wrapped(cell.text, style, start, start + _INDENT))
    return lines


def _content_widths(table: doc.Table, step: str) -> list[int]:
    full = [row.cells for row in table.rows if len(row.cells) == len(table.columns)]
    return [
        max((_Piece.of(cells[place], PLAIN, step).width for cells in full), default=0)
        for place in range(len(table.columns))
    ]


def _heading_widths(table: doc.Table) -> list[int]:
    return [cell_len(visible(column.heading)) for column in table.columns]


def _total(widths: Iterable[int]) -> int:
    listed = list(widths)
    return sum(listed) + len(_GAP) * (len(listed) - 1)


def _fitted(table: doc.Table, contents: Sequence[int], width: int | None) -> dict[int, int]:
    """Return how wide each column is, by its place; those that do not fit into the width are left out."""
    columns = table.columns
    needed = dict(enumerate(map(max, contents, _heading_widths(table))))
    if width is None:
        return needed

    def least(place: int, narrowest: int) -> int:
        """Return the least width of a column: numbers are not shortened, and a heading only if the column must stay."""
        if columns[place].right or columns[place].whole:
            return needed[place] if columns[place].detail else min(needed[place], max(contents[place], _HEADING_WIDTH))
        return min(needed[place], narrowest)

    for level in sorted({column.detail for column in columns if column.detail}, reverse=True):
        readable = {place: least(place, _READABLE_COLUMNS) for place in needed}
        if 0 in readable:
            readable[0] = max(readable[0], min(needed[0], _NAME_COLUMNS))
        if _total(readable.values()) > width:
            needed = {place: wide for place, wide in needed.items() if columns[place].detail != level}
    narrow = {place: least(place, _MIN_COLUMNS) for place in needed}
    while _total(needed.values()) > width and (wide := [place for place in needed if needed[place] > narrow[place]]):
        needed[max(wide, key=lambda place: (not columns[place].right, place > 0, needed[place]))] -= 1
    return needed


class _Piece(Struct, frozen=True):
    """A cell as it is printed, without its colours, and how many columns of the terminal it takes."""

    text: str
    plain: str
    width: int

    @classmethod
    def of(cls, cell: Text | doc.Cell, style: Style, step: str = _INDENT) -> _Piece:
        cell = doc.as_cell(cell)
        plain = step * cell.depth + _text(cell.text, PLAIN)
        return cls(step * cell.depth + _text(cell.text, style), plain, cell_len(plain))


def _shortened(piece: _Piece, width: int) -> _Piece:
    """Return a cell that is not wider than this; the middle of a long one is left out, its indent stays."""
    if piece.width <= width:
        return piece
    body = piece.plain.lstrip(" ")
    indent = " " * min(len(piece.plain) - len(body), max(0, width - _MIN_COLUMNS))
    room = max(1, width - len(indent) - 1)
    head = set_cell_size(body, room // 2)
    tail = set_cell_size(body[::-1], room - room // 2)[::-1]
    text = f"{indent}{head}…{tail}"
    return _Piece(text, text, cell_len(text))


def _lines(blocks: Sequence[doc.Block], style: Style) -> Iterator[str]:
    """Yield the lines of the blocks of a section, with an empty line between two tables."""
    has_table = False
    for block in blocks:
        if doc.is_empty(block):
            continue
        if has_table and isinstance(block, doc.Table):
            yield ""
        yield from _block(block, style)
        has_table = has_table or isinstance(block, doc.Table)


def _block(block: doc.Block, style: Style) -> Iterator[str]:
    match block:
        case doc.Paragraph(text=text, tone=tone):
            yield from (style.paint(tone, line) for line in _wrapped(text, style, _INDENT))
        case doc.Notes(items=items):
            for item in items:
                yield from _wrapped(item, style, _INDENT, hanging=2 * _INDENT)
        case doc.Facts(values=values):
            width = max(cell_len(visible(label)) for label in values)
            for label, value in values.items():
                start = f"{_INDENT}{visible(label)}{' ' * (width - cell_len(visible(label)))}{_GAP}"
                yield from _wrapped(value, style, start, hanging=" " * cell_len(start))
        case doc.Table():
            yield from table_lines(block, style)
        case doc.Code(text=text):
            yield from (_INDENT + visible(line) for line in text.rstrip("\n").split("\n"))
        case doc.Image(title=title, target=target):
            yield f"{_INDENT}{visible(title)}: {visible(target)}"
        case doc.Section(title=title, blocks=blocks):
            yield from _wrapped(_strong(title), style)
            yield from _lines(blocks, style)


def _strong(text: Text) -> tuple[Span, ...]:
    """Return a title: pieces without a tone of their own are strong."""
    return tuple(Span(span.text, Tone.STRONG if span.tone is Tone.PLAIN else span.tone) for span in doc.spans(text))


def _text(text: Text, style: Style) -> str:
    """Return a text with every unprintable character made visible: the only place where that happens."""
    return "".join(style.paint(span.tone, visible(span.text)) for span in doc.spans(text))


def _wrapped(text: Text, style: Style, start: str = "", hanging: str | None = None) -> list[str]:
    """Return a text in lines that fit the terminal, broken between words; longer words stay whole.

    Args:
        text: The text.
        style: Its colours and the width.
        start: What the first line begins with.
        hanging: What the other lines begin with; None: as the first.
    """
    if style.width is None or not style.wraps or cell_len(start + _text(text, PLAIN)) <= style.width:
        return [start + _text(text, style)]
    hanging = start if hanging is None else hanging
    lines: list[str] = []
    line, used = start, cell_len(start)
    is_empty_line = True
    for span in doc.spans(text):
        for word in re.findall(r" +|[^ ]+", visible(span.text)):
            if not is_empty_line and not word.isspace() and used + cell_len(word) > style.width:
                lines.append(line.rstrip())
                line, used, is_empty_line = hanging, cell_len(hanging), True
            if is_empty_line and word.isspace():
                continue
            line += style.paint(span.tone, word)
            used += cell_len(word)
            is_empty_line = False
    return [*lines, line.rstrip()]
