"""Rows of tables by module, and similar module names as one."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from sardonyx.records import module_tree
from sardonyx.records.provenance import lineage
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Cell, View

_T = TypeVar("_T")
_MIN_GROUP = 4  # names that form a group
_MAX_NAME = 100
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
        (label or fmt.name(name(listed[places[0]])), [listed[place] for place in places]) for places, label in groups
    ]


def short_names(names: Iterable[str]) -> list[str]:
    """Return names in groups."""
    return [label for label, _ in grouped(names, str, lambda _: None)]


def short_lines(lines: Iterable[str]) -> list[str]:
    """Return sentences that differ only in a quoted name once for each group of names."""
    parts = {line: _QUOTED.split(line, maxsplit=1) for line in lines}
    parts = {line: pieces if len(pieces) > 1 else ["", line, line] for line, pieces in parts.items()}
    groups = grouped(parts, lambda line: parts[line][1], lambda line: (parts[line][0], parts[line][2]))
    return [group[0] if len(group) == 1 else f"'{label}'".join(parts[group[0]][::2]) for label, group in groups]


def _groups(family: Sequence[tuple[_Name, int]]) -> list[tuple[str, list[int]]]:
    """Return the places of a family's members under a label, or each by itself without one."""
    by_word: dict[str | None, set[tuple[str, ...]]] = defaultdict(set)
    for parts, _ in family:
        by_word[parts.word].add(parts.numbers)
    endings: dict[frozenset[tuple[str, ...]], list[str | None]] = defaultdict(list)
    for word, numbers in by_word.items():
        endings[frozenset(numbers)].append(word)
    groups: list[tuple[str, list[int]]] = []
    for numbers, last in endings.items():
        places = [place for parts, place in family if parts.word in last]
        label = _label(family[0][0].text, numbers, last) if len(places) >= _MIN_GROUP else None
        groups += [(label, places)] if label else [("", [place]) for place in places]
    return groups


def _label(text: tuple[str, ...], numbers: frozenset[tuple[str, ...]], endings: Sequence[str | None]) -> str | None:
    """Return the name of a group with braces, or None if no number varies, or not independently of the others."""
    columns = [sorted(set(column), key=lambda number: (int(number), number)) for column in zip(*numbers, strict=True)]
    if len(numbers) == 1 or math.prod(map(len, columns)) != len(numbers):
        return None
    pieces = [text[0]]
    for column, after in zip(columns, text[1:], strict=True):
        ranges = (run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in _runs(column))
        pieces += [column[0] if len(column) == 1 else f"{{{','.join(ranges)}}}", after]
    words = [ending for ending in endings if ending is not None]
    last = words[0] if len(words) == 1 else f"{{{','.join(words)}}}"
    return fmt.name("".join(pieces) + (f".{last}" if words else ""), _MAX_NAME)


def _runs(numbers: Iterable[str]) -> list[list[str]]:
    """Return sorted numbers with consecutive ones together; one with a leading zero is by itself."""
    runs: list[list[str]] = []
    for number in numbers:
        before = runs[-1][-1] if runs else ""
        if before and before == str(int(before)) and number == str(int(before) + 1):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


# Module paths in which consecutive numbers are ranges: twelve layers that were rewritten in the same way are
# `encoder.layer.0…11.attention`, not twelve lines.

MAX_RUNS = 4  # runs of consecutive numbers that are written in full


class Place(Struct, frozen=True):
    """Modules whose paths differ only in numbers."""

    label: str  # raw: may contain anything
    path: str  # the module itself, or the innermost one that contains all of them
    count: int


def places(modules: Mapping[str, int]) -> list[Place]:
    """Return the modules with their counts, largest first."""
    totals, members = Counter[tuple[str | None, ...]](), defaultdict[tuple[str | None, ...], list[list[str]]](list)
    for path, count in modules.items():
        steps = path.split(".")
        form = tuple(None if _is_number(step) else step for step in steps)
        totals[form] += count
        members[form].append(steps)
    result: list[Place] = []
    for form, paths in members.items():
        values = [sorted({path[at] for path in paths}, key=lambda step: (len(step), step)) for at in range(len(form))]
        label = ".".join(each[0] if len(each) == 1 else _numbers(each) for each in values)
        same = next((at for at, each in enumerate(values) if len(each) > 1), len(form))
        result.append(Place(label or fmt.MODEL, ".".join(each[0] for each in values[:same]), totals[form]))
    return sorted(result, key=lambda place: (-place.count, place.label))


