"""Read where a node comes from: Sardonyx tags, torch's own metadata, scoped node names."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Container, Iterable, Mapping
from enum import StrEnum

from msgspec import Struct, field

from sardonyx.records.run import How

# Module paths, and the rule for merging sets of them.
#
# A part of a path may name a call of the module: `block@1.linear` is the linear inside the second call of `block`. The
# first call is not marked, so a module that is called once has a plain path.

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
