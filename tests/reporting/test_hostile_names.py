"""No name from a model becomes markup: in every document and every format it reads back as the same text."""

from __future__ import annotations

import csv as csv_module
import io
import re
from collections.abc import Iterable, Iterator
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

import hostile
from reporting.sample_documents import documents
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
    Row,
    Section,
    Span,
    Table,
    Text,
    Tone,
    View,
    is_empty,
    spans,
)
from sardonyx.reporting.formatting import visible
from sardonyx.reporting.writers import html, markdown, terminal
from sardonyx.reporting.writers.tables import write_csv
from sardonyx.reporting.writers.terminal import Style

MARKDOWN = {
    "image tag": "<img src=x onerror=alert(1)>",
    "link": "[a](javascript:b)",
    "reference": "[a]: javascript:b",
    "picture": "![i](u)",
    "code": "`x`",
    "fence": "```\nx",
    "tilde fence": "~~~",
    "bar": "a|b \\| c\\",
    "heading": "# a #",
    "setext": "---",
    "dash": "- a",
    "plus": "+ a",
    "star": "* a",
    "number": "1. a",
    "number with a bracket": "12) a",
    "quotation": "> a",
    "task": "[ ] a",
    "emphasis": "_emph_ *emph* __strong__ **strong** ~~gone~~ snake_case_name",
    "autolink": "<http://evil.invalid>",
    "bare address": "http://evil.invalid www.evil.invalid HTTPS://evil.invalid",
    "mention": "@someone a@b.invalid #1",
    "emoji shortcode": ":smile: :+1::e-mail: a:heavy_check_mark:b :a:b:c: :_a_:",
    "character reference": "&lt; &#60; &copy;",
    "math": "$a$ $$b$$ $`c`$",
    "footnote": "[^1]",
    "hard break": "a  \nb\\",
    "blank": "  ",
    "indented": "    code",
    "details": "</summary></details><details>",
}
VECTORS = {**hostile.VECTORS, **MARKDOWN}
MARKUP = "\\`*_{}[]()#+-.!|<>&~$@:/=\"' \n1aw"
NAMES = st.text(max_size=60) | st.text(MARKUP, max_size=30) | st.sampled_from([*VECTORS.values()])
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
BREAK = "\u200b"  # inserted into mentions; one that comes from a name is made visible
INLINE = {"text", "code_inline", "strong_open", "strong_close"}
BLOCKS = {"heading", "paragraph", "bullet_list", "list_item", "table", "thead", "tbody", "tr", "th", "td"}
TAGS = {"details", "summary"}
PAGE_TAGS = TAGS | {"p", "ul", "li", "dl", "div", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "caption"}
PAGE_TAGS |= {"h3", "h4", "span", "b", "code", "pre", "a", "img"}
ATTRIBUTES = {"class", "scope", "tabindex", "role", "aria-label", "colspan", "href", "src", "alt"}


def everywhere(name: str) -> Document:
    """A document with the name in every text."""
    cells = (Cell(name, depth=1), (name, Span(name, Tone.BAD)), Span(name, code=True))
    table = Table([Column(name), Column(name, right=False), Column("n")], [Row(cells), Row((name,), Tone.FAINT)])
    inner: tuple[Block, ...] = (
        Paragraph(name),
        Paragraph((Span(name, code=True), name)),
        Notes([name, (name, Span(name, code=True))]),
        Facts({name or "a": name, "b": Span(name, Tone.STRONG)}),
        table,
        Code(name, "text"),
        Paragraph((Span(name, target=f"tables/{name}.md"), name)),
        Image(name, f"pictures/{name}"),
    )
    return Document(
        title=name,
        head=inner,
        blocks=(Section(name, inner), Section(name, inner, folded=True), Section((name, Span("x", Tone.BAD)), inner)),
        sentence=Span(name, Tone.STRONG),
    )


def normal(text: str) -> str:
    return " ".join(text.replace(BREAK, "").split())


