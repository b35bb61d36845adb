"""Blocks of documents as HTML for the report page. Every text passes through `_text`, which escapes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup, escape

from sardonyx.reporting import document as doc
from sardonyx.reporting.document import Row, Span, Text, Tone
from sardonyx.reporting.formatting import visible

_CLASSES = {Tone.FAINT: "soft", Tone.GOOD: "good", Tone.BAD: "bad"}
_NESTED = "› "  # in place of the indent
_BACKQUOTED = re.compile("`((?:--)?[a-z][^`]{2,})`")  # options, parameters, commands
_UNNAMED = "result"  # the heading of a column without one: a screen reader reads it


def write(blocks: Sequence[doc.Block], level: int = 3) -> Markup:
    """Return the markup of blocks; `level` is that of the headings of sections."""
    return Markup("\n").join(_block(block, level) for block in blocks if not doc.is_empty(block))


def table(content: doc.Table, caption: str = "") -> Markup:
    """Return a table that scrolls sideways; a caption is read aloud but not shown."""
    label = Markup(' aria-label="{}"').format(_text(caption)) if caption else Markup("")
    hidden = Markup('<caption class="visually-hidden">{}</caption>\n').format(_text(caption)) if caption else Markup("")
    heads = Markup("").join(
        Markup('<th scope="col"{}>{}</th>').format(_side(column.right), _text(column.heading or _UNNAMED))
        for column in content.columns
    )
    rows = Markup("\n").join(_row(row, content) for row in content.rows)
    return Markup(
        '<div class="scroll" tabindex="0" role="group"{}>\n<table class="plain">\n{}'
        "<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody>\n</table>\n</div>"
    ).format(label, hidden, heads, rows)


def _block(block: doc.Block, level: int) -> Markup:
    match block:
        case doc.Paragraph(text=text, tone=tone):
            return Markup("<p{}>{}</p>").format(_tone(tone), _sentence(text))
        case doc.Notes(items=items):
            return Markup("<ul>{}</ul>").format(
                Markup("").join(Markup("<li>{}</li>").format(_sentence(i)) for i in items)
            )
        case doc.Facts(values=values):
            pairs = (
                Markup("<div><dt>{}</dt><dd>{}</dd></div>").format(_text(label), _text(value))
                for label, value in values.items()
            )
            return Markup('<dl class="measured-facts">\n{}\n</dl>').format(Markup("\n").join(pairs))
        case doc.Table():
            return table(block)
        case doc.Code(text=text):
            return Markup("<pre><code>{}</code></pre>").format("\n".join(map(visible, text.split("\n"))))
        case doc.Image(title=title, target=target):
            return Markup('<img src="{}" alt="{}">').format(target, _text(title))
        case doc.Section(title=title, blocks=blocks, folded=folded):
            body = write(blocks, level + 1)
            if folded:
                return Markup("<details><summary>{}</summary>\n{}\n</details>").format(_text(title), body)
            return Markup("<h{0}>{1}</h{0}>\n{2}").format(min(level, 6), _text(title), body)


def _row(row: Row, content: doc.Table) -> Markup:
    marked = Markup(' class="marked"') if row.tone in (Tone.STRONG, Tone.BAD) else Markup("")
    if len(row.cells) != len(content.columns):
        spanning = Markup('<td colspan="{}"{}>{}</td>')
        cells = spanning.format(len(content.columns), _tone(row.tone), _cell(row.cells[0]))
    else:
        cells = Markup("").join(
            Markup('<th scope="row">{}</th>').format(_cell(cell))
            if place == 0 and not column.right
            else Markup("<td{}>{}</td>").format(_side(column.right), _cell(cell))
            for place, (cell, column) in enumerate(zip(row.cells, content.columns, strict=True))
        )
    return Markup("<tr{}>{}</tr>").format(marked, cells)


def _cell(cell: Text | doc.Cell) -> Markup:
    cell = doc.as_cell(cell)
    return Markup(_NESTED * cell.depth) + _text(cell.text)


def _side(right: bool) -> Markup:
    return Markup(' class="num"') if right else Markup("")


def _tone(tone: Tone) -> Markup:
    return Markup(' class="{}"').format(_CLASSES[tone]) if tone in _CLASSES else Markup("")


def _text(text: Text) -> Markup:
    """Return a text with markup escaped and unprintable characters made visible: the only place where that happens."""
    return Markup("").join(map(_span, doc.spans(text)))


def _sentence(text: Text) -> Markup:
    return Markup("").join(prose(each.text) if each == Span(each.text) else _span(each) for each in doc.spans(text))


def prose(sentence: str) -> Markup:
    """Return a sentence in which what stands in backquotes, such as an option, is code."""
    return Markup(_BACKQUOTED.sub(r"<code>\1</code>", str(escape(visible(sentence)))))


def _span(span: Span) -> Markup:
    written = escape(visible(span.text))
    if span.target:
        return Markup('<a href="{}">{}</a>').format(span.target, written)
    if span.code:
        return Markup("<code>{}</code>").format(written)
    if span.tone is Tone.STRONG:
        return Markup("<b>{}</b>").format(written)
    if span.tone in _CLASSES:
        return Markup('<span class="{}">{}</span>').format(_CLASSES[span.tone], written)
    return written
