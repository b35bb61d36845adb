"""Find the modules that a user names by tag, instance path, or a glob over either.

Every verb that takes the name of a module uses this, so that names have the same meaning everywhere and an unknown name
is answered with the closest existing ones.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from sardonyx.errors import UsageError
from sardonyx.provenance import ROOT, UNTAGGED, Hierarchy, lineage, module_of

_SHOWN = 5  # names in a hint


def find_modules(hierarchy: Hierarchy, paths: Iterable[str], wanted: str) -> list[str]:
    """Return the instance paths that `wanted` names, among `paths` and the modules that contain them.

    An exact name takes precedence over a glob. `*` and `?` match within one part of a path or tag, `**` also across
    parts. A tag names the topmost module that has it: modules of `torch.nn` below it share its tag, and also have a
    longer one that ends with their own class. A module with several names can be found by each of them.

    Raises:
        UsageError: if there is no such module.
    """
    all_paths = _with_ancestors(paths)
    if wanted.strip("/") == ROOT:
        return [ROOT]
    for name in (wanted, *_other_names(hierarchy, wanted)):
        if name in all_paths:
            return [name]
    tags = _tagged(hierarchy, all_paths)
    tag_name = "/" + wanted.strip("/")
    if tag_name in tags:
        return [tags[tag_name]]
    if "/" in wanted:
        matching_tags = _matching(tag_name, tags, "/")
        matches = {tags[tag] for tag in matching_tags}
    else:
        matches = set(_matching(wanted, all_paths, "."))
    if not matches:
        untagged = all_paths.keys() == {ROOT} and not hierarchy.classes
        hint = UNTAGGED if untagged else _deeper(wanted, all_paths, tags) or _nearest_names(wanted, [*all_paths, *tags])
        raise UsageError(f"there is no module {wanted!r}", hint=hint)
    return [path for path in all_paths if path in matches]


def matching_modules(hierarchy: Hierarchy, paths: Iterable[str], pattern: str) -> list[str]:
    """Return the instance paths of a class of this name, or otherwise those that `find_modules` returns.

    Raises:
        UsageError: if there is no such module.
    """
    by_class = [
        path for path in _with_ancestors(paths) if hierarchy.classes.get(path, "").rpartition(".")[2] == pattern
    ]
    return sorted(by_class) or find_modules(hierarchy, paths, pattern)


def find_module(hierarchy: Hierarchy, paths: Iterable[str], wanted: str) -> str:
    """Return the one instance path that `wanted` names.

    Raises:
        UsageError: if no module or more than one has that name.
    """
    matches = find_modules(hierarchy, paths, wanted)
    if len(matches) > 1:
        shown = ", ".join(matches[:_SHOWN]) + (" …" if len(matches) > _SHOWN else "")
        raise UsageError(f"{wanted!r} names {len(matches)} modules where one is needed", hint=f"one of {shown}")
    return matches[0]


def _other_names(hierarchy: Hierarchy, path: str) -> list[str]:
    """Return all names of the module with this name."""
    first = hierarchy.aliases.get(path, path)
    return [first, *(other for other, name in hierarchy.aliases.items() if name == first)]


def _with_ancestors(paths: Iterable[str]) -> dict[str, None]:
    """Return all paths and the modules that contain them, each after its ancestors."""
    all_paths: dict[str, None] = {ROOT: None}
    for path in map(module_of, paths):
        if path not in all_paths:
            all_paths.update(dict.fromkeys(lineage(path)))
    return all_paths


def _tagged(hierarchy: Hierarchy, paths: Iterable[str]) -> dict[str, str]:
    """Return the topmost path for every tag, first the usual tags, then those that include modules of torch.nn."""
    tops: dict[str, str] = {}
    ordered = sorted(paths, key=lambda path: path.count(".") + bool(path))
    for torch_nn in (False, True):
        for path in ordered:
            tops.setdefault(hierarchy.tag(path, torch_nn=torch_nn), path)
    return tops


def _matching(pattern: str, names: Iterable[str], separator: str) -> list[str]:
    expression = re.compile(_expression(pattern, separator))
    return [name for name in names if expression.fullmatch(name)]


def _expression(pattern: str, separator: str) -> str:
    """Return the glob as a regular expression; `**.` also matches nothing, so that `**.attn` finds `attn`."""
    escaped = re.escape(separator)
    within = f"[^{escaped}]"
    translations = {"**" + separator: f"(?:.*{escaped})?", "**": ".*", "*": within + "*", "?": within}
    pieces = re.split(rf"(\*\*{escaped}|\*\*|\*|\?)", pattern)
    return "".join(translations.get(piece) or re.escape(piece) for piece in pieces)


def _deeper(wanted: str, paths: Iterable[str], tags: Iterable[str]) -> str | None:
    """Return a hint for a glob that would match modules at another depth, or None."""
    separator, names, root = ("/", tags, "/") if "/" in wanted else (".", paths, "")
    if "*" not in wanted:
        return None
    deeper = f"{root}**{separator}" + re.sub(r"^(\*+[./])+", "", wanted.strip("/"))
    found = _matching(deeper, names, separator)
    if not found:
        return None
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"* matches one part of a name, ** any number of them: {deeper!r} names {found[0]}{more}"


def _nearest_names(wanted: str, names: list[str]) -> str:
    """Return a hint with the names that end the same way, otherwise those that are spelled similarly."""
    tail = wanted.strip("/.")
    near = [name for name in names if tail and name.endswith(("." + tail, "/" + tail))]
    near = near[:_SHOWN] or difflib.get_close_matches(wanted, names, 3, 0.5)
    return f"did you mean {' or '.join(near)}?" if near else "`sardonyx inspect` shows the modules"
