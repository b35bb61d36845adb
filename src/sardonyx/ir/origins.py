"""Attach provenance to the nodes of a graph when it is read, and write it to the metadata when it is saved.

In memory it is kept in `meta`, which is not serialized, so that the format of tags is defined in one place.
"""

from __future__ import annotations

import functools
from collections import UserDict
from collections.abc import Iterable
from typing import cast

import onnx
import onnx_ir as ir

from sardonyx import provenance as p
from sardonyx.ir import attribute_tags
from sardonyx.ir.scopes import is_constant, label, scopes
from sardonyx.records.run import How

_ORIGINS = "sardonyx.origins"
_MERGED = "sardonyx.merged"
_HOW = "sardonyx.how"
_EVIDENCE = "sardonyx.evidence"


def origins(thing: ir.Node | ir.Value) -> p.Origins:
    """Return the modules that a node or constant comes from; empty if unknown."""
    store = cast("UserDict[str, p.Origins]", thing.meta)
    return store.data.get(_ORIGINS, p.UNKNOWN)  # the underlying dict is faster, and this is called very often


def owner(thing: ir.Node | ir.Value) -> str:
    """Return the lowest common module of the origins of a node or constant."""
    return p.owner_of(origins(thing))


def how(node: ir.Node) -> How:
    """Return how the module of a node was determined."""
    store = cast("UserDict[str, How]", node.meta)
    return store.data.get(_HOW, How.DIRECT)


def evidence(node: ir.Node) -> p.Evidence | None:
    """Return what identified the module of a node when it was read, or None if nothing about the node itself did."""
    store = cast("UserDict[str, p.Evidence]", node.meta)
    return store.data.get(_EVIDENCE)


def reason(node: ir.Node) -> str:
    """Return why a node belongs to the model itself and not to one of its modules."""
    if how(node) is How.DIRECT:
        return "the model's own forward ran it"
    users = sorted({p.module_of(owner(user)) for output in node.outputs for user in output.consumers()})
    if not users:
        return "no module ran it, and nothing says where it belongs"
    shown = ", ".join(name or "the model itself" for name in users[:3]) + (", …" if len(users) > 3 else "")
    return f"no module ran it, and its consumers have nothing else in common: {shown}"


def set_origins(node: ir.Node, paths: p.Origins, how: How = How.DIRECT) -> None:
    """Set the origins of a node and how they were determined."""
    node.meta[_ORIGINS] = paths
    node.meta[_HOW] = how


def add_origins(thing: ir.Node | ir.Value, inherited: p.Origins, sources: Iterable[ir.Node] = ()) -> None:
    """Add origins to those that a node or constant has. `how` becomes the most certain one of the sources."""
    thing.meta[_ORIGINS] = p.bounded(origins(thing) | inherited)
    thing.meta[_MERGED] = True
    hows: set[How] = set()
    for node in sources:
        hows.add(how(node))
        if attribute_tags.has_attribute_tags(node) and isinstance(thing, ir.Node):
            attribute_tags.request(thing)
    if hows:
        thing.meta[_HOW] = next(kind for kind in How if kind in hows)  # the most certain of them


def copy_origins(source: ir.Node, target: ir.Node) -> None:
    """Copy the origins of a node to the one that replaces it."""
    add_origins(target, origins(source), (source,))
    if _MERGED not in source.meta:
        del target.meta[_MERGED]


def attach(model: ir.Model) -> p.Hierarchy:
    """Read the origins of all nodes from tags, metadata or scoped names of any exporter; others inherit.

    If no node has such information, there are no modules: every node belongs to the model itself.
    """
    readings: list[p.Reading] = []
    names = _scoped_names(model)
    for scope in scopes(model):
        inherited = origins(scope.holder) if scope.holder is not None else p.UNKNOWN
        for node in scope.graph:
            from_attributes = attribute_tags.read_attributes(node)
            reading = p.read_metadata(node.metadata_props) or _from_name(node, names)
            if reading is None:
                set_origins(node, inherited, How.INHERITED if inherited else How.ROOT)
                continue
            readings.append(reading)
            if reading.origins:
                node.meta[_EVIDENCE] = p.Evidence.ATTRIBUTES if from_attributes else reading.evidence
            set_origins(node, reading.origins, reading.how if reading.origins else How.ROOT)
        for value in scope.graph.initializers.values():
            if (reading := p.read_metadata(value.metadata_props)) is not None:
                value.meta[_ORIGINS] = reading.origins
                readings.append(reading)
    inherit(model)
    return p.Hierarchy(readings, p.ModuleTable.from_json(model.metadata_props.get(p.MODULES)))


