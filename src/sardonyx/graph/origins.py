"""Puts provenance on a graph's nodes when it is read, and back into the file's metadata when it is written.

In between it lives in `meta`, which the file does not see, so that only one place decides what a tag looks like.
"""

from __future__ import annotations

from collections import UserDict
from typing import cast

import onnx_ir as ir

from sardonyx import provenance as p
from sardonyx.graph.scopes import label, scopes

_ORIGINS = "sardonyx.origins"
_MERGED = "sardonyx.merged"


def origins(thing: ir.Node | ir.Value) -> p.Origins:
    """The modules a node or constant comes from; empty where unknown."""
    store = cast("UserDict[str, p.Origins]", thing.meta)
    return store.data.get(_ORIGINS, p.UNKNOWN)  # the plain dict inside: this is asked all the time


def owner(thing: ir.Node | ir.Value) -> str:
    """The lowest common module of a node's or constant's origins."""
    return p.owner_of(origins(thing))


def give(thing: ir.Node | ir.Value, inherited: p.Origins) -> None:
    """Add origins to what a node or constant has already."""
    thing.meta[_ORIGINS] = origins(thing) | inherited
    thing.meta[_MERGED] = True


def copy(source: ir.Node, target: ir.Node) -> None:
    """A node that took another's place is where it was."""
    target.meta[_ORIGINS] = origins(source)
    if _MERGED in source.meta:
        target.meta[_MERGED] = True


def attach(model: ir.Model) -> p.Hierarchy:
    """Read every node's origins: from tags, torch's metadata, scoped names; a file with none gets its node names."""
    readings: list[p.Reading] = []
    nameless: list[ir.Node] = []
    for scope in scopes(model):
        inherited = origins(scope.holder) if scope.holder is not None else p.UNKNOWN
        for node in scope.graph:
            reading = p.read_metadata(node.metadata_props)
            found = reading.origins if reading else p.read_scoped_name(node.name or "") or inherited
            if reading:
                readings.append(reading)
            if not found:
                nameless.append(node)
            node.meta[_ORIGINS] = found
        for value in scope.graph.initializers.values():
            if (reading := p.read_metadata(value.metadata_props)) is not None:
                value.meta[_ORIGINS] = reading.origins
                readings.append(reading)
    if not any(origins(node) for scope in scopes(model) for node in scope.graph):
        for node in nameless:
            node.meta[_ORIGINS] = frozenset({label(node).replace(".", "_")})
    return p.Hierarchy(readings)


def write(model: ir.Model, hierarchy: p.Hierarchy) -> None:
    """Write every node's tags, and those of the constants that passes made, into their metadata."""
    for scope in scopes(model):
        for node in scope.graph:
            own = origins(node)
            if _MERGED in node.meta and p.NAMESPACE in node.metadata_props:
                node.metadata_props.update(hierarchy.torch_metadata(own, label(node), node.op_type))
            _replace_tags(node.metadata_props, hierarchy.metadata(own))
        for value in scope.graph.initializers.values():
            if _MERGED in value.meta:
                _replace_tags(value.metadata_props, hierarchy.metadata(origins(value)))


def _replace_tags(props: dict[str, str], tags: dict[str, str]) -> None:
    for key in (p.SOURCE_MODULE, p.MODULE_PATH, p.MODULE_PATHS, p.HIERARCHY_TAGS):
        props.pop(key, None)
    props.update(tags)
