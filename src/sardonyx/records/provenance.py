"""Where a node comes from: module paths, the rule for merging them, and the tag format.

The *origins* of a node are the instance paths of the modules whose work it does (`encoder.layer.0.attention.self`; the
root module is the empty path). Its *owner* is the lowest common module of its origins. Merging is the union of origins,
so it is associative, commutative and idempotent, and the owner of a merged node follows from the union alone. A node of
unknown origin has the empty set, which changes nothing it is merged with. This package works on strings only.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct, field

from sardonyx.records.run import How

# Module paths, and the rule for merging sets of them.
#
# A part of a path may name a call of the module: `block@1.linear` is the linear inside the second call of `block`. The
# first call is not marked, so a module that is called once has a plain path.

ROOT = ""
Origins = frozenset[str]
UNKNOWN: Origins = frozenset()

MAX_LISTED_ORIGINS = 256  # origins of a merged node that are listed individually

_MARK = re.compile(r"@\d+(?=\.|$)")


def merge(origins: Iterable[Origins]) -> Origins:
    """Return the merged origins: the union."""
    return UNKNOWN.union(*origins)


def bounded(origins: Origins) -> Origins:
    """Return the origins, or their lowest common module if there are many, so that n merges do not cost O(n²)."""
    return origins if len(origins) <= MAX_LISTED_ORIGINS else frozenset({owner_of(origins)})


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
    common = _common_start(split)
    return ".".join(common + _common_modulo_calls([parts[len(common) :] for parts in split]))


def _common_start(lists: Collection[list[str]]) -> list[str]:
    """Return what all lists begin with."""
    pairs = zip(min(lists), max(lists), strict=False)
    return [one for one, _other in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]


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


SOURCE_MODULE = "sardonyx.source_module"  # primary tag: class path of the owner
MODULE_PATH = "sardonyx.module_path"  # instance path of the owner
CALL = "sardonyx.call"  # the same path with the number of the call, if it is not the first
HIERARCHY_TAGS = "sardonyx.hierarchy_tags"  # JSON list of all tags, if there are several
MODULE_PATHS = "sardonyx.module_paths"  # JSON list of all instance paths, parallel to the tags
HOW = "sardonyx.how"  # how the tag was determined, if no module was seen running the node
TAG_KEYS = (SOURCE_MODULE, MODULE_PATH, CALL, HIERARCHY_TAGS, MODULE_PATHS, HOW)
MODULES = "sardonyx.modules"  # of the model: the table of all its modules

NAMESPACE = "namespace"  # torch's key that viewers group by: "path: class/path: class/leaf: op"
NAME_SCOPES = "pkg.torch.onnx.name_scopes"
CLASS_HIERARCHY = "pkg.torch.onnx.class_hierarchy"

_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"  # torch's marker for a node whose module it lost


class Evidence(StrEnum):
    """What in a file identified the module of a node."""

    TAGS = "tags"  # Sardonyx's own
    ATTRIBUTES = "attributes"  # the same as attributes, if a tool dropped the metadata
    TORCH = "torch metadata"
    SCOPES = "scoped names"


NO_TAGS = "the file names no modules, neither in tags nor in names of nodes"
UNTAGGED = f"{NO_TAGS}; `sardonyx export` writes them"  # how every command reports it


class Reading(Struct, frozen=True):
    """The content of one node's metadata: its origins, how they were determined, and classes and tags of modules."""

    origins: Origins
    classes: Mapping[str, str] = field(default_factory=dict[str, str])  # path -> qualified class
    tags: Mapping[str, str] = field(default_factory=dict[str, str])  # path -> primary tag
    how: How = How.DIRECT
    evidence: Evidence = Evidence.TAGS


def read_metadata(props: Mapping[str, str]) -> Reading | None:
    """Return the origins from Sardonyx tags or else from torch's scopes, or None if the metadata has neither."""
    scopes = props.get(NAME_SCOPES)
    classes = _torch_classes(scopes, props[CLASS_HIERARCHY]) if scopes and CLASS_HIERARCHY in props else {}
    if MODULE_PATH in props:
        return _tagged(props, classes)
    if scopes:
        modules = _literal(scopes)[:-1]  # the last entry is the fx node, not a module
        lost = _NO_MODULE in modules
        return Reading(UNKNOWN if lost else frozenset(modules[-1:]), classes, evidence=Evidence.TORCH)
    return None


