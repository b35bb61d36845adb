"""Module paths, and the rule for merging sets of them.

A part of a path may name a call of the module: `block@1.linear` is the linear inside the second call of `block`. The
first call is not marked, so a module that is called once has a plain path.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Iterable

ROOT = ""
Origins = frozenset[str]
UNKNOWN: Origins = frozenset()

MANY = 256  # origins of a merged node that are listed individually

_MARK = re.compile(r"@\d+(?=\.|$)")


def merge(origins: Iterable[Origins]) -> Origins:
    """Return the merged origins: the union."""
    return UNKNOWN.union(*origins)


def bounded(origins: Origins) -> Origins:
    """Return the origins, or their lowest common module if there are many, so that n merges do not cost O(n²)."""
    return origins if len(origins) <= MANY else frozenset({owner_of(origins)})


@functools.lru_cache(1 << 12)
def owner_of(origins: Origins) -> str:
    """Return the lowest common module; the root if nothing is known."""
    if len(origins) == 1:
        return next(iter(origins))
    return lowest_common(origins)


def module_of(path: str) -> str:
    """Return the module without the marks of its calls."""
    return _MARK.sub("", path) if "@" in path else path


def is_within(path: str, module: str) -> bool:
    """Return whether a path is the module or below it."""
    return module == ROOT or path == module or path.startswith(module + ".")


def lineage(path: str) -> list[str]:
    """Return a module and those that contain it, from the root down."""
    parts = path.split(".") if path else []
    return [".".join(parts[:depth]) for depth in range(len(parts) + 1)]


def lowest_common(paths: Iterable[str]) -> str:
    """Return the longest path that is an ancestor of, or equal to, every given one.

    Parts that differ only in the call count as the module without a mark: a@1.b and a@2.b have a.b in common.
    """
    split = [path.split(".") if path else [] for path in paths]
    if not split:
        return ROOT
    first, last = min(split), max(split)
    shared = 0
    while shared < min(len(first), len(last)) and first[shared] == last[shared]:
        shared += 1
    common = first[:shared]
    return ".".join(common + _common_modulo_calls([parts[shared:] for parts in split]))


def _common_modulo_calls(tails: list[list[str]]) -> list[str]:
    """Return the common beginning of paths that differ only in the calls they name."""
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
    """Return the deepest known module at or above a path, or None."""
    while path not in known:
        if path == ROOT:
            return None
        path = path.rpartition(".")[0]
    return path
