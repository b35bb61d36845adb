"""One use of an ONNX operator: its inputs by place, its outputs, its attributes as plain numbers and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from sardonyx.costs.program import Value


class Untold(Exception):
    """A size that the costs follow from is not known, or the node is not what its operator asks for."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a rule may look at."""

    reads: Sequence[Value | None]  # None: left out, or not even the number of its axes is known
    writes: Sequence[Value | None]
    attributes: Mapping[str, object]

    def read(self, place: int) -> Value | None:
        """An input that may be left out."""
        return self.reads[place] if place < len(self.reads) else None

    def has(self, *places: int) -> int:
        """How many of these inputs are given."""
        return sum(self.read(place) is not None for place in places)

    def given(self, place: int, rank: int | None = None) -> Value:
        """An input that costs follow from, perhaps of so many axes."""
        return _known(self.read(place), rank)

    @property
    def result(self) -> Value:
        """The first output."""
        return _known(self.writes[0] if self.writes else None, None)

    def number(self, name: str, default: int = 0) -> int:
        """An attribute that is an integer."""
        found = self.attributes.get(name, default)
        if not isinstance(found, int):
            raise Untold(name)
        return found

    def numbers(self, name: str) -> Sequence[int] | None:
        """An attribute of several integers."""
        found = self.attributes.get(name)
        return None if found is None else tuple(cast("Sequence[int]", found))

    def text(self, name: str, default: str = "") -> str:
        """An attribute that is a text."""
        return str(self.attributes.get(name, default))


def _known(value: Value | None, rank: int | None) -> Value:
    if value is None or (rank is not None and len(value.shape) != rank):
        raise Untold
    return value