def _scoped_names(model: ir.Model) -> p.ScopedNames:
    """Return what the names of the nodes without metadata tell."""
    nodes = [node for scope in scopes(model) for node in scope.graph if not is_constant(node)]
    unread = [
        node
        for node in nodes
        if p.MODULE_PATH not in node.metadata_props and not node.metadata_props.get(p.NAME_SCOPES)
    ]
    return p.ScopedNames([node.name or "" for node in unread], _operators())


@functools.cache
def _operators() -> frozenset[str]:
    return frozenset(schema.name for schema in onnx.defs.get_all_schemas())


def _from_name(node: ir.Node, names: p.ScopedNames) -> p.Reading | None:
    """Return what a scoped name says; None for a top-level constant, whose position is chosen by the exporter."""
    paths = names.origins(node.name or "")
    if paths is None or (is_constant(node) and paths == frozenset({p.ROOT})):
        return None
    return p.Reading(paths, evidence=p.Evidence.SCOPES)


def inherit(model: ir.Model) -> None:
    """Give every node that no module ran the lowest common module of its consumers, or else of its producers.

    If that is the model itself although not all of them are the model's own nodes, the node stays with the model and is
    counted there. In a body of control flow it belongs to the node that holds the body.
    """
    for scope in scopes(model):
        for node in reversed(scope.graph):
            if how(node) is How.ROOT:
                _inherit_from(node, [user for output in node.outputs for user in output.consumers()])
        for node in scope.graph:
            if how(node) is How.ROOT:
                _inherit_from(node, [producer for value in node.inputs if value and (producer := value.producer())])
        if scope.holder is not None and how(scope.holder) is not How.ROOT:
            for node in scope.graph:
                if how(node) is How.ROOT:
                    set_origins(node, origins(scope.holder), How.INHERITED)


def _inherit_from(node: ir.Node, neighbours: list[ir.Node]) -> None:
    owners = {owner(other) for other in neighbours if how(other) is not How.ROOT}
    common = p.lowest_common(owners)
    if owners and (common != p.ROOT or owners == {p.ROOT}):
        set_origins(node, frozenset({common}), How.INHERITED)


def is_tagged(model: ir.Model) -> bool:
    """Return whether the module of any node is known."""
    return any(origins(node) for scope in scopes(model) for node in scope.graph)


def write(model: ir.Model, hierarchy: p.Hierarchy) -> None:
    """Write the tags of every node, and all users of every constant, to their metadata; none if no module is known."""
    tagged = is_tagged(model)
    for scope in scopes(model):
        for node in scope.graph:
            own = origins(node)
            if _MERGED in node.meta and p.NAMESPACE in node.metadata_props:
                _update_namespace(node, own, hierarchy)
            _replace_tags(node.metadata_props, hierarchy.metadata(own, how(node)) if tagged else {})
            attribute_tags.write_attributes(node, in_function=scope.in_function)
        for value in scope.graph.initializers.values():
            if value.is_graph_input():  # a default value that a caller may override is part of the interface
                continue
            users = p.merge([origins(value), *(origins(user) for user in value.consumers())])
            _replace_tags(value.metadata_props, hierarchy.metadata(users) if tagged else {})
    if hierarchy.table.classes:
        model.metadata_props[p.MODULES] = hierarchy.table.to_json()


def _update_namespace(node: ir.Node, own: p.Origins, hierarchy: p.Hierarchy) -> None:
    if hierarchy.table.classes:
        node.metadata_props[p.NAMESPACE] = hierarchy.namespace(own, leaf(node))
    else:
        node.metadata_props.update(hierarchy.torch_metadata(own, label(node), node.op_type))


def leaf(node: ir.Node) -> str:
    """Return the last part of the namespace of a node: its name and its operator."""
    return f"{label(node).replace('/', '_')}: {node.op_type}"


def _replace_tags(props: dict[str, str], tags: dict[str, str]) -> None:
    for key in p.TAG_KEYS:
        props.pop(key, None)
    props.update(tags)
