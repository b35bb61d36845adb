"""Records of commands of other packages on the page: each is a section with the document that the command prints."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.records.outside import verb_of
from sardonyx.reporting import formatting
from sardonyx.reporting.document import Document, View, spans
from sardonyx.reporting.page.section import Section
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.writers import html


def sections(bundle: RunBundle) -> Iterator[Section]:
    """Yield a section for each record of another package."""
    for record in bundle.outside:
        document: Document = verb_of(record.record_tag()).document(record, View(verbose=True))
        title = "".join(span.text for span in spans(document.title)) or record.record_tag()
        yield Section(record.record_tag(), formatting.one_line(title), html.write((*document.head, *document.blocks)))
