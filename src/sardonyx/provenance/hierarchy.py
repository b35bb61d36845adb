"""The modules of a model: what is known of their classes, and how a path is written as a tag."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from sardonyx.provenance.codec import (
    CALL,
    CLASS_HIERARCHY,
    HIERARCHY_TAGS,
    HOW,
    MODULE_PATH,
    MODULE_PATHS,
    NAME_SCOPES,
    NAMESPACE,
    SOURCE_MODULE,
    Reading,
)
from sardonyx.provenance.paths import ROOT, UNKNOWN, Origins, lineage, lowest_common, module_of, nearest, owner_of
from sardonyx.records.run import How

_UNCALLED = ("torch.nn.modules.container.ModuleList", "torch.nn.modules.container.ModuleDict")


@dataclass(frozen=True, slots=True)
class ModuleTable:
    """All modules of a live model, as the file keeps them: also those that no node tells of."""

    classes: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])  # class -> paths
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])  # another name of a module -> its path
    include_torch_nn: bool = False  # tags go down to torch's own modules

    def to_json(self) -> str:
        """The table as the model's metadata holds it."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | None) -> ModuleTable:
        """A table read back; a malformed one teaches nothing."""
        try:
            return msgspec.json.decode(text or "{}", type=cls)
        except msgspec.MsgspecError:
            return cls()

    @classmethod
    def of(cls, classes: Mapping[str, str], aliases: Mapping[str, str], *, include_torch_nn: bool) -> ModuleTable:
        """The table of a mapping from paths to classes."""
        paths: dict[str, list[str]] = defaultdict(list)
        for path, qualified in classes.items():
            paths[qualified].append(path)
        return cls(paths, dict(aliases), include_torch_nn)


class Hierarchy:
    """All that a model's metadata teaches about its modules."""

    def __init__(self, readings: Iterable[Reading] = (), table: ModuleTable | None = None) -> None:
        """Learn from what was read; the first word about a module stands."""
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
        """Path -> qualified class of every module whose class is known."""
        return self._classes

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other names of a module -> the path it goes by."""
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
        """Path -> class-path tag of every module whose class is known, unique among siblings."""
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
            above = nearest(path, shown)
            tags[path] = tags[above] if above is not None else "/" + path.replace(".", "/")
        return tags

    def tag(self, path: str, origins: Origins = UNKNOWN, *, torch_nn: bool = False) -> str:
        """The primary tag of a module: as given in the file, from its classes, else from its origins or its path.

        With `torch_nn` the classes go down to torch's own modules.
        """
        path = module_of(path)
        if torch_nn and path in self._deep_tags:
            return self._deep_tags[path]
        known = self._tags.get(path) or self._class_tags.get(path)
        if known is not None:
            return known
        tags = [tag for origin in sorted(origins - {path}) if (tag := self._tags.get(module_of(origin)))]
        if tags:
            return "/" + lowest_common(tag.strip("/").replace(".", "\0").replace("/", ".") for tag in tags).replace(
                ".", "/"
            ).replace("\0", ".")
        above = nearest(path, self._class_tags)
        if above is not None and above != ROOT:
            return self._class_tags[above]
        return "/" + path.replace(".", "/")

    def metadata(self, origins: Origins, how: How = How.DIRECT) -> dict[str, str]:
        """The tag entries of a node or constant with these origins."""
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
        """Torch's grouping key, true and short: the owner's chain of modules, then the leaf."""
        chain = self._chain(module_of(owner_of(origins)))
        return "/".join([*(f"{path}: {_short(self._classes[path])}" for path in chain), leaf])

    def torch_metadata(self, origins: Origins, leaf: str, op_type: str) -> dict[str, str]:
        """Torch's own keys, true for a node that several nodes became: the owner's chain of modules and a new leaf."""
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
        """The modules from the root to this one that are called, not only indexed."""
        return [each for each in lineage(path) if self._classes.get(each, _UNCALLED[0]) not in _UNCALLED]


def _short(qualified: str) -> str:
    return qualified.rpartition(".")[2]


def _shortest_keys(paths: Sequence[str]) -> dict[str, str]:
    """For each path the shortest tail that tells it from the others; the same number of parts for all."""
    split = {path: path.split(".") for path in paths}
    for width in range(1, max(map(len, split.values())) + 1):
        keys = {path: ".".join(parts[-width:]) for path, parts in split.items()}
        if len(set(keys.values())) == len(paths):
            return keys
    return {path: path for path in paths}
