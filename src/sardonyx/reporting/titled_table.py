"""A table with its title, written once and shown as Markdown or on a page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """What some rows of words have to say."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    words: int = 1  # how many columns from the left are words; the others are numbers
    about: str = ""  # a sentence above them
    more: str = ""  # a sentence below them: what is not shown

    @property
    def right(self) -> tuple[bool, ...]:
        """Which columns stand on the right."""
        return tuple(place >= self.words for place in range(len(self.heads)))
