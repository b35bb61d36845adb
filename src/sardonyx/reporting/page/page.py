"""The whole page: the sections of every model in order, the data island, styles and scripts, in one file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata, resources
from typing import Any

import msgspec
from markupsafe import Markup
from msgspec import Struct, structs

from sardonyx.records.location import Location
from sardonyx.reporting.flags import notes_with_flags
from sardonyx.reporting.history import recent
from sardonyx.reporting.page import (
    attention,
    graph,
    headline,
    location,
    measurements,
    missed_fusions,
    model_file,
    module_map,
    modules,
    outside,
    precision,
    rewrites,
    verification,
)
from sardonyx.reporting.page.overview import overview
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots import svg
from sardonyx.reporting.run_bundle import QuantizationBundle, RunBundle

SECTIONS: tuple[Callable[[RunBundle], Section | None], ...] = (  # in the order of the page
    headline.section,
    graph.section,
    modules.section,
    module_map.section,
    rewrites.section,
    missed_fusions.section,
    attention.section,
    verification.section,
    location.section,
    precision.section,
    measurements.section,
)
OF_A_MODEL: tuple[Callable[[RunBundle], Section | None], ...] = (  # those of a file that was not optimized
    graph.section,
    modules.section,
    model_file.costs,
    module_map.section,
    rewrites.section,
    missed_fusions.section,
    attention.section,
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
    models = [Model(bundle.label, tuple(_sections(bundle))) for bundle in shown]
    models += [Model(bundle.label, precision.sections(bundle)) for bundle in quantizations]
    labels = ", ".join(bundle.label for bundle in (*bundles, *quantizations))
    return whole(models, title or labels, first or overview(bundles))


def render_models(bundles: Sequence[RunBundle]) -> str:
    """Return the page of model files that were not optimized; each has an inspection."""
    models = [Model(bundle.label, tuple(_sections_of_model(bundle))) for bundle in bundles]
    return whole(models, ", ".join(bundle.label for bundle in bundles), None)


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
    return whole([Model(bundle.label, (graph.section(bundle),))], bundle.label, None)


def render_locations(locations: Mapping[str, Location]) -> str:
    """Return the page of records of `locate` without a run; each has a label."""
    models = [Model(label, (location.location_section(record),)) for label, record in locations.items()]
    return whole(models, ", ".join(locations), None)


def whole(models: Sequence[Model], title: str, first: Section | None) -> str:
    """Return a page with the sections of models, and `first` before them if it is given."""
    texts = _assets((EARLY,)), _library() + _assets(SCRIPTS)
    scripts = [f'"use strict";\n(() => {{\n{text}}})();\n' for text in texts]
    return rendered(
        "page",
        title=title,
        models=models,
        overview=first,
        style=Markup(_palette() + _assets(STYLES)),
        early_script=Markup(scripts[0]),
        script=Markup(scripts[1]),
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        island=Markup(harmless(_island(models))),
        version=metadata.version("sardonyx"),
    )


def _sections(bundle: RunBundle) -> list[Section]:
    built_in = [section for build in SECTIONS if (section := build(bundle)) is not None]
    return [*built_in, *outside.sections(bundle)]


def _sections_of_model(bundle: RunBundle) -> list[Section]:
    assert bundle.inspection is not None
    rest = (build(bundle) for build in OF_A_MODEL)
    return [model_file.head(bundle, bundle.inspection), *(section for section in rest if section is not None)]


def _island(models: Sequence[Model]) -> dict[str, Any]:
    described = [
        {"label": model.label, "sections": {part.id: part.data for part in model.sections if part.data is not None}}
        for model in models
    ]
    return {"models": described}


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
