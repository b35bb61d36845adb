"""Sections that show records as documents: locations, measurements, a model file, records of other packages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from msgspec.structs import replace

from sardonyx.records.analysis import Analysis
from sardonyx.records.comparison import Location
from sardonyx.records.outside import verb_of
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.analysis import analysis_document, analysis_sentence
from sardonyx.reporting.bench import bench_sentence, conditions, timing_table, tuning_section
from sardonyx.reporting.document import Document, Facts, Notes, Paragraph, Text, Tone, View, spans
from sardonyx.reporting.inspection import inspected, inspection_sentence
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots.charts import boxplot, substitution_plot
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import location_document, location_sentence
from sardonyx.reporting.writers import html


def run_location_section(bundle: RunBundle) -> Section | None:
    """Return the section of a run, or None if `locate` did not compare its files."""
    return None if bundle.location is None else location_section(bundle.location)


def location_section(location: Location) -> Section:
    """Return where two models begin to differ, the error along the model, and the share of each module."""
    document = location_document(replace(location, unpaired=()), View(verbose=True))  # these are folded on the page
    markup = rendered(
        "location",
        sentence=location_sentence(location),
        facts=html.write(document.head),
        plot=substitution_plot(location).inline() if len(location.substitutions) > 1 else None,
        body=html.write(document.blocks),
        borders=fmt.plural(location.borders, "border value"),
        unpaired=[fmt.name(name) for name in location.unpaired],
    )
    return Section("location", "Where the models differ", markup)


_UNSET: tuple[object, ...] = (None, False, "", [], (), {})


def measurements_section(bundle: RunBundle) -> Section:
    """Return times, tuning, the machine, and how to read them."""
    run, bench = bundle.run, bundle.bench
    options: list[str] = []  # in words, as neither Python nor a shell writes them: "runtimes ort", "hashes"
    for name, value in run.options.items():
        if value not in _UNSET:
            items = ", ".join(map(str, cast("Sequence[object]", value))) if isinstance(value, (list, tuple)) else value
            options.append(name.replace("_", " ") + ("" if value is True else f" {items}"))
    took = fmt.phases(run.seconds) or "not known"
    facts: dict[str, Text] = {"options": fmt.one_line(", ".join(options)) or "none", "it took": took}
    facts |= {} if bench is None else conditions(bench)
    markup = rendered(
        "measured",
        bench=bench,
        sentence="" if bench is None else bench_sentence(bench),
        plot="" if bench is None else boxplot(bench).inline(),
        times="" if bench is None else html.table(timing_table(bench), "Time of a run, by file"),
        tuning=html.write(tuning_section(run.tuning, View()).blocks),
        facts=html.write([Facts(facts)]),
        notes=(*run.notes, *bundle.notes),
    )
    return Section("measured", "Measured", markup)


def file_section(bundle: RunBundle) -> Section:
    """Return what a file holds, its interface and its operators, and what optimizing would save."""
    inspection = bundle.inspection
    assert inspection is not None, "the page of a model file"
    before, after = bundle.run.before.nodes, bundle.run.after.nodes
    sentences = [f"{fmt.name(bundle.label)}: {inspection_sentence(inspection)}."]
    if bundle.forms is not None:
        sentences.append(f"{analysis_sentence(_as_is(bundle))}.")
    sentences.append(f"Optimizing would give {fmt.counts(before, after)} nodes ({fmt.percent(before, after)}).")
    how = (
        "“Before” is the file, “after” what `sardonyx optimize` would make of it. Everything is computed from the "
        "graph: nothing was run or verified."
    )
    notes = [fmt.one_line(note) for note in (*bundle.run.notes, *bundle.notes)]
    lead = (Paragraph(" ".join(sentences)), Paragraph(how, Tone.FAINT), Notes(notes))
    return Section("file", "The file", html.write((*lead, *inspected(inspection))))


def costs_section(bundle: RunBundle) -> Section | None:
    """Return the costs of the file and of its modules, or None if they could not be computed."""
    if bundle.forms is None:
        return None
    document = analysis_document(_as_is(bundle), View(verbose=True))
    return Section("costs", "Costs", html.write((*document.head, *document.blocks)))


def _as_is(bundle: RunBundle) -> Analysis:
    assert bundle.analysis is not None
    return replace(bundle.analysis, sources=bundle.analysis.sources[:1], forms=bundle.analysis.forms[:1])


def outside_sections(bundle: RunBundle) -> Iterator[Section]:
    """Yield a section for each record of another package."""
    for record in bundle.outside:
        document: Document = verb_of(record.record_tag()).document(record, View(verbose=True))
        title = "".join(span.text for span in spans(document.title)) or record.record_tag()
        yield Section(record.record_tag(), fmt.one_line(title), html.write((*document.head, *document.blocks)))
