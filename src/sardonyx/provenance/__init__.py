"""Where a node comes from: module paths, the rule for merging them, and the tag format.

The *origins* of a node are the instance paths of the modules whose work it does (`encoder.layer.0.attention.self`; the
root module is the empty path). Its *owner* is the lowest common module of its origins. Merging is the union of origins,
so it is associative, commutative and idempotent, and the owner of a merged node follows from the union alone. A node of
unknown origin has the empty set, which changes nothing it is merged with. This package works on strings only.
"""

from __future__ import annotations

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
    SOURCE_MODULE,
    TAG_KEYS,
    UNTAGGED,
    Evidence,
    Reading,
    read_metadata,
    read_scoped_name,
)
from sardonyx.provenance.hierarchy import Hierarchy, ModuleTable
from sardonyx.provenance.paths import (
    ROOT,
    UNKNOWN,
    Origins,
    bounded,
    is_within,
    lineage,
    lowest_common,
    merge,
    module_of,
    nearest,
    owner_of,
)
from sardonyx.provenance.scoped_names import ScopedNames

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