def plain(text: Text | Cell) -> str:
    if isinstance(text, Cell):
        return "› " * text.depth + plain(text.text)
    return "".join(visible(span.text) for span in spans(text))


def expected(blocks: Iterable[Block]) -> Iterator[str]:
    """The texts of blocks in order."""
    for block in blocks:
        if is_empty(block):
            continue
        match block:
            case Paragraph(text=text):
                yield plain(text)
            case Notes(items=items):
                yield from map(plain, items)
            case Facts(values=values):
                for label, value in values.items():
                    yield visible(label)
                    yield plain(value)
            case Table(columns=columns, rows=rows):
                yield from (visible(column.heading) for column in columns)
                yield from (plain(cell) for row in rows for cell in row.cells)
            case Code(text=text):
                yield "\n".join(map(visible, text.split("\n")))
            case Image(title=title):
                yield visible(title)
            case Section(title=title, blocks=inner):
                yield plain(title)
                yield from expected(tuple(inner))


def targets(blocks: Iterable[Block]) -> int:
    """The number of links and images in the blocks."""
    total = 0
    for block in blocks:
        if isinstance(block, Section):
            total += targets(block.blocks)
        elif not is_empty(block):
            total += len(re.findall("target='[^']|target=\"", repr(block)))
    return total


def check_markdown(document: Document) -> None:
    text = markdown.write(document)
    assert all(char.isprintable() or char == "\n" for char in text)
    texts: list[str] = []
    links = 0
    tokens = PARSER.parse(text)
    for token in tokens:
        if token.type == "html_block":
            texts += Tags(token.content, TAGS).texts
        elif token.type == "fence":
            texts.append(token.content)
        elif token.type == "inline":
            outside, inside = _inline(token)
            texts.append(outside)
            links += inside
        else:
            assert token.type.rpartition("_")[0] in BLOCKS, token
    all_blocks = (*document.head, *document.blocks)
    title = [plain(document.title)]
    sentence = [] if document.sentence is None else [f"{visible(document.sentence.text).strip()}."]
    assert normal(" ".join(texts)) == normal(" ".join([*title, *sentence, *_joined(all_blocks)]))
    assert links == targets(all_blocks)
    assert [t.level for t in tokens if t.type == "table_open"] == [0] * _tables(all_blocks)


def _joined(blocks: tuple[Block, ...]) -> Iterator[str]:
    """The texts as Markdown shows them: facts have a colon."""
    yield from expected(tuple(_facts_as_notes(blocks)))


def _facts_as_notes(blocks: tuple[Block, ...]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Facts):
            yield Notes([(f"{label}: ", *spans(value)) for label, value in block.values.items()])
        elif isinstance(block, Section):
            yield Section(block.title, tuple(_facts_as_notes(tuple(block.blocks))))
        else:
            yield block


def _tables(blocks: tuple[Block, ...]) -> int:
    return sum(
        _tables(tuple(block.blocks)) if isinstance(block, Section) else isinstance(block, Table) and bool(block.rows)
        for block in blocks
    )


def _inline(token: Token) -> tuple[str, int]:
    """The text of a line and its number of links and images; nothing else is allowed."""
    texts: list[str] = []
    links = 0
    for child in token.children or ():
        if child.type == "image":
            links += 1
            texts.append(child.content and "".join(each.content for each in child.children or ()))
            assert str(child.attrs["src"]).startswith("pictures/")
        elif child.type == "link_open":
            links += 1
            assert str(child.attrs["href"]).startswith("tables/")
        elif child.type != "link_close":
            assert child.type in INLINE, child
            texts.append(child.content)
    return "".join(texts), links


class Tags(HTMLParser):
    """Parses markup: only known tags with known attributes are allowed."""

    def __init__(self, text: str, allowed: set[str]) -> None:
        super().__init__()
        self.allowed, self.texts, self.links = allowed, list[str](), 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.allowed, tag
        for name, value in attrs:
            assert name in ATTRIBUTES, name
            if name in ("href", "src"):
                self.links += 1
                assert str(value).startswith(("tables/", "pictures/"))
            if name == "alt":
                self.texts.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert tag in self.allowed, tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"a declaration: {decl}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data}")


