"""Where a node comes from: module paths, the tag codec, and the merge law.

A node's *origins* are the instance paths of the modules whose work it does (`encoder.layer.0.attention.self`; the
root module is the empty path). Its *owner* is the lowest common module of its origins, so the owner of a merged node
follows from the union alone and merging is associative, commutative and idempotent. A node of unknown origin has the
empty set, which changes nothing it is merged with. This file knows strings only.
"""

from __future__ import annotations

import ast
import functools
import json
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

ROOT = ""

SOURCE_MODULE = "sardonyx.source_module"  # primary tag: class path of the owner
MODULE_PATH = "sardonyx.module_path"  # instance path of the owner
HIERARCHY_TAGS = "sardonyx.hierarchy_tags"  # JSON list of all tags, where several
MODULE_PATHS = "sardonyx.module_paths"  # JSON list of all instance paths, parallel to the tags
NAMESPACE = "namespace"  # torch's key that viewers group by: "path: class/path: class/leaf: op"
NAME_SCOPES = "pkg.torch.onnx.name_scopes"
CLASS_HIERARCHY = "pkg.torch.onnx.class_hierarchy"

_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"  # torch's word for a node it lost the module of
Origins = frozenset[str]
UNKNOWN: Origins = frozenset()


def merge(origins: Iterable[Origins]) -> Origins:
    """The merge law: the union."""
    return UNKNOWN.union(*origins)


def owner_of(origins: Origins) -> str:
    """The lowest common module; the root where nothing is known."""
    if len(origins) == 1:
        return next(iter(origins))
    return lowest_common(origins)


def lowest_common(paths: Iterable[str]) -> str:
    """The longest path that is an ancestor of, or the same as, every given one."""
    split = [path.split(".") if path else [] for path in paths]
    if not split:
        return ROOT
    first, last = min(split), max(split)
    shared = 0
    while shared < min(len(first), len(last)) and first[shared] == last[shared]:
        shared += 1
    return ".".join(first[:shared])


@dataclass(frozen=True, slots=True)
class Reading:
    """What one node's metadata says: its origins, and what it teaches about modules."""

    origins: Origins
    classes: Mapping[str, str] = field(default_factory=dict[str, str])  # path -> qualified class
    tags: Mapping[str, str] = field(default_factory=dict[str, str])  # path -> primary tag


def read_metadata(props: Mapping[str, str]) -> Reading | None:
    """Origins from Sardonyx tags, else from torch's scopes; None where the metadata holds neither."""
    scopes = props.get(NAME_SCOPES)
    classes = _torch_classes(scopes, props[CLASS_HIERARCHY]) if scopes and CLASS_HIERARCHY in props else {}
    if (path := props.get(MODULE_PATH)) is not None:
        tags = {path: props[SOURCE_MODULE]} if SOURCE_MODULE in props else {}
        if MODULE_PATHS not in props:
            return Reading(frozenset({path}), classes, tags)
        paths = _strings(props[MODULE_PATHS])
        listed = dict(zip(paths, _strings(props.get(HIERARCHY_TAGS, "[]")), strict=False))
        return Reading(frozenset(paths), classes, tags | listed)
    if scopes:
        modules = _literal(scopes)[:-1]  # the last entry is the fx node, not a module
        return Reading(UNKNOWN if _NO_MODULE in modules else frozenset(modules[-1:]), classes)
    return None


def read_scoped_name(name: str) -> Origins | None:
    """Origins from a scoped node name (`/encoder/layer.0/attention/self/MatMul`); None where it has no scope.

    A scope that repeats its parent's name (`/layer1/layer1.0/conv1`, as containers are written) extends it.
    """
    if "/" not in name:
        return None
    *scopes, _op = name.strip("/").split("/")
    parts: list[str] = []
    previous = ""
    for scope in scopes:
        if previous and scope.startswith(previous + "."):
            parts.pop()
        parts.append(scope)
        previous = scope
    return frozenset({".".join(parts)})


