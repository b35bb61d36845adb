"""Where a node comes from: module paths, the rule for merging them, and the tag format.

The *origins* of a node are the instance paths of the modules whose work it does (`encoder.layer.0.attention.self`; the
root module is the empty path). Its *owner* is the lowest common module of its origins. Merging is the union of origins,
so it is associative, commutative and idempotent, and the owner of a merged node follows from the union alone. A node of
unknown origin has the empty set, which changes nothing it is merged with. This package works on strings only.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct, field

from sardonyx.provenance.codec import (
    CALL,
    CLASS_HIERARCHY,
    HIERARCHY_TAGS,
    HOW,
    MODULE_PATH,
    MODULE_PATHS,
    MODULES,
    NAME_SCOPES,
    NAMESPACE,
    NO_TAGS,
    ROOT,
    SOURCE_MODULE,
    TAG_KEYS,
    UNKNOWN,
    UNTAGGED,
    Evidence,
    Origins,
    Reading,
    bounded,
    is_within,
    lineage,
    lowest_common,
    merge,
    module_of,
    nearest,
    owner_of,
    read_metadata,
    read_scoped_name,
)
from sardonyx.provenance.scoped_names import ScopedNames
from sardonyx.records.run import How

# The modules of a model: their classes, and the tags that are written for their paths.

_UNCALLED = ("torch.nn.modules.container.ModuleList", "torch.nn.modules.container.ModuleDict")


class ModuleTable(Struct, frozen=True):
    """All modules of a live model as the file stores them, including those that no node belongs to."""

    classes: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])  # class -> paths
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])  # other name of a module -> its path
    include_torch_nn: bool = False  # whether tags include modules of torch.nn

    def to_json(self) -> str:
        """Return the table as it is stored in the metadata of the model."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | None) -> ModuleTable:
        """Return a table that was stored; an empty one if it is malformed."""
        try:
            return msgspec.json.decode(text or "{}", type=cls)
        except msgspec.MsgspecError:
            return cls()

    @classmethod
    def of(cls, classes: Mapping[str, str], aliases: Mapping[str, str], *, include_torch_nn: bool) -> ModuleTable:
        """Return the table for a mapping from paths to classes."""
        paths: dict[str, list[str]] = defaultdict(list)
        for path, qualified in classes.items():
            paths[qualified].append(path)
        return cls(paths, dict(aliases), include_torch_nn)


