"""Short lists of names: `past.0.key, past.0.value, past.1.key, …` as `past.{0-29}.{key,value}`.

A decoder has a key and a value for every layer, among its inputs and among its outputs. Names that differ only in
numbers and in their last word are one line if everything else that is shown of them is the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from sardonyx.reporting import formatting

_T = TypeVar("_T")
_FEWEST = 4  # names that form a group
_LONGEST = 100
_NUMBER = re.compile(r"([0-9]{1,9})")
_QUOTED = re.compile(r"'([^']*)'")


class _Name(NamedTuple):
    """A name in pieces: the text around its numbers, the numbers, and the last word if it has no number."""

    text: tuple[str, ...]
    numbers: tuple[str, ...]
    word: str | None

    @classmethod
    def of(cls, name: str) -> _Name:
        stem, dot, last = name.rpartition(".")
        has_word = bool(dot) and not _NUMBER.search(last)
        pieces = _NUMBER.split(stem if has_word else name)
        return cls(tuple(pieces[::2]), tuple(pieces[1::2]), last if has_word else None)


def grouped(
    items: Iterable[_T], name: Callable[[_T], str], alike: Callable[[_T], Hashable]
) -> list[tuple[str, list[_T]]]:
    """Return items under the label of their group, in the order of the first of each; a single item under its name.

    Args:
        items: The items to list.
        name: Returns the name of an item.
        alike: Returns everything else that is shown of it; only items that are equal in it form a group.
    """
    families: dict[Hashable, list[tuple[_Name, int]]] = {}
    listed = list(items)
    for place, item in enumerate(listed):
        parts = _Name.of(name(item))
        families.setdefault((alike(item), parts.text), []).append((parts, place))
    groups = sorted((places, label) for family in families.values() for label, places in _groups(family))
    return [
        (label or formatting.name(name(listed[places[0]])), [listed[place] for place in places])
        for places, label in groups
    ]


def short_names(names: Iterable[str]) -> list[str]:
    """Return names in groups."""
    return [label for label, _ in grouped(names, str, lambda _: None)]


def short_lines(lines: Iterable[str]) -> list[str]:
    """Return sentences that differ only in a quoted name once for each group of names."""

    def quoted(line: str) -> str:
        match = _QUOTED.search(line)
        return match[1] if match else line

    def rest(line: str) -> tuple[str, str]:
        match = _QUOTED.search(line)
        return (line[: match.start()], line[match.end() :]) if match else ("", line)

    return [
        group[0] if len(group) == 1 else f"'{label}'".join(rest(group[0]))
        for label, group in grouped(dict.fromkeys(lines), quoted, rest)
    ]


def _groups(family: Sequence[tuple[_Name, int]]) -> list[tuple[str, list[int]]]:
    """Return the places of a family's members under a label, or each by itself without one."""
    by_word: dict[str | None, set[tuple[str, ...]]] = {}
    for parts, _ in family:
        by_word.setdefault(parts.word, set()).add(parts.numbers)
    endings: dict[frozenset[tuple[str, ...]], list[str | None]] = {}
    for word, numbers in by_word.items():
        endings.setdefault(frozenset(numbers), []).append(word)
    groups: list[tuple[str, list[int]]] = []
    for numbers, last in endings.items():
        places = [place for parts, place in family if parts.word in last]
        label = _label(family[0][0].text, numbers, last) if len(places) >= _FEWEST else None
        groups += [(label, places)] if label else [("", [place]) for place in places]
    return groups


def _label(text: tuple[str, ...], numbers: frozenset[tuple[str, ...]], endings: Sequence[str | None]) -> str | None:
    """Return the name of a group with braces, or None if no number varies, or not independently of the others."""
    columns = [sorted(set(column), key=lambda number: (int(number), number)) for column in zip(*numbers, strict=True)]
    if len(numbers) == 1 or math.prod(map(len, columns)) != len(numbers):
        return None
    pieces = [text[0]]
    for column, after in zip(columns, text[1:], strict=True):
        pieces += [_ranges(column), after]
    words = [ending for ending in endings if ending is not None]
    last = words[0] if len(words) == 1 else f"{{{','.join(words)}}}"
    return formatting.name("".join(pieces) + (f".{last}" if words else ""), _LONGEST)


def _ranges(numbers: Sequence[str]) -> str:
    """Return numbers as ranges in braces: {0-3,7}; a single number as it is."""
    if len(numbers) == 1:
        return numbers[0]
    runs: list[list[str]] = []
    for number in numbers:
        before = runs[-1][-1] if runs else ""
        if before and before == str(int(before)) and number == str(int(before) + 1):
            runs[-1].append(number)
        else:
            runs.append([number])
    return "{" + ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "}"
