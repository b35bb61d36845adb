"""The page of a command about many models: counts, savings, groups, failures, and some models with their records.

It shows groups and samples, so that it stays small for any number of models; the tables beside it have every row.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from sardonyx.records.fleet import Fleet
from sardonyx.reporting import formatting
from sardonyx.reporting.document import Block, Facts, Notes, Paragraph, Span, Text, is_empty
from sardonyx.reporting.document import Section as Blocks
from sardonyx.reporting.fleet import (
    failure_section,
    fleet_sentence,
    group_section,
    memory_section,
    missed_section,
    pass_section,
    sample_tables,
    savings,
    status_table,
)
from sardonyx.reporting.page.page import Model, whole
from sardonyx.reporting.page.section import Section
from sardonyx.reporting.plots.histogram import histogram
from sardonyx.reporting.writers import html

_FAILURES = 100  # reasons


def render_fleet(fleet: Fleet, tables: Sequence[str] = ()) -> str:
    """Return the page; `tables` are the files beside it that have all rows."""
    title = f"{fleet.command} {formatting.plural(len(fleet.models), 'model')}"
    parts = (
        ("summary", "Summary", _summary(fleet, tables)),
        ("models", "Models", tuple(Blocks(name, (table,)) for name, table in sample_tables(fleet).items())),
        ("groups", "", (group_section(fleet),)),
        ("failures", "", (failure_section(fleet, _FAILURES),)),
        ("passes", "", (pass_section(fleet),)),
        ("missed", "", (missed_section(fleet),)),
        ("memory", "", (memory_section(fleet),)),
        ("conditions", "Conditions", _conditions(fleet)),
    )
    sections = [_section(id_, heading, blocks) for id_, heading, blocks in parts]
    shares = [share for share, _ in savings(fleet)]
    if shares:
        sections.insert(2, _histogram(shares, "bytes" if fleet.command == "quantize" else "nodes"))
    return whole([Model(title, tuple(part for part in sections if part.html))], title, None)


def _section(id_: str, heading: str, blocks: Sequence[Block]) -> Section:
    """Return a section of the page; the title of a single block of a document becomes its own."""
    if not heading and len(blocks) == 1 and isinstance(blocks[0], Blocks):
        title = blocks[0].title
        heading, blocks = title.text if isinstance(title, Span) else str(title), blocks[0].blocks
    return Section(id_, heading, Markup("") if all(map(is_empty, blocks)) else html.write(blocks))


def _summary(fleet: Fleet, tables: Sequence[str]) -> tuple[Block, ...]:
    links: list[str | Span] = []
    for name in tables:
        links += [", " if links else "Every model is a row in ", Span(name, target=name)]
    return Paragraph(f"{fleet_sentence(fleet)}."), status_table(fleet), Paragraph(tuple(links))


def _conditions(fleet: Fleet) -> tuple[Block, ...]:
    here = fleet.environment
    facts: dict[str, Text] = {
        "command": formatting.one_line(" ".join(here.command)) or "called from Python",
        "machines": "; ".join(fleet.machines) or "not known",
        "versions": ", ".join([f"sardonyx {here.sardonyx}", *(f"{n} {v}" for n, v in sorted(here.packages.items()))]),
        "date": formatting.date(here.date),
        "time": formatting.seconds(fleet.seconds),
    }
    notes: list[Text] = [formatting.one_line(note) for note in fleet.notes]
    return Facts(facts), Notes(notes)


def _histogram(shares: Sequence[float], what: str) -> Section:
    picture = histogram(shares, what)
    markup = Markup('<div class="scroll" tabindex="0" role="group" aria-label="{}">{}</div>')
    return Section("savings", picture.title, markup.format(picture.title, picture.inline()))