class Hierarchy:
    """Everything that the metadata of a model says about its modules."""

    def __init__(self, readings: Iterable[Reading] = (), table: ModuleTable | None = None) -> None:
        """Collect classes and tags; the first statement about a module takes precedence."""
        self.table = table or ModuleTable()
        self._classes = {path: kind for kind, paths in self.table.classes.items() for path in paths}
        self._tags: dict[str, str] = {}
        for reading in readings:
            for path, qualified in reading.classes.items():
                self._classes.setdefault(path, qualified)
            for path, tag in reading.tags.items():
                self._tags.setdefault(module_of(path), tag)

    @property
    def classes(self) -> Mapping[str, str]:
        """Return the qualified class of every module whose class is known, by path."""
        return self._classes

    @property
    def aliases(self) -> Mapping[str, str]:
        """Return the path of a module for each of its other names."""
        return self.table.aliases

    @functools.cached_property
    def _class_tags(self) -> dict[str, str]:
        return self._tags_of(self._hidden if not self.table.include_torch_nn else self._containers)

    @functools.cached_property
    def _deep_tags(self) -> dict[str, str]:
        return self._tags_of(self._containers)

    @property
    def _hidden(self) -> set[str]:
        return {path for path, kind in self._classes.items() if kind.startswith("torch.") and path != ROOT}

    @property
    def _containers(self) -> set[str]:
        container = "torch.nn.modules.container."
        return {path for path, kind in self._classes.items() if kind.startswith(container) and path != ROOT}

    def _tags_of(self, hidden: set[str]) -> dict[str, str]:
        """Return the class-path tag of every module whose class is known, by path; unique among siblings."""
        groups: dict[tuple[str | None, str], list[str]] = defaultdict(list)
        shown = self._classes.keys() - hidden
        parents = {path: nearest(path.rpartition(".")[0], shown) if path != ROOT else None for path in shown}
        for path in shown:
            groups[parents[path], _short(self._classes[path])].append(path)
        steps: dict[str, str] = {}
        for (_, kind), members in groups.items():
            keys = _shortest_keys(members)
            for path in members:
                steps[path] = f"{kind}.{keys[path]}" if len(members) > 1 else kind
        tags: dict[str, str] = {}
        for path in sorted(shown, key=len):
            parent = parents[path]
            tags[path] = (tags[parent] if parent is not None else "") + "/" + steps[path]
        for path in hidden:
            ancestor = nearest(path, shown)
            tags[path] = tags[ancestor] if ancestor is not None else "/" + path.replace(".", "/")
        return tags

    def tag(self, path: str, origins: Origins = UNKNOWN, *, torch_nn: bool = False) -> str:
        """Return the primary tag of a module: the one in the file, or else from its classes, its origins or its path.

        With `torch_nn` the tag includes modules of torch.nn.
        """
        path = module_of(path)
        if torch_nn and path in self._deep_tags:
            return self._deep_tags[path]
        stored = self._tags.get(path) or self._class_tags.get(path)
        if stored is not None:
            return stored
        tags = [tag for origin in sorted(origins - {path}) if (tag := self._tags.get(module_of(origin)))]
        if tags:
            return "/" + lowest_common(tag.strip("/").replace(".", "\0").replace("/", ".") for tag in tags).replace(
                ".", "/"
            ).replace("\0", ".")
        ancestor = nearest(path, self._class_tags)
        if ancestor is not None and ancestor != ROOT:
            return self._class_tags[ancestor]
        return "/" + path.replace(".", "/")

    def metadata(self, origins: Origins, how: How = How.DIRECT) -> dict[str, str]:
        """Return the tag entries of a node or constant with these origins."""
        owner = owner_of(origins)
        props = {SOURCE_MODULE: self.tag(owner, origins), MODULE_PATH: module_of(owner)}
        if props[MODULE_PATH] != owner:
            props[CALL] = owner
        if len(origins) > 1:
            paths = sorted(origins)
            props[MODULE_PATHS] = json.dumps(paths)
            props[HIERARCHY_TAGS] = json.dumps([self.tag(path) for path in paths])
        if how is not How.DIRECT:
            props[HOW] = how.value
        return props

    def namespace(self, origins: Origins, leaf: str) -> str:
        """Return torch's grouping key in short form: the owner's chain of modules, then the leaf."""
        chain = self._chain(module_of(owner_of(origins)))
        return "/".join([*(f"{path}: {_short(self._classes[path])}" for path in chain), leaf])

    def torch_metadata(self, origins: Origins, leaf: str, op_type: str) -> dict[str, str]:
        """Return torch's own keys for a node that replaces several: the owner's chain of modules and a new leaf."""
        chain = self._chain(module_of(owner_of(origins)))
        if not chain:
            return {}
        names = [*chain, leaf.replace("/", "_")]
        kinds = [*(self._classes[path] for path in chain), op_type]
        return {
            NAMESPACE: "/".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True)),
            NAME_SCOPES: repr(names),
            CLASS_HIERARCHY: repr(kinds),
        }

    def _chain(self, path: str) -> list[str]:
        """Return the modules from the root to this one, without containers that are only indexed."""
        return [step for step in lineage(path) if self._classes.get(step, _UNCALLED[0]) not in _UNCALLED]


def _short(qualified: str) -> str:
    return qualified.rpartition(".")[2]


def _shortest_keys(paths: Sequence[str]) -> dict[str, str]:
    """Return for each path the shortest suffix that distinguishes it from the others, of equal length for all."""
    split = {path: path.split(".") for path in paths}
    for width in range(1, max(map(len, split.values())) + 1):
        keys = {path: ".".join(parts[-width:]) for path, parts in split.items()}
        if len(set(keys.values())) == len(paths):
            return keys
    return {path: path for path in paths}


__all__ = [
    "CALL",
    "CLASS_HIERARCHY",
    "HIERARCHY_TAGS",
    "HOW",
    "MODULES",
    "MODULE_PATH",
    "MODULE_PATHS",
    "NAMESPACE",
    "NAME_SCOPES",
    "NO_TAGS",
    "ROOT",
    "SOURCE_MODULE",
    "TAG_KEYS",
    "UNKNOWN",
    "UNTAGGED",
    "Evidence",
    "Hierarchy",
    "ModuleTable",
    "Origins",
    "Reading",
    "ScopedNames",
    "bounded",
    "is_within",
    "lineage",
    "lowest_common",
    "merge",
    "module_of",
    "nearest",
    "owner_of",
    "read_metadata",
    "read_scoped_name",
]
