"""A study as documents and as files: its tables, its pictures, the page of findings, the summary for the terminal.

Each finding comes from the record with the table that supports it; nothing is concluded here. The page leaves out how
long the study took and what it reused from an earlier run, so that equal results give equal bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from sardonyx.records import study as records
from sardonyx.records.study import Entry, Finding, Study
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Column, Span, Text, Tone, View
from sardonyx.reporting.module_rows import listed
from sardonyx.reporting.plots.study import pictures
from sardonyx.reporting.writers import markdown
from sardonyx.reporting.writers.tables import write_csv

MOST_SHOWN = 200  # rows of a table in Markdown; the CSV has them all
_LONGEST_LIST = 12  # models named in a line
_FAILURES_SHOWN = 5  # listed unless verbose


def study_document(study: Study, view: View) -> doc.Document:
    """Return the answer of `study`: findings, open questions and failures; the folder has the rest."""
    shown = study.failures if view.verbose else study.failures[:_FAILURES_SHOWN]
    cells = (", ".join(map(fmt.name, filter(None, (f.experiment, f.model)))) for f in shown)
    failures = [f"{cell}: {fmt.one_line(f.reason)}" for cell, f in zip(cells, shown, strict=True)]
    rest = len(study.failures) - len(shown)
    return doc.Document(
        blocks=(
            _conclusions("The data support", study, certain=True),
            _conclusions("The data do not settle", study, certain=False),
            doc.Section(
                Span(f"{fmt.plural(len(study.failures), 'cell')} failed", Tone.BAD),
                (
                    doc.Notes(failures),
                    doc.Paragraph(f"and {fmt.count(rest)} more; -v shows them" if rest else "", Tone.FAINT),
                ),
            ),
            doc.Notes([Span(fmt.one_line(note), Tone.FAINT) for note in study.notes]),
        ),
        sentence=Span(study_sentence(study), Tone.STRONG),
    )


def study_sentence(study: Study) -> str:
    """Return the study in one line."""
    models, tables = fmt.plural(len(study.models), "model"), fmt.plural(len(study.tables), "table")
    failed = f", {fmt.plural(len(study.failures), 'cell')} failed" if study.failures else ""
    return f"{models}, {fmt.plural(study.cells, 'cell')}, {tables}{failed}"


def _conclusions(title: str, study: Study, *, certain: bool) -> doc.Section:
    lines = [
        (f"{fmt.one_line(finding.text)} ", Span(f"[{fmt.name(finding.table)}]", Tone.FAINT))
        for finding in study.findings
        if finding.certain is certain
    ]
    return doc.Section(title, (doc.Notes(lines),))


def files(study: Study) -> dict[str, bytes]:
    """Return all files of a study's folder besides its record, by their path within it."""
    contents = {f"tables/{name}": data for table in study.tables for name, data in table_files(table)}
    drawn = pictures(study)
    contents |= {f"pictures/{name}": picture.encode() for name, (_title, picture) in drawn.items()}
    page = findings_document(study, {name: title for name, (title, _picture) in drawn.items()})
    return contents | {"findings.md": markdown.write(page).encode()}


# The page of findings.


def findings_document(study: Study, titles: Mapping[str, str]) -> doc.Document:
    """Return the page of findings; `titles` are those of pictures by file name."""
    tables = {table.name: table for table in study.tables}
    models = listed([fmt.name(model) for model in study.models], _LONGEST_LIST)
    certain = [finding for finding in study.findings if finding.certain]
    uncertain = [finding for finding in study.findings if not finding.certain]
    return doc.Document(
        title="Findings",
        head=(doc.Paragraph(f"{fmt.plural(len(study.models), 'model')}: {models}."),),
        blocks=(
            doc.Section(
                "What the data support",
                (doc.Notes(_sourced(certain, tables)) if certain else doc.Paragraph("Nothing."),),
            ),
            doc.Section("What the data do not settle", (doc.Notes(_sourced(uncertain, tables)),)),
            *(doc.Image(title, f"pictures/{name}") for name, title in titles.items()),
            _failures(study),
            _measured(study),
            doc.Section("Tables", (doc.Notes([(_link(table), f": {_row_count(table)}") for table in study.tables]),)),
        ),
    )


