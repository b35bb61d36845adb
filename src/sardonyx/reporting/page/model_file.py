"""The sections that only the page of a model file has: what the file is, and what it costs."""

from __future__ import annotations

from msgspec.structs import replace

from sardonyx.records.analysis import Analysis
from sardonyx.records.inspection import Inspection
from sardonyx.reporting import formatting
from sardonyx.reporting.analysis import analysis_document, analysis_sentence
from sardonyx.reporting.document import Notes, Paragraph, Tone, View
from sardonyx.reporting.inspection import (
    dynamic_dimensions,
    functions,
    inspection_facts,
    inspection_sentence,
    interface,
    operators,
)
from sardonyx.reporting.page.section import Section
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.writers import html


def head(bundle: RunBundle, inspection: Inspection) -> Section:
    """Return what a file holds, its interface and its operators, and what optimizing would save."""
    before, after = bundle.run.before.nodes, bundle.run.after.nodes
    sentences = [f"{formatting.name(bundle.label)}: {inspection_sentence(inspection)}."]
    if bundle.forms is not None:
        sentences.append(f"{analysis_sentence(_as_is(bundle))}.")
    sentences.append(
        f"Optimizing would give {formatting.from_to(formatting.count(before), formatting.count(after))} nodes "
        f"({formatting.percent(before, after)})."
    )
    how = (
        "“Before” is the file, “after” what `sardonyx optimize` would make of it. Everything is computed from the "
        "graph: nothing was run or verified."
    )
    notes = [formatting.one_line(note) for note in (*bundle.run.notes, *bundle.notes)]
    blocks = (
        Paragraph(" ".join(sentences)),
        Paragraph(how, Tone.FAINT),
        Notes(notes),
        inspection_facts(inspection),
        interface(inspection.inputs, inspection.outputs),
        dynamic_dimensions(inspection),
        functions(inspection),
        operators(inspection.ops),
    )
    return Section("file", "The file", html.write(blocks))


def costs(bundle: RunBundle) -> Section | None:
    """Return the costs of the file and of its modules, or None if they could not be computed."""
    if bundle.forms is None:
        return None
    document = analysis_document(_as_is(bundle), View(verbose=True))
    return Section("costs", "Costs", html.write((*document.head, *document.blocks)))


def _as_is(bundle: RunBundle) -> Analysis:
    """Return the costs of the file alone."""
    assert bundle.analysis is not None
    return replace(bundle.analysis, sources=bundle.analysis.sources[:1], forms=bundle.analysis.forms[:1])
