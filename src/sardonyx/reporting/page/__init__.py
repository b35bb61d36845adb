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
from sardonyx.reporting import document as doc
from sardonyx.reporting import fleet as fleets
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Span, Text
from sardonyx.reporting.history import recent
from sardonyx.reporting.inspection import inspection_sentence
from sardonyx.reporting.page import devices, documents, graph, modules, overview, precision, rewrites, verification
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots import svg
from sardonyx.reporting.quantization import quantization_sentence
from sardonyx.reporting.run import run_sentence
from sardonyx.reporting.run_bundle import QuantizationBundle, RunBundle
from sardonyx.reporting.verdict import location_sentence
from sardonyx.reporting.writers import html

SECTIONS: tuple[Callable[[RunBundle], Section | None], ...] = (  # in the order of the page
    *(overview.section, graph.section, modules.section, devices.section, modules.map_section),
    *(rewrites.section, rewrites.missed_section, graph.attention_section, verification.section),
    *(documents.run_location_section, precision.section, documents.measurements_section),
)
OF_A_MODEL: tuple[Callable[[RunBundle], Section | None], ...] = (  # those of a file that was not optimized
    *(documents.file_section, graph.section, modules.section, devices.section, documents.costs_section),
    *(modules.map_section, rewrites.section, rewrites.missed_section, graph.attention_section),
)
_SCRIPTS = (  # in the order they are read; all share one scope
    "core shell manners saving diagram strings module_tree module_detail modules graph_data devices graph_layout "
    "graph_panel node_details drawings graph map rewrite_book rewrite_detail rewrites missed"
)
_STYLES = (
    "style overview compared verdict modules map diagram graph drawings rewrites missed attention verification passes "
    "precision measured"
)
SCRIPTS = tuple(f"{name}.js" for name in _SCRIPTS.split())
STYLES = tuple(f"{name}.css" for name in _STYLES.split())
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
    models += [Model(bundle.label, precision.sections(bundle)) for bundle in quantizations]
    labels = ", ".join(bundle.label for bundle in (*bundles, *quantizations))
    sentences = [run_sentence(bundle.run) for bundle in bundles]
    sentences += [quantization_sentence(bundle.quantization) for bundle in quantizations]
    return whole(models, title or labels, first or overview.overview(bundles) or _listed(models, sentences))


def render_models(bundles: Sequence[RunBundle]) -> str:
    """Return the page of model files that were not optimized; each has an inspection."""
    models = [_model(bundle, OF_A_MODEL) for bundle in bundles]
    sentences = [inspection_sentence(each.inspection) for each in bundles if each.inspection is not None]
    return whole(models, ", ".join(bundle.label for bundle in bundles), _listed(models, sentences))


def _with_flags(bundle: RunBundle) -> RunBundle:
    """Return a bundle whose notes name flags if the command line made the run."""
    if not bundle.run.environment.command:
        return bundle
    noted = {name: getattr(bundle, name) for name in ("bench", "analysis", "export")}
    with_flags = {name: fmt.notes_with_flags(record) for name, record in noted.items() if record is not None}
    return structs.replace(bundle, **with_flags)


def graph_page(bundle: RunBundle) -> str:
    """Return a page with the graph alone, for notebooks."""
    return whole([Model(bundle.label, (graph.section(bundle),))], bundle.label, None)


def render_locations(locations: Mapping[str, Location]) -> str:
    """Return the page of records of `locate` without a run; each has a label."""
    models = [Model(label, (documents.location_section(record),)) for label, record in locations.items()]
    return whole(models, ", ".join(locations), _listed(models, list(map(location_sentence, locations.values()))))


def _listed(models: Sequence[Model], sentences: Sequence[str]) -> Section | None:
    """Return the list of several models with links to them, which comes first on the page, or None for one."""
    if len(models) < 2:
        return None
    rows = (
        (Span(fmt.name(model.label), target=f"#section={model.shown[0].id}&model={place}"), sentence)
        for place, (model, sentence) in enumerate(zip(models, sentences, strict=True))
    )
    table = doc.table_section("", ("model", "summary"), rows, text_columns=2)
    return Section("overview", "All models", html.write(table.blocks))


def whole(models: Sequence[Model], title: str, first: Section | None) -> str:
    """Return a page with the sections of models, and `first` before them if it is given."""
    library = _assets((VENDORED,)).partition("\n/*! For license information")[0]  # names files which the page lacks
    library = f"{_assets((f'{VENDORED}.LEGAL.txt',))}{library}\n"
    scripts = [f'"use strict";\n(() => {{\n{text}}})();\n' for text in (_assets((EARLY,)), library + _assets(SCRIPTS))]
    described = [
        {"label": model.label, "sections": {part.id: part.data for part in model.sections if part.data is not None}}
        for model in models
    ]
    # The colours of families are the same as in picture files.
    colors = "".join(f"--own{place}: light-dark({light}, {dark}); " for place, (light, dark) in enumerate(svg.COLORS))
    return rendered(
        "page",
        title=title,
        models=models,
        overview=first,
        style=Markup(f":root {{ {colors}}}{svg.PAGE_STYLE}{_assets(STYLES)}"),
        early_script=Markup(scripts[0]),
        script=Markup(scripts[1]),
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        island=Markup(harmless({"models": described})),
        version=metadata.version("sardonyx"),
    )