def _strings(text: str) -> list[str]:
    """The strings of a JSON list; a malformed one teaches nothing."""
    try:
        loaded = json.loads(text)
    except ValueError:
        return []
    return [str(item) for item in loaded] if isinstance(loaded, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  (json)


@functools.lru_cache(maxsize=4096)
def _literal(text: str) -> tuple[str, ...]:
    """The strings of a Python list written with repr, as torch stores them."""
    if "\\" not in text and '"' not in text:  # a hundred times faster than parsing it
        return tuple(text[2:-2].split("', '"))
    try:
        return tuple(str(item) for item in ast.literal_eval(text))
    except (SyntaxError, ValueError, TypeError):
        return ()


def _torch_classes(scopes: str, classes: str) -> dict[str, str]:
    names, kinds = _literal(scopes), _literal(classes)
    if len(names) != len(kinds) or _NO_MODULE in names:
        return {}
    return dict(zip(names[:-1], kinds[:-1], strict=True))


class Hierarchy:
    """All that the nodes of a model teach about its modules, and how a path is written as a tag."""

    def __init__(self, readings: Iterable[Reading] = ()) -> None:
        """Learn from what was read; the first word about a module stands."""
        self._classes: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        for reading in readings:
            for path, qualified in reading.classes.items():
                self._classes.setdefault(path, qualified)
            for path, tag in reading.tags.items():
                self._tags.setdefault(path, tag)

    @functools.cached_property
    def _class_tags(self) -> dict[str, str]:
        """Path -> class-path tag of every module whose class is known, unique among siblings."""
        groups: dict[tuple[str, str], list[str]] = defaultdict(list)
        shown = {path for path, qualified in self._classes.items() if not qualified.startswith("torch.nn.")}
        shown |= {ROOT} & self._classes.keys()
        parents = {path: _nearest(path, shown - {path}) for path in shown}
        for path in shown:
            groups[parents[path] or ROOT, self._classes[path]].append(path)
        steps: dict[str, str] = {}
        for members in groups.values():
            keys = _shortest_keys(members)
            for path in members:
                kind = self._classes[path].rpartition(".")[2]
                steps[path] = f"{kind}.{keys[path]}" if len(members) > 1 else kind
        tags: dict[str, str] = {}
        for path in sorted(shown, key=len):
            parent = parents[path]
            tags[path] = (tags[parent] if parent is not None else "") + "/" + steps[path]
        for path in self._classes.keys() - shown:
            above = _nearest(path, shown)
            tags[path] = tags[above] if above is not None else "/" + path.replace(".", "/")
        return tags

    def tag(self, path: str, origins: Origins = UNKNOWN) -> str:
        """The primary tag of a module: as given in the file, from its classes, else from its origins or its path."""
        known = self._tags.get(path) or self._class_tags.get(path)
        if known is not None:
            return known
        tags = [tag for origin in sorted(origins - {path}) if (tag := self._tags.get(origin))]
        if tags:
            return "/" + lowest_common(tag.strip("/").replace(".", "\0").replace("/", ".") for tag in tags).replace(
                ".", "/"
            ).replace("\0", ".")
        above = _nearest(path, self._class_tags)
        if above is not None and above != ROOT:
            return self._class_tags[above]
        return "/" + path.replace(".", "/")

    def metadata(self, origins: Origins) -> dict[str, str]:
        """The tag entries of a node or constant with these origins."""
        owner = owner_of(origins)
        props = {SOURCE_MODULE: self.tag(owner, origins), MODULE_PATH: owner}
        if len(origins) > 1:
            paths = sorted(origins)
            props[MODULE_PATHS] = json.dumps(paths)
            props[HIERARCHY_TAGS] = json.dumps([self.tag(path) for path in paths])
        return props

    def torch_metadata(self, origins: Origins, leaf: str, op_type: str) -> dict[str, str]:
        """Torch's own keys, true for a node that several nodes became: the owner's chain of modules and a new leaf."""
        parts = owner_of(origins).split(".")
        above = [ROOT, *(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))]
        chain = [path for path in dict.fromkeys(above) if path in self._classes]
        if not chain:
            return {}
        names = [*chain, leaf.replace("/", "_")]
        kinds = [*(self._classes[path] for path in chain), op_type]
        return {
            NAMESPACE: "/".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True)),
            NAME_SCOPES: repr(names),
            CLASS_HIERARCHY: repr(kinds),
        }


def _nearest(path: str, known: Container[str]) -> str | None:
    """The deepest known module at or above a path."""
    while path not in known:
        if path == ROOT:
            return None
        path = path.rpartition(".")[0]
    return path


def _shortest_keys(paths: Sequence[str]) -> dict[str, str]:
    """For each path the shortest tail that tells it from the others; the same number of parts for all."""
    split = {path: path.split(".") for path in paths}
    for width in range(1, max(map(len, split.values())) + 1):
        keys = {path: ".".join(parts[-width:]) for path, parts in split.items()}
        if len(set(keys.values())) == len(paths):
            return keys
    return {path: path for path in paths}
