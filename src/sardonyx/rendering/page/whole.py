"""The whole page: the sections of every model in order, the data island, and what makes the page stand alone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from importlib import resources

import msgspec
from markupsafe import Markup

from sardonyx.rendering.dossier import Dossier
from sardonyx.rendering.page.section import Section, rendered

SECTIONS: tuple[Callable[[Dossier], Section | None], ...] = ()  # in the order of the page
SCRIPTS = ("core.js",)  # in the order they are read; one scope for all
STYLES = ("style.css",)


def render_page(dossiers: Sequence[Dossier], *, title: str | None = None) -> str:
    """The page of one model, or of several with a choice among them."""
    models = [(each, [made for section in SECTIONS if (made := section(each)) is not None]) for each in dossiers]
    island = {
        "models": [
            {"label": each.label, "sections": {made.id: made.data for made in sections if made.data is not None}}
            for each, sections in models
        ]
    }
    script = f'"use strict";\n(() => {{\n{_assets(SCRIPTS)}\n}})();\n'
    return rendered(
        "page",
        title=title or ", ".join(each.label for each in dossiers),
        models=models,
        style=Markup(_assets(STYLES)),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        island=Markup(_harmless(island)),
    )


def _assets(names: Sequence[str]) -> str:
    folder = resources.files("sardonyx.rendering.page") / "assets"
    return "\n".join((folder / each).read_text("utf-8") for each in names)


def _harmless(data: object) -> str:
    """JSON that no parser of HTML sees a tag, a comment or an entity in."""
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
