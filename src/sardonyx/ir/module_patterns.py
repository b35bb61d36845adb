"""Which module somebody means: a tag, an instance path, or a glob over either.

Every verb that takes a module's name asks here, so that names mean the same everywhere and a wrong one is answered with
the nearest right ones.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from sardonyx.errors import UsageError
from sardonyx.provenance import ROOT, Hierarchy, lineage, module_of

_SHOWN = 5  # names in a hint


def find_modules(hierarchy: Hierarchy, paths: Iterable[str], wanted: str) -> list[str]:
    """The instance paths that `wanted` names, in the order of `paths`, modules above them included.

    A name in full stands before a glob. `*` and `?` stay within one part of a path or tag, `**` crosses parts. A tag
    names the topmost module that has it: those of `torch.nn` below share the tag of the module they belong to, and have
    one of their own that goes down to their class. A module with several names answers to all of them.

    Raises:
        UsageError: where nothing has that name.
    """
    known = _with_ancestors(paths)
    if wanted.strip("/") == ROOT:
        return [ROOT]
    for name in (wanted, *_other_names(hierarchy, wanted)):
        if name in known:
            return [name]
    tags = _tagged(hierarchy, known)
    slashed = "/" + wanted.strip("/")
    if slashed in tags:
        return [tags[slashed]]
    if "/" in wanted:
        found = _matching(slashed, tags, "/")
        chosen = {tags[tag] for tag in found}
    else:
        chosen = set(_matching(wanted, known, "."))
    if not chosen:
        raise UsageError(f"there is no module {wanted!r}", hint=_nearest_names(wanted, [*known, *tags]))
    return [path for path in known if path in chosen]


def find_module(hierarchy: Hierarchy, paths: Iterable[str], wanted: str) -> str:
    """The one instance path that `wanted` names.

    Raises:
        UsageError: where nothing or more than one module has that name.
    """
    found = find_modules(hierarchy, paths, wanted)
    if len(found) > 1:
        shown = ", ".join(found[:_SHOWN]) + (" …" if len(found) > _SHOWN else "")
        raise UsageError(f"{wanted!r} names {len(found)} modules where one is needed", hint=f"one of {shown}")
    return found[0]


def _other_names(hierarchy: Hierarchy, path: str) -> list[str]:
    """All names of the module that goes by this one."""
    first = hierarchy.aliases.get(path, path)
    return [first, *(other for other, name in hierarchy.aliases.items() if name == first)]


def _with_ancestors(paths: Iterable[str]) -> dict[str, None]:
    """All paths and the modules above them, each after those above it."""
    known: dict[str, None] = {ROOT: None}
    for path in map(module_of, paths):
        if path not in known:
            known.update(dict.fromkeys(lineage(path)))
    return known


def _tagged(hierarchy: Hierarchy, known: Iterable[str]) -> dict[str, str]:
    """The topmost path of every tag, then of those that go down to torch's own modules."""
    tops: dict[str, str] = {}
    ordered = sorted(known, key=lambda path: path.count(".") + bool(path))
    for deep in (False, True):
        for path in ordered:
            tops.setdefault(hierarchy.tag(path, torch_nn=deep), path)
    return tops


def _matching(pattern: str, names: Iterable[str], separator: str) -> list[str]:
    expression = re.compile(_expression(pattern, separator))
    return [name for name in names if expression.fullmatch(name)]


def _expression(pattern: str, separator: str) -> str:
    """The glob as a regular expression; `**` and a separator also stand for nothing, so that `**.attn` finds `attn`."""
    mark = re.escape(separator)
    within = f"[^{mark}]"
    meanings = {"**" + separator: f"(?:.*{mark})?", "**": ".*", "*": within + "*", "?": within}
    pieces = re.split(rf"(\*\*{mark}|\*\*|\*|\?)", pattern)
    return "".join(meanings.get(piece) or re.escape(piece) for piece in pieces)


def _nearest_names(wanted: str, names: list[str]) -> str:
    """The names that end the same way, else those spelled alike."""
    tail = wanted.strip("/.")
    near = [name for name in names if tail and name.endswith(("." + tail, "/" + tail))]
    near = near[:_SHOWN] or difflib.get_close_matches(wanted, names, 3, 0.5)
    return f"did you mean {' or '.join(near)}?" if near else "`sardonyx inspect` shows the modules"
