"""Thousands of names that begin alike, small enough for a data island: sorted, each without what the last one shares.

`assets/strings.js` reads them back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any


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
