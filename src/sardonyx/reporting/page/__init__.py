"""The page of runs, of model files, and of a command about many models: one self-contained HTML file.

Each part of the page is a function in a file here that returns a `Section`; its template is in `templates/`, its script
in `assets/`. Names from a model reach the page only as escaped text or inside the data island. The page of many models
shows groups and samples, so that it stays small for any number of them; the tables beside it have every row.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata, resources

import msgspec
from markupsafe import Markup
from msgspec import Struct, structs

from sardonyx.records.comparison import Location
from sardonyx.records.study import Fleet
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Block, Facts, Notes, Paragraph, Span, Text, is_empty, table_section
from sardonyx.reporting.document import Section as Blocks
from sardonyx.reporting.fleet import (
    failure_section,
    fleet_sentence,
    group_section,
    memory_section,
    pass_section,
    sample_tables,
    savings,
    status_table,
)
from sardonyx.reporting.fleet import missed_section as fleet_missed_section
from sardonyx.reporting.formatting import notes_with_flags
from sardonyx.reporting.history import recent
from sardonyx.reporting.inspection import inspection_sentence
from sardonyx.reporting.page.devices import section as devices_section
from sardonyx.reporting.page.documents import (
    costs_section,
    file_section,
    location_section,
    measurements_section,
    outside_sections,
    run_location_section,
)
from sardonyx.reporting.page.graph import attention_section
from sardonyx.reporting.page.graph import section as graph_section
from sardonyx.reporting.page.modules import map_section
from sardonyx.reporting.page.modules import section as modules_section
from sardonyx.reporting.page.overview import overview
from sardonyx.reporting.page.overview import section as verdict_section
from sardonyx.reporting.page.precision import section as precision_section
from sardonyx.reporting.page.precision import sections as quantization_sections
from sardonyx.reporting.page.rewrites import missed_section
from sardonyx.reporting.page.rewrites import section as rewrites_section
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.page.verification import section as verification_section
from sardonyx.reporting.plots import svg
from sardonyx.reporting.quantization import quantization_sentence
from sardonyx.reporting.run import run_sentence
from sardonyx.reporting.run_bundle import QuantizationBundle, RunBundle
from sardonyx.reporting.verdict import location_sentence
from sardonyx.reporting.writers import html

SECTIONS: tuple[Callable[[RunBundle], Section | None], ...] = (  # in the order of the page
    verdict_section,
    graph_section,
    modules_section,
    devices_section,
    map_section,
    rewrites_section,
    missed_section,
    attention_section,
    verification_section,
    run_location_section,
    precision_section,
    measurements_section,
)
OF_A_MODEL: tuple[Callable[[RunBundle], Section | None], ...] = (  # those of a file that was not optimized
    file_section,
    graph_section,
    modules_section,
    devices_section,
    costs_section,
    map_section,
    rewrites_section,
    missed_section,
    attention_section,
)
SCRIPTS = (
    "core.js",
    "shell.js",
    "manners.js",
    "saving.js",
    "diagram.js",
    "strings.js",
    "module_tree.js",
    "module_detail.js",
    "modules.js",
    "graph_data.js",
    "devices.js",
    "graph_layout.js",
    "graph_panel.js",
    "node_details.js",
    "drawings.js",
    "graph.js",
    "map.js",
    "rewrite_book.js",
    "rewrite_detail.js",
    "rewrites.js",
    "missed.js",
)  # in the order they are read; all share one scope
STYLES = (
    "style.css",
    "overview.css",
    "compared.css",
    "verdict.css",
    "modules.css",
    "map.css",
    "diagram.css",
    "graph.css",
    "drawings.css",
    "rewrites.css",
    "missed.css",
    "attention.css",
    "verification.css",
    "passes.css",
    "precision.css",
    "measured.css",
)
VENDORED = "vendor/dagre.min.js"  # a library, with its licence beside it
EARLY = "theme.js"  # runs before anything is painted


class Model(Struct, frozen=True):
    """One model of the page with its sections."""

    label: str
    sections: tuple[Section, ...]

    @property
    def shown(self) -> list[Section]:
        """The sections with markup; others only contribute data."""
        return [section for section in self.sections if section.html]


def render_page(
    bundles: Sequence[RunBundle],
    quantizations: Sequence[QuantizationBundle] = (),
    *,
    title: str | None = None,
    first: Section | None = None,
) -> str:
    """Return the page of one model, or of several with a selection among them; `first` replaces their overview."""
    shown = map(_with_flags, bundles if first else recent(bundles))
    models = [_model(bundle, SECTIONS) for bundle in shown]
    models += [Model(bundle.label, quantization_sections(bundle)) for bundle in quantizations]
    labels = ", ".join(bundle.label for bundle in (*bundles, *quantizations))
    sentences = [run_sentence(bundle.run) for bundle in bundles]
    sentences += [quantization_sentence(bundle.quantization) for bundle in quantizations]
    return whole(models, title or labels, first or overview(bundles) or _listed(models, sentences))


def render_models(bundles: Sequence[RunBundle]) -> str:
    """Return the page of model files that were not optimized; each has an inspection."""
    models = [_model(bundle, OF_A_MODEL) for bundle in bundles]
    sentences = [inspection_sentence(each.inspection) for each in bundles if each.inspection is not None]
    return whole(models, ", ".join(bundle.label for bundle in bundles), _listed(models, sentences))


def _with_flags(bundle: RunBundle) -> RunBundle:
    """Return a bundle whose notes name flags if the command line made the run."""
    if not bundle.run.environment.command:
        return bundle
    return structs.replace(
        bundle,
        bench=None if bundle.bench is None else notes_with_flags(bundle.bench),
        analysis=None if bundle.analysis is None else notes_with_flags(bundle.analysis),
        export=None if bundle.export is None else notes_with_flags(bundle.export),
    )


def graph_page(bundle: RunBundle) -> str:
    """Return a page with the graph alone, for notebooks."""
    return whole([Model(bundle.label, (graph_section(bundle),))], bundle.label, None)


def render_locations(locations: Mapping[str, Location]) -> str:
    """Return the page of records of `locate` without a run; each has a label."""
    models = [Model(label, (location_section(record),)) for label, record in locations.items()]
    return whole(models, ", ".join(locations), _listed(models, list(map(location_sentence, locations.values()))))


def _listed(models: Sequence[Model], sentences: Sequence[str]) -> Section | None:
    """Return the list of several models with links to them, which comes first on the page, or None for one."""
    if len(models) < 2:
        return None
    rows = (
        (Span(fmt.name(model.label), target=f"#section={model.shown[0].id}&model={place}"), sentence)
        for place, (model, sentence) in enumerate(zip(models, sentences, strict=True))
    )
    return Section(
        "overview", "All models", html.write(table_section("", ("model", "summary"), rows, text_columns=2).blocks)
    )


def whole(models: Sequence[Model], title: str, first: Section | None) -> str:
    """Return a page with the sections of models, and `first` before them if it is given."""
    texts = _assets((EARLY,)), _library() + _assets(SCRIPTS)
    scripts = [f'"use strict";\n(() => {{\n{text}}})();\n' for text in texts]
    described = [
        {"label": model.label, "sections": {part.id: part.data for part in model.sections if part.data is not None}}
        for model in models
    ]
    return rendered(
        "page",
        title=title,
        models=models,
        overview=first,
        style=Markup(_palette() + _assets(STYLES)),
        early_script=Markup(scripts[0]),
        script=Markup(scripts[1]),
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        island=Markup(harmless({"models": described})),
        version=metadata.version("sardonyx"),
    )


def _model(bundle: RunBundle, builders: Sequence[Callable[[RunBundle], Section | None]]) -> Model:
    built_in = (build(bundle) for build in builders)
    return Model(bundle.label, (*(part for part in built_in if part is not None), *outside_sections(bundle)))


def _assets(names: Sequence[str]) -> str:
    folder = resources.files("sardonyx.reporting.page") / "assets"
    return "".join((folder / name).read_text("utf-8") for name in names)


def _library() -> str:
    """Return the vendored library with its licence, without the comments that name files which the page lacks."""
    code = _assets((VENDORED,)).partition("\n/*! For license information")[0]
    return f"{_assets((f'{VENDORED}.LEGAL.txt',))}{code}\n"


def _palette() -> str:
    """Return the colours of families, the same as in picture files, and the style of pictures inside the page."""
    colors = "".join(f"--own{place}: light-dark({light}, {dark}); " for place, (light, dark) in enumerate(svg.COLORS))
    return f":root {{ {colors}}}{svg.PAGE_STYLE}"


def harmless(data: object) -> str:
    """Return JSON in which an HTML parser sees no tag, comment or entity, and a script parser no end of a line."""
    text = msgspec.json.encode(data).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT, _FOOT = 960, 64, 16, 84, 220, 52
_BINS = 20  # between 0 and 100 %


def histogram(shares: Sequence[float], what: str) -> svg.Picture:
    """Return how many of the shares lie in each step of 5 %; those below zero are one bar at the left."""
    counts = Counter(max(-1, min(_BINS - 1, int(share * _BINS // 1))) for share in shares)
    up = svg.ticks(0, max(counts.values(), default=1), 4)
    step = (_WIDTH - _LEFT - _RIGHT) / (_BINS + 1)
    bottom = _TOP + _HEIGHT
    body: list[str] = []
    for mark in up:
        y = bottom - _HEIGHT * mark / up[-1]
        body += [svg.line(_LEFT, y, _WIDTH - _RIGHT, y), svg.text(_LEFT - 8, y + 4, f"{mark:g}", "soft", anchor="end")]
    bars: list[str] = []
    for place in range(-1, _BINS):
        height = _HEIGHT * counts[place] / up[-1]
        x = _LEFT + step * (place + 1)
        hover = f"{_range(place)}: {fmt.plural(counts[place], 'model')}"
        bars.append(svg.rect(x + 1, bottom - height, step - 2, height, hover=hover))
        if place < 0:
            body.append(svg.text(x + 0.3 * step, bottom + 18, "< 0", "soft", anchor="middle"))
        elif place % 2 == 0:
            body.append(svg.text(x, bottom + 18, f"{100 * place // _BINS} %", "soft", anchor="middle"))
    body += [svg.group(0, bars), svg.line(_LEFT, bottom, _WIDTH - _RIGHT, bottom, "axis")]
    body.append(svg.text(_WIDTH - _RIGHT, bottom + 40, f"{what} saved", "soft", anchor="end"))
    numbers = ", ".join(f"{_range(place)}: {counts[place]}" for place in sorted(counts))
    title = f"Share of {what} saved, {fmt.plural(len(shares), 'model')}"
    return svg.Picture(
        "histogram", _WIDTH, bottom + _FOOT, title, "Models in each step of 5 %.", body, description=numbers
    )


def _range(place: int) -> str:
    return "less than 0 %" if place < 0 else f"{100 * place // _BINS} to {100 * (place + 1) // _BINS} %"


_FAILURES = 100  # reasons


def render_fleet(fleet: Fleet, tables: Sequence[str] = ()) -> str:
    """Return the page; `tables` are the files beside it that have all rows."""
    title = f"{fleet.command} {fmt.plural(len(fleet.models), 'model')}"
    parts = (
        ("summary", "Summary", _summary(fleet, tables)),
        ("models", "Models", tuple(Blocks(name, (table,)) for name, table in sample_tables(fleet).items())),
        ("groups", "", (group_section(fleet),)),
        ("failures", "", (failure_section(fleet, _FAILURES),)),
        ("passes", "", (pass_section(fleet),)),
        ("missed", "", (fleet_missed_section(fleet),)),
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
        "command": fmt.one_line(" ".join(here.command)) or "called from Python",
        "machines": "; ".join(fleet.machines) or "not known",
        "versions": ", ".join([f"sardonyx {here.sardonyx}", *(f"{n} {v}" for n, v in sorted(here.packages.items()))]),
        "date": fmt.date(here.date),
        "time": fmt.seconds(fleet.seconds),
    }
    notes: list[Text] = [fmt.one_line(note) for note in fleet.notes]
    return Facts(facts), Notes(notes)


def _histogram(shares: Sequence[float], what: str) -> Section:
    picture = histogram(shares, what)
    markup = Markup('<div class="scroll" tabindex="0" role="group" aria-label="{}">{}</div>')
    return Section("savings", picture.title, markup.format(picture.title, picture.inline()))
