"""An Extraction as a document: the extracted module, its boundary, and what it was verified against."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.records.extraction import BoundaryValue, Extraction
from sardonyx.reporting import formatting
from sardonyx.reporting.document import Document, Notes, Row, Section, Span, Table, Tone, View, text_column
from sardonyx.reporting.inspection import shape_text
from sardonyx.reporting.name_groups import grouped, listed
from sardonyx.reporting.verdict import verdict_section, verification

_SHOWN = 8  # straddling nodes, without -v


def extraction_document(extraction: Extraction, view: View) -> Document:
    """Return the answer of `extract`."""
    return Document(
        title=(_module(extraction.path), Span(f"  {formatting.name(extraction.tag, 100)}", Tone.FAINT)),
        head=(Notes(_heading_lines(extraction, view)),),
        blocks=(
            _boundary(extraction),
            verdict_section(extraction.live, view, "Against the live module"),
            verdict_section(extraction.verdict, view, "Against the whole model"),
        ),
        sentence=Span(extraction_sentence(extraction), Tone.STRONG),
    )


def extraction_sentence(extraction: Extraction) -> str:
    """Return what was extracted and whether it was verified, in one line."""
    clauses = [
        f"{_module(extraction.path)}: {formatting.plural(extraction.counts.nodes, 'node')}",
        formatting.plural(len(extraction.inputs), "input"),
        formatting.plural(len(extraction.outputs), "output"),
        formatting.size(extraction.counts.bytes),
    ]
    if extraction.path != extraction.asked and extraction.straddling:
        clauses.append(f"wider than {_module(extraction.asked)}")
    against = "the live module" if extraction.live is not None else "the whole model"
    clauses.append(verification(extraction.live or extraction.verdict, against))
    return ", ".join(clauses) + ("" if extraction.result.path is None else f" → {extraction.result.path}")


def _module(path: str) -> str:
    return formatting.name(path) or "the model"


def _heading_lines(extraction: Extraction, view: View) -> list[str]:
    lines: list[str] = []
    if extraction.straddling:
        names = [formatting.name(node) for node in extraction.straddling]
        lines.append(
            f"wider than {_module(extraction.asked)}, because these nodes also do the work of other modules: "
            + listed(names, None if view.verbose else _SHOWN)
        )
    if extraction.dropped:
        lines.append(f"not computed by this graph: {', '.join(map(formatting.name, extraction.dropped))}")
    return lines + [f"note: {formatting.one_line(note)}" for note in extraction.notes]


def _boundary(extraction: Extraction) -> Section:
    live = ("live module's",) if extraction.live is not None else ()
    columns = [text_column(heading) for heading in ("", "name", "type", "shape", "produced by", *live)]
    rows = _rows("input", extraction.inputs, extraction) + _rows("output", extraction.outputs, extraction)
    return Section("Boundary", (Table(columns, rows),))


def _rows(kind: str, values: Sequence[BoundaryValue], extraction: Extraction) -> list[Row]:
    def cells(value: BoundaryValue) -> tuple[str, ...]:
        return (
            formatting.name(value.type),
            shape_text(value.shape),
            "model input" if value.module is None else _module(value.module),
            *((formatting.name(value.live or "·"),) if extraction.live is not None else ()),
        )

    groups = grouped(values, lambda value: value.name, cells)
    return [Row((kind, label, *cells(first))) for label, (first, *_) in groups]
