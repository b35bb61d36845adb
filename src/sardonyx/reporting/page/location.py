"""The first module that differs on the page: the result of `locate` for the two files of a run, or for any two."""

from __future__ import annotations

from msgspec.structs import replace

from sardonyx.records.comparison import Location
from sardonyx.reporting import formatting
from sardonyx.reporting.document import View
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots.charts import substitution_plot
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import location_document, location_facts, location_sentence
from sardonyx.reporting.writers import html


def section(bundle: RunBundle) -> Section | None:
    """Return the section of a run, or None if `locate` did not compare its files."""
    return None if bundle.location is None else location_section(bundle.location)


def location_section(location: Location) -> Section:
    """Return where two models begin to differ, the error along the model, and the share of each module."""
    document = location_document(replace(location, unpaired=()), View(verbose=True))  # these are folded on the page
    markup = rendered(
        "location",
        sentence=location_sentence(location),
        facts=list(location_facts(location).items()),
        plot=substitution_plot(location).inline() if len(location.substitutions) > 1 else None,
        body=html.write(document.blocks),
        borders=formatting.plural(location.borders, "border value"),
        unpaired=[formatting.name(name) for name in location.unpaired],
    )
    return Section("location", "Where the models differ", markup)
