"""Documents as GitHub-flavoured Markdown.

`escaped` makes every text mean itself only: no HTML, no link, no emphasis, no heading, no emoji, no end of a cell.
A code span is written only where nothing in it can end it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from sardonyx.reporting import document as doc
from sardonyx.reporting.document import Span, Text
from sardonyx.reporting.formatting import visible

_NESTED = "› "  # leading spaces are not shown in a cell
_SPECIAL = re.compile(r"[\\`*\[\]|~$#]|(?<!\w)_+|_+(?!\w)")  # an underscore within a word is not emphasis
_AUTOLINK = re.compile(r"(?i)(?<=:)(?=//)|(?<=www)(?=\.)")
# GitHub notifies people, links issues and shows emoji; it looks for them in the rendered text.
_MENTION = re.compile(r"(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=:)(?=[\w+\\-]+:)")
_BLOCK_START = re.compile(r"^(\d{1,9}(?=[.)])|(?=[-+>]))")  # of a list or a quotation
_BREAK = "&#8203;"  # a space without width
_CODE = re.compile(r"[^`|]+")  # nothing that ends a code span or a cell


def write(document: doc.Document) -> str:
    """Return the whole document: the title, the sentence, and everything else below."""
    return "\n\n".join(blocks(document)) + "\n"


def blocks(document: doc.Document) -> Iterator[str]:
    """Yield the Markdown of each block of a document, title and sentence first."""
    if any(span.text for span in doc.spans(document.title)):
        yield heading(document.title, document.level)
    if document.sentence is not None:
        yield f"**{escaped(visible(document.sentence.text).strip())}.**"
    for part in (*document.head, *document.blocks):
        if not doc.is_empty(part):
            yield block(part, document.level + 1)


def block(part: doc.Block, level: int = 2) -> str:
    """Return the Markdown of one block; `level` is that of the headings of sections."""
    match part:
        case doc.Paragraph(text=text):
            return _line(text)
        case doc.Notes(items=items):
            return "\n".join(f"- {_line(item)}" for item in items)
        case doc.Facts(values=values):
            return "\n".join(f"- {_line((f'{label}: ', *doc.spans(value)))}" for label, value in values.items())
        case doc.Table():
            return _table(part)
        case doc.Code(text=text, language=language):
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            return "\n".join([fence + language, *map(visible, text.rstrip("\n").split("\n")), fence])
        case doc.Image(title=title, target=target):
            return f"![{escaped(title)}]({quote(target)})"
        case doc.Section(title=title, blocks=inner, folded=folded):
            body = [block(child, level + 1) for child in inner if not doc.is_empty(child)]
            if not folded:
                return "\n\n".join([heading(title, level), *body])
            summary = html.escape(visible("".join(span.text for span in doc.spans(title))))
            summary = _MENTION.sub(_BREAK, summary)  # Markdown is not read in tags, but mentions are
            return "\n\n".join([f"<details><summary>{summary}</summary>", *body, "</details>"])


def heading(title: Text, level: int) -> str:
    """Return a heading."""
    return f"{'#' * min(level, 6)} {_inline(title)}"


def escaped(text: str) -> str:
    """Return the text so that Markdown shows it literally, on one line: the only place where names are escaped."""
    shown = _SPECIAL.sub(lambda match: re.sub(".", r"\\\g<0>", match[0]), visible(text))
    shown = shown.replace("&", "&amp;").replace("<", "&lt;")
    return _MENTION.sub(_BREAK, _AUTOLINK.sub(r"\\", shown))


def _line(text: Text) -> str:
    """Return a text at the beginning of a block, where a number or a dash would begin a list."""
    return _BLOCK_START.sub(r"\1\\", _inline(text).lstrip())


def _inline(text: Text) -> str:
    return "".join(_span(span) for span in doc.spans(text))


def _span(span: Span) -> str:
    if span.target:
        return f"[{escaped(span.text)}]({quote(span.target)})"
    if span.code and _CODE.fullmatch(visible(span.text)) and span.text == span.text.strip():
        return f"`{visible(span.text)}`"
    return escaped(span.text)


def _table(table: doc.Table) -> str:
    sides = ["---:" if column.right else "---" for column in table.columns]
    body: list[str] = []
    for row in table.rows:
        cells = [_NESTED * cell.depth + _inline(cell.text) for cell in map(doc.as_cell, row.cells)]
        body.append(_row([*cells, *[""] * (len(sides) - len(cells))]))
    return "\n".join([_row(escaped(column.heading) for column in table.columns), _row(sides), *body])


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