def _model(bundle: RunBundle, builders: Sequence[Callable[[RunBundle], Section | None]]) -> Model:
    built_in = (build(bundle) for build in builders)
    return Model(bundle.label, (*(part for part in built_in if part is not None), *documents.outside_sections(bundle)))


def _assets(names: Sequence[str]) -> str:
    folder = resources.files("sardonyx.reporting.page") / "assets"
    return "".join((folder / name).read_text("utf-8") for name in names)


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
    step, bottom = (_WIDTH - _LEFT - _RIGHT) / (_BINS + 1), _TOP + _HEIGHT
    up = svg.Scale.of([0, max(counts.values(), default=1)], bottom, _TOP, 4)
    body, bars = list(up.upward(_LEFT, _WIDTH - _RIGHT)), list[str]()
    for place in range(-1, _BINS):
        x, top = _LEFT + step * (place + 1), up(counts[place])
        hover = f"{_range(place)}: {fmt.plural(counts[place], 'model')}"
        bars.append(svg.rect(x + 1, top, step - 2, bottom - top, hover=hover))
        if place < 0:
            body.append(svg.text(x + 0.3 * step, bottom + 18, "< 0", "soft", anchor="middle"))
        elif place % 2 == 0:
            body.append(svg.text(x, bottom + 18, f"{100 * place // _BINS} %", "soft", anchor="middle"))
    body += [svg.group(0, bars), svg.line(_LEFT, bottom, _WIDTH - _RIGHT, bottom, "axis")]
    body.append(svg.text(_WIDTH - _RIGHT, bottom + 40, f"{what} saved", "soft", anchor="end"))
    numbers = ", ".join(f"{_range(place)}: {counts[place]}" for place in sorted(counts))
    title, about = f"Share of {what} saved, {fmt.plural(len(shares), 'model')}", "Models in each step of 5 %."
    return svg.Picture("histogram", _WIDTH, bottom + _FOOT, title, about, body, description=numbers)


def _range(place: int) -> str:
    return "less than 0 %" if place < 0 else f"{100 * place // _BINS} to {100 * (place + 1) // _BINS} %"


_MAX_FAILURES = 100  # reasons


def render_fleet(fleet: Fleet, tables: Sequence[str] = ()) -> str:
    """Return the page; `tables` are the files beside it that have all rows."""
    title = f"{fleet.command} {fmt.plural(len(fleet.models), 'model')}"
    links: list[str | Span] = []
    for name in tables:
        links += [", " if links else "Every model is a row in ", Span(name, target=name)]
    summary = (
        doc.Paragraph(f"{fleets.fleet_sentence(fleet)}."),
        fleets.status_table(fleet),
        doc.Paragraph(tuple(links)),
    )
    samples = tuple(doc.Section(name, (table,)) for name, table in fleets.sample_tables(fleet).items())
    here = fleet.environment
    facts: dict[str, Text] = {
        "command": fmt.one_line(" ".join(here.command)) or "called from Python",
        "machines": "; ".join(fleet.machines) or "not known",
        "versions": ", ".join(filter(None, (f"sardonyx {here.sardonyx}", fmt.versions(here.packages)))),
        "date": fmt.date(here.date),
        "time": fmt.seconds(fleet.seconds),
    }
    conditions = (doc.Facts(facts), doc.Notes([fmt.one_line(note) for note in fleet.notes]))
    parts = {  # the title of each section, and what is in it
        "summary": doc.Section("Summary", summary),
        "models": doc.Section("Models", samples),
        "groups": fleets.group_section(fleet),
        "failures": fleets.failure_section(fleet, _MAX_FAILURES),
        "passes": fleets.pass_section(fleet),
        "missed": fleets.missed_section(fleet),
        "memory": fleets.memory_section(fleet),
        "conditions": doc.Section("Conditions", conditions),
    }
    sections = [
        Section(id_, "".join(span.text for span in doc.spans(part.title)), html.write(part.blocks))
        for id_, part in parts.items()
    ]
    if shares := [share for share, _ in fleets.savings(fleet)]:
        picture = histogram(shares, "bytes" if fleet.command == "quantize" else "nodes")
        markup = Markup('<div class="scroll" tabindex="0" role="group" aria-label="{}">{}</div>')
        drawn = markup.format(picture.title, picture.inline())
        sections.insert(2, Section("savings", picture.title, drawn))
    return whole([Model(title, tuple(part for part in sections if part.html))], title, None)