def _sourced(findings: Iterable[Finding], tables: Mapping[str, records.Table]) -> list[Text]:
    lines: list[Text] = []
    for finding in findings:
        text, source = fmt.one_line(finding.text), tables.get(finding.table)
        lines.append(text if source is None else (f"{text} (", _link(source), f", {_row_count(source)})"))
    return lines


def _link(table: records.Table) -> Span:
    return Span(table.title, target=f"tables/{table.name}.md")


def _row_count(table: records.Table) -> str:
    return fmt.plural(len(table.rows), "row")


def _failures(study: Study) -> doc.Section:
    models = defaultdict[tuple[str, str], list[str]](list)
    for failure in study.failures:
        models[failure.experiment, failure.reason].append(failure.model)
    rows = (
        (experiment, ", ".join(dict.fromkeys(of)), fmt.count(len(of)), fmt.one_line(reason))
        for (experiment, reason), of in sorted(models.items())
    )
    above = f"{fmt.plural(len(study.failures), 'cell')} could not be computed and are in no number above."
    headings = ("experiment", "models", "cells", "why")
    return doc.table_section("What could not be run", headings, rows, text_columns=4, above=above)


def _measured(study: Study) -> doc.Section:
    here = study.environment
    versions = ", ".join(f"{name} {version}" for name, version in sorted(here.packages.items()))
    facts = (
        f"Sardonyx {here.sardonyx}, Python {here.python}, {versions}",
        f"{here.platform}, {fmt.plural(here.cpus, 'CPU')}",
        "; ".join(f"{name} {_option(value)}" for name, value in sorted(study.options.items())),
        f"timed on {'; '.join(study.machines)}; every ratio was measured on one machine" if study.machines else "",
        *study.notes,
    )
    lines: list[Text] = [fmt.one_line(fact) for fact in facts if fact]
    lines += [
        (_link(table), f": {fmt.one_line(table.about)}{' Times are of these machines.' if table.timed else ''}")
        for table in study.tables
        if table.about
    ]
    return doc.Section("How it was measured", (doc.Notes(lines),))


def _option(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, cast("list[Any]", value))) or "none"
    return "not given" if value is None else str(value)


# Tables: CSV and JSON hold every number in full, Markdown rounds. A row is one observation in all three.


def table_files(table: records.Table) -> Iterator[tuple[str, bytes]]:
    """Yield file names and their contents."""
    yield f"{table.name}.csv", write_csv(table.columns, table.rows).encode()
    yield f"{table.name}.json", table_json(table)
    yield f"{table.name}.md", markdown.write(table_document(table)).encode()


def table_json(table: records.Table) -> bytes:
    """Return the table with its rows as objects."""
    document = {name: getattr(table, name) for name in ("name", "title", "about", "timed")}
    document["rows"] = table.named_rows()
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def table_document(table: records.Table, most: int = MOST_SHOWN) -> doc.Document:
    """Return how the numbers were measured, and the first rows."""
    columns = [
        Column(column.replace("_", " "), right=all(not isinstance(row[place], str) for row in table.rows))
        for place, column in enumerate(table.columns)
    ]
    rows = ([shown(entry) for entry in row] for row in table.rows[:most])
    rest = len(table.rows) - most
    more = (f"and {fmt.plural(rest, 'more row')} in ", Span(f"{table.name}.csv", code=True)) if rest > 0 else ""
    return doc.Document(
        title=table.title,
        head=(doc.Paragraph(fmt.one_line(table.about)),),
        blocks=(doc.Table.of(columns, rows), doc.Paragraph(more)),
    )


def shown(entry: Entry) -> str:
    """Return an entry as it is shown: four digits, and a dash for an unknown value."""
    match entry:
        case None:
            return "–"
        case bool():
            return "yes" if entry else "no"
        case int():
            return fmt.count(entry)
        case float():  # four digits; very small and very large ones with a power of ten
            form = ".2e" if not 1e-3 <= abs(entry) < 1e6 else ",.4g" if abs(entry) < 1e4 else ",.0f"
            return format(entry, form) if entry else "0"
        case str():
            return fmt.name(entry, 120)
