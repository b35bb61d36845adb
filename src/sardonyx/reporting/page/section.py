"""A part of the page: markup that works without a script, and the data that its script reads."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import jinja2
from markupsafe import Markup
from msgspec import Struct

from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.writers.html import prose


class Section(Struct, frozen=True):
    """One part of the page of one model."""

    id: str  # "modules": the name of its template, its script, its data, and its links
    title: str
    html: Markup
    data: Any = None  # JSON data for the script; None if the section has none


@functools.cache
def templates() -> jinja2.Environment:
    """Return the template environment, which escapes every value and raises an error for a missing name."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("sardonyx.reporting.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def rendered(template: str, **values: object) -> Markup:
    """Return a template of the page, filled in; in it, `words` writes numbers and names as in all other views."""
    words = {"words": fmt, "prose": prose}  # globals, so that imported templates see them too
    return Markup(templates().get_template(f"{template}.html.j2", globals=words).render(values))


# A compact table of names for the data island: sorted, each without the prefix that it shares with the one before.
#
# `assets/strings.js` reads them back.


class Strings:
    """A table of distinct texts; `at` maps each to its index."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Build the table of the given texts, duplicates once."""
        self.texts = sorted(set(texts))
        self.at = {text: place for place, text in enumerate(self.texts)}

    def data(self) -> dict[str, Any]:
        """Return the length of the prefix that each text shares with the one before, and the rest of it."""
        shared = [_shared(left, right) for left, right in zip(["", *self.texts], self.texts, strict=False)]
        return {"shared": shared, "rest": [text[keep:] for text, keep in zip(self.texts, shared, strict=True)]}


def _shared(left: str, right: str) -> int:
    """Return the length of the common prefix, 0 if it is not ASCII: JavaScript counts UTF-16 units."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    common = "".join(one for one, _other in pairs)
    return len(common) if common.isascii() else 0
