"""A part of the page: markup that stands without a script, and the data that its script reads."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jinja2
from markupsafe import Markup

from sardonyx.rendering import words


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page of one model."""

    id: str  # "modules": the name of its template, of its script, of its data, and what links name it by
    title: str
    html: Markup
    data: Any = None  # what JSON can hold; None: the section has no script


@functools.cache
def templates() -> jinja2.Environment:
    """Where markup comes from; everything put into it is escaped, and a name that is missing is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("sardonyx.rendering.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def rendered(template: str, **values: object) -> Markup:
    """A template of the page, filled in; `words` writes numbers and names in it as in all other views."""
    wanted = templates().get_template(f"{template}.html.j2", globals={"words": words})  # what it imports sees them too
    return Markup(wanted.render(values))
