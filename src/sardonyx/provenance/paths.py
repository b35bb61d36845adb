"""Module paths, and the merge law over sets of them.

A part of a path may say which call of the module is meant: `block@1.linear` is the linear inside the second call of
`block`. The first call is not marked, so that a module that is called once has a plain path.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Iterable

ROOT = ""
Origins = frozenset[str]
UNKNOWN: Origins = frozenset()

MANY = 256  # modules that are told one by one of something that was merged over and over

_MARK = re.compile(r"@\d+(?=\.|$)")


def merge(origins: Iterable[Origins]) -> Origins:
    """The merge law: the union."""
    return UNKNOWN.union(*origins)


def bounded(origins: Origins) -> Origins:
    """The origins, or their lowest common module where they are many: so that merging n times does not cost n * n."""
    return origins if len(origins) <= MANY else frozenset({owner_of(origins)})


@functools.lru_cache(1 << 12)
def owner_of(origins: Origins) -> str:
    """The lowest common module; the root where nothing is known."""
    if len(origins) == 1:
        return next(iter(origins))
    return lowest_common(origins)


def module_of(path: str) -> str:
    """The module itself, whichever call of it the path speaks of."""
    return _MARK.sub("", path) if "@" in path else path


def is_within(path: str, module: str) -> bool:
    """Whether a path is the module or lies below it."""
    return module == ROOT or path == module or path.startswith(module + ".")


def lineage(path: str) -> list[str]:
    """A module and those around it, from the model down."""
    parts = path.split(".") if path else []
    return [".".join(parts[:depth]) for depth in range(len(parts) + 1)]


def lowest_common(paths: Iterable[str]) -> str:
    """The longest path that is an ancestor of, or the same as, every given one; two calls share their module."""
    split = [path.split(".") if path else [] for path in paths]
    if not split:
        return ROOT
    first, last = min(split), max(split)
    shared = 0
    while shared < min(len(first), len(last)) and first[shared] == last[shared]:
        shared += 1
    common = first[:shared]
    return ".".join(common + _same_but_for_the_call([parts[shared:] for parts in split]))


def _same_but_for_the_call(tails: list[list[str]]) -> list[str]:
    """The shared beginning of paths that part ways only in which call they speak of."""
    if not any("@" in parts[0] for parts in tails if parts):
        return []
    common: list[str] = []
    for parts in zip(*tails, strict=False):
        plain = {module_of(part) for part in parts}
        if len(plain) > 1:
            break
        common.append(plain.pop())
    return common


def nearest(path: str, known: Container[str]) -> str | None:
    """The deepest known module at or above a path."""
    while path not in known:
        if path == ROOT:
            return None
        path = path.rpartition(".")[0]
    return path