def _tagged(props: Mapping[str, str], classes: Mapping[str, str]) -> Reading:
    path = props[MODULE_PATH]
    how = How(props[HOW]) if props.get(HOW) in _HOWS else How.DIRECT
    tags = {path: props[SOURCE_MODULE]} if SOURCE_MODULE in props else {}
    if how is How.ROOT:
        return Reading(UNKNOWN, classes, tags if not path else {}, how)
    if MODULE_PATHS in props:
        paths = strings(props[MODULE_PATHS])
        listed = dict(zip(paths, strings(props.get(HIERARCHY_TAGS, "[]")), strict=False))
        return Reading(frozenset(paths), classes, tags | listed, how)
    return Reading(frozenset({props.get(CALL, path)}), classes, tags, how)


_HOWS = frozenset(How)


def read_scoped_name(name: str) -> Origins | None:
    """Return the origins from a scoped node name (`/encoder/layer.0/attention/self/MatMul`), or None without a scope.

    Torch's exporter starts such names with a slash. Other tools use slashes in other ways, such as ONNX Runtime, which
    names a fused node `MatMul_0/MatMulAddFusion`: this says nothing about modules.

    A scope that repeats its parent's name (`/layer1/layer1.0/conv1`, as containers are written) extends it.
    """
    if not name.startswith("/"):
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


def strings(text: str) -> list[str]:
    """Return the strings of a JSON list; an empty list if it is malformed."""
    try:
        loaded = json.loads(text)
    except ValueError:
        return []
    return [str(item) for item in loaded] if isinstance(loaded, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  (json)


@functools.lru_cache(maxsize=4096)
def _literal(text: str) -> tuple[str, ...]:
    """Return the strings of a Python list in the form of `repr`, as torch stores them."""
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


_NUMBER = re.compile(r"_\d+$")
_MIN_SCOPED_SHARE = 0.5  # share of the names that have a scope


class ScopedNames:
    """The modules that the names of a file tell; none if they tell no module besides the model itself."""

    def __init__(self, names: Collection[str], operators: Collection[str]) -> None:
        """Read the names of all nodes without constants; `operators` are those of ONNX."""
        self._operators, self._names = frozenset(operators), frozenset(names)
        self._root: Sequence[str] | None = None
        slashed = any(name.startswith("/") for name in names)
        if not slashed:
            scoped = [scopes for name in names if (scopes := self._scopes(name))]
            if len(scoped) > _MIN_SCOPED_SHARE * len(names):
                self._root = _common_start(scoped)
        told = {path for name in names for path in self._read(name) or ()}
        self._tells = bool(told - {ROOT})

    def origins(self, name: str) -> Origins | None:
        """Return the module that a name tells, or None."""
        return self._read(name) if self._tells else None

    def _read(self, name: str) -> Origins | None:
        if self._root is None:
            return read_scoped_name(name)
        scopes = self._scopes(name)
        return frozenset({".".join(scopes[len(self._root) :])}) if scopes else None

    def _scopes(self, name: str) -> list[str]:
        """Return the scopes of a name without a leading slash; the first of several names is that of the result."""
        first = name.partition(";")[0]
        scopes = first.split("/")[:-1]
        while scopes and "/".join(scopes) in self._names:  # a node, not a module
            scopes.pop()
        is_fused = len(scopes) == 1 and _NUMBER.sub("", scopes[0]) in self._operators
        return [] if is_fused or not all(scopes) else scopes


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
        return self._deep_tags if self.table.include_torch_nn else self._tags_of("torch.")

    @functools.cached_property
    def _deep_tags(self) -> dict[str, str]:
        return self._tags_of("torch.nn.modules.container.")

    def _tags_of(self, skipped: str) -> dict[str, str]:
        """Return the class-path tag of every module whose class is known, by path; unique among siblings.

        Modules of classes that begin with `skipped` have the tag of the module around them, the model excepted.
        """
        hidden = {path for path, kind in self._classes.items() if kind.startswith(skipped) and path != ROOT}
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
