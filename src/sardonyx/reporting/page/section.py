"""A part of the page: markup that stands without a script, and the data that its script reads."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jinja2
from markupsafe import Markup

from sardonyx.reporting import formatting


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
        loader=jinja2.PackageLoader("sardonyx.reporting.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def rendered(template: str, **values: object) -> Markup:
    """A template of the page, filled in; `words` writes numbers and names in it as in all other views."""
    wanted = templates().get_template(
        f"{template}.html.j2", globals={"words": formatting}
    )  # what it imports sees them too
    return Markup(wanted.render(values))


# Thousands of names that begin alike, small enough for a data island: sorted, each without what the last one shares.
#
# `assets/strings.js` reads them back.


class Strings:
    """A table of distinct texts; `at` says where each stands in it."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Of all these, doubles once."""
        self.texts = sorted(set(texts))
        self.at = {text: place for place, text in enumerate(self.texts)}

    def data(self) -> dict[str, Any]:
        """How many characters each text takes over from the one before, and what follows them."""
        shared = [_shared(left, right) for left, right in zip(["", *self.texts], self.texts, strict=False)]
        return {"shared": shared, "rest": [text[keep:] for text, keep in zip(self.texts, shared, strict=True)]}


def _shared(left: str, right: str) -> int:
    """The length of a common beginning; none where a script might count its characters otherwise."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    common = "".join(one for one, _other in pairs)
    return len(common) if common.isascii() else 0