def check_html(document: Document) -> None:
    blocks = (*document.head, *document.blocks)
    tags = Tags(str(html.write(blocks)), PAGE_TAGS)
    assert all(char.isprintable() or char == "\n" for text in tags.texts for char in text)
    assert "".join("".join(tags.texts).split()) == "".join("".join(_on_page(blocks)).split())
    assert tags.links == targets(blocks)


def _on_page(blocks: tuple[Block, ...]) -> Iterator[str]:
    """The texts as a page shows them: a column without a heading is called the result."""
    for block in blocks:
        if isinstance(block, Table):
            block = Table([Column(each.heading or "result", each.right) for each in block.columns], block.rows)
        if isinstance(block, Section) and not is_empty(block):
            yield plain(block.title)
            yield from _on_page(tuple(block.blocks))
        else:
            yield from expected((block,))


def check_terminal(document: Document) -> None:
    text = terminal.write(document)
    assert all(char.isprintable() or char == "\n" for char in text)
    coloured = terminal.write(document, Style(color=True))
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == text
    squeezed = "".join(text.split())
    for part in (*expected((*document.head, *document.blocks)), plain(document.title)):
        assert "".join(part.replace("› ", "").split()) in squeezed, part


def check(document: Document) -> None:
    check_terminal(document)
    check_markdown(document)
    check_html(document)


@pytest.mark.parametrize("name", VECTORS.values(), ids=VECTORS)
def test_a_hostile_name_reads_back_as_text_from_every_place(name: str) -> None:
    check(everywhere(name))


@pytest.mark.medium
@given(NAMES)
def test_any_name_reads_back_as_text_from_every_place(name: str) -> None:
    check(everywhere(name))


@given(NAMES)
def test_github_creates_no_link_and_no_mention(name: str) -> None:
    """GitHub extensions, which the parser here does not have, look for these in the text."""
    assert not re.search(r"(?i)://|www\.|@\w|#\d", markdown.escaped(name).replace("&#8203;", BREAK))


@given(NAMES)
def test_github_shows_no_emoji_for_a_shortcode(name: str) -> None:
    """GitHub replaces shortcodes in the rendered text, in the summary of a folded section too."""
    name = f":smile:{name}:+1:"
    texts = unescape(PARSER.renderInline(markdown.escaped(name)))
    folded = Section(name, [Paragraph("a")], folded=True)
    texts += " " + "".join(Tags(markdown.block(folded).partition("\n")[0] + "</details>", TAGS).texts)
    assert not re.search(r":[\w+-]+:", texts)
    assert not re.search(r"@[^\W_]|#\d", texts)


@pytest.mark.medium
@pytest.mark.parametrize("verbose", [False, True])
def test_every_document_of_hostile_records_keeps_their_text(verbose: bool) -> None:
    for _kind, document in documents(hostile.bad, View(verbose=verbose)):
        check(document)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=kind, marks=pytest.mark.campaign if number % 3 else ())
        for number, (kind, name) in enumerate(MARKDOWN.items())
    ],
)
def test_every_document_withstands_every_name(name: str) -> None:
    for _kind, document in documents(lambda text: name + text, View(verbose=True)):
        check(document)


@given(st.lists(st.lists(NAMES, min_size=2, max_size=2), max_size=4))
def test_csv_has_no_formula_and_no_line_too_many(rows: list[list[str]]) -> None:
    read = list(csv_module.reader(io.StringIO(write_csv(["a", "b"], rows), newline="")))
    assert len(read) == 1 + len(rows)
    for written, given_ in zip(read[1:], rows, strict=True):
        assert [cell.removeprefix("'") for cell in written] == [visible(cell).removeprefix("'") for cell in given_]
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in written)
