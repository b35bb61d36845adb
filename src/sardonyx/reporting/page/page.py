"""The whole page: the sections of every model in order, the data island, and what makes the page stand alone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Any

import msgspec
from markupsafe import Markup

from sardonyx.reporting.page import (
    attention,
    drawings,
    headline,
    measurements,
    missed_fusions,
    module_map,
    modules,
    passes,
    rewrites,
    verification,
)
from sardonyx.reporting.page.overview import overview
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots import svg
from sardonyx.reporting.run_bundle import RunBundle

SECTIONS: tuple[Callable[[RunBundle], Section | None], ...] = (  # in the order of the page
    headline.section,
    modules.section,
    drawings.section,
    module_map.section,
    rewrites.section,
    missed_fusions.section,
    attention.section,
    verification.section,
    passes.section,
    measurements.section,
)
SCRIPTS = (
    "core.js",
    "shell.js",
    "manners.js",
    "graph.js",
    "strings.js",
    "drawings.js",
    "module_tree.js",
    "module_detail.js",
    "modules.js",
    "map.js",
    "rewrite_book.js",
    "rewrite_detail.js",
    "rewrites.js",
    "refusals.js",
)  # in the order they are read; one scope for all
STYLES = (
    "style.css",
    "overview.css",
    "compared.css",
    "verdict.css",
    "modules.css",
    "map.css",
    "graph.css",
    "drawings.css",
    "rewrites.css",
    "refusals.css",
    "attention.css",
    "proof.css",
    "passes.css",
    "measured.css",
)
EARLY = "theme.js"  # runs before anything is painted


@dataclass(frozen=True, slots=True)
class _Model:
    """One model of the page, with all that is said of it."""

    label: str
    sections: tuple[Section, ...]

    @property
    def shown(self) -> list[Section]:
        """Those with markup; others only bring data."""
        return [section for section in self.sections if section.html]


def render_page(dossiers: Sequence[RunBundle], *, title: str | None = None, first: Section | None = None) -> str:
    """The page of one model, or of several with a choice among them; `first` comes before all of them."""
    models = [_Model(each.label, tuple(_sections(each))) for each in dossiers]
    scripts = [f'"use strict";\n(() => {{\n{_assets(names)}}})();\n' for names in ((EARLY,), SCRIPTS)]
    return rendered(
        "page",
        title=title or ", ".join(each.label for each in dossiers),
        models=models,
        overview=first or overview(dossiers),
        style=Markup(_palette() + _assets(STYLES)),
        early_script=Markup(scripts[0]),
        script=Markup(scripts[1]),
        hashes=[base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts],
        island=Markup(harmless(_island(models))),
        version=metadata.version("sardonyx"),
    )


def _sections(dossier: RunBundle) -> list[Section]:
    return [made for section in SECTIONS if (made := section(dossier)) is not None]


def _island(models: Sequence[_Model]) -> dict[str, Any]:
    described = [
        {"label": each.label, "sections": {made.id: made.data for made in each.sections if made.data is not None}}
        for each in models
    ]
    return {"models": described}


def _assets(names: Sequence[str]) -> str:
    folder = resources.files("sardonyx.reporting.page") / "assets"
    return "".join((folder / each).read_text("utf-8") for each in names)


def _palette() -> str:
    """The colours of families, the same as in pictures that are files; and how pictures inside the page look."""
    colors = "".join(f"--own{place}: light-dark({light}, {dark}); " for place, (light, dark) in enumerate(svg.COLORS))
    return f":root {{ {colors}}}{svg.PAGE_STYLE}"


def harmless(data: object) -> str:
    """JSON that no parser of HTML sees a tag, a comment or an entity in, and no parser of scripts the end of a line."""
    text = msgspec.json.encode(data).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text