def _is_number(step: str) -> bool:
    return step.isascii() and step.isdecimal() and len(step) < 10 and (step == "0" or step[0] != "0")


def _numbers(numbers: Iterable[str]) -> str:
    """Return numbers as 0…11, as 0,2,4 if they are not consecutive, as 0,2,…,22 if there are many."""
    runs = _runs(numbers)
    written = [run[0] if len(run) == 1 else f"{run[0]}{'…' if len(run) > 2 else ','}{run[-1]}" for run in runs]
    return ",".join(written if len(written) <= MAX_RUNS else [*written[: MAX_RUNS - 2], "…", written[-1]])


def where(modules: Mapping[str, int], most: int = 2) -> str:
    """Return the modules with the largest counts, printable, and the number of the others."""
    sorted_places = places(modules)
    shown = ", ".join(fmt.name(place.label, 72) for place in sorted_places[:most])
    rest = len(sorted_places) - most
    return f"{shown} and {fmt.plural(rest, 'other module')}" if rest > 0 else shown


def listed(names: Sequence[str], most: int | None) -> str:
    """Return names in a line, at most `most` of them and the number of the others."""
    rest = 0 if most is None else len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def first_notes(notes: Sequence[str], most: int | None) -> list[str]:
    """Return at most `most` notes on a line each, and a line with the number of the others."""
    rest = 0 if most is None else len(notes) - most
    more = [f"and {fmt.plural(rest, 'more note')} (-v shows them)"] if rest > 0 else []
    return [*map(fmt.one_line, notes[:most]), *more]


MAX_INDENT = 20  # levels that are indented


Modules: TypeAlias = Iterable[tuple[str, str, module_tree.Numbers]]  # path, tag, own numbers


def module_rows(modules: Modules, view: View, top: str = "") -> list[module_tree.ModuleRow]:
    """Return the rows of the tree as `tree_rows` does, or none if the model has no modules."""
    listed = list(modules)
    return tree_rows(listed, view, top) if any(path for path, _tag, _numbers in listed) else []


def tree_rows(modules: Modules, view: View, top: str = "") -> list[module_tree.ModuleRow]:
    """Return the rows of the tree of at least one module; the tag of a branch is the kind of its module.

    If all modules lie at or below `top`, the tree starts there. A view that is neither verbose nor of a given depth
    gets as many levels as fit into its rows, at least one.
    """
    listed = list(modules)
    tags = {path: tag for path, tag, _numbers in listed}
    entries = [module_tree.Entry(path, module_kind(path, tags), numbers) for path, _tag, numbers in listed]
    root = module_tree.build(entries, len(listed[0][2]))
    if top and len(root.children) == 1:
        (root,) = root.children  # containers in between own nothing, so the label of the top includes them
    if view.verbose or view.depth is not None:
        return list(module_tree.rows(root, view.depth))
    depth, shown, deeper = 1, list[module_tree.ModuleRow](), list(module_tree.rows(root, 1))
    while not shown or len(shown) < len(deeper) <= view.rows:
        depth += 1
        shown, deeper = deeper, list(itertools.islice(module_tree.rows(root, depth), view.rows + 1))
    return shown


def module_cell(row: module_tree.ModuleRow) -> Cell:
    """Return a module in the tree: how many equal ones it represents, and an ellipsis if modules below are hidden."""
    copies = f" ×{row.branch.copies}" if row.branch.copies > 1 else ""
    hidden = " …" if row.hidden else ""
    return Cell(f"{fmt.module(row.branch.label, 48)}{copies}{hidden}", min(row.depth, MAX_INDENT))


def module_kind(path: str, tags: dict[str, str]) -> str:
    """Return the last step of a tag without its index, or "" if the tag repeats the path or that of a module above."""
    tag = tags[path]
    above = next((tags[each] for each in lineage(path)[-2::-1] if each in tags), None)
    if tag.strip("/") == path.replace(".", "/") or tag == above:
        return ""
    return tag.rpartition("/")[2].partition(".")[0]
