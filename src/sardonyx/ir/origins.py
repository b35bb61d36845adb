"""Puts provenance on a graph's nodes when it is read, and back into the file's metadata when it is written.

In between it lives in `meta`, which the file does not see, so that only one place decides what a tag looks like.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable
from typing import cast

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
    """The modules a node or constant comes from; empty where unknown."""
    store = cast("UserDict[str, p.Origins]", thing.meta)
    return store.data.get(_ORIGINS, p.UNKNOWN)  # the plain dict inside: this is asked all the time


def owner(thing: ir.Node | ir.Value) -> str:
    """The lowest common module of a node's or constant's origins."""
    return p.owner_of(origins(thing))


def how(node: ir.Node) -> How:
    """How a node's module was found."""
    store = cast("UserDict[str, How]", node.meta)
    return store.data.get(_HOW, How.DIRECT)


def evidence(node: ir.Node) -> p.Evidence | None:
    """What told where a node comes from when it was read; None where nothing about the node itself did."""
    store = cast("UserDict[str, p.Evidence]", node.meta)
    return store.data.get(_EVIDENCE)


def reason(node: ir.Node) -> str:
    """Why a node counts to the model itself and to no module of it."""
    if how(node) is How.DIRECT:
        return "the model's own forward ran it"
    if evidence(node) is p.Evidence.NAMES:
        return "nothing in the file tells of modules"
    users = sorted({p.module_of(owner(user)) for output in node.outputs for user in output.consumers()})
    if not users:
        return "no module ran it, and nothing says where it belongs"
    shown = ", ".join(name or "the model itself" for name in users[:3]) + (", …" if len(users) > 3 else "")
    return f"no module ran it, and what it feeds has nothing else in common: {shown}"


def set_origins(node: ir.Node, found: p.Origins, how: How = How.DIRECT) -> None:
    """Say where a node comes from and how that is known."""
    node.meta[_ORIGINS] = found
    node.meta[_HOW] = how


def give(thing: ir.Node | ir.Value, inherited: p.Origins, sources: Iterable[ir.Node] = ()) -> None:
    """Add origins to what a node or constant has already; what no source was seen running stays so."""
    thing.meta[_ORIGINS] = p.bounded(origins(thing) | inherited)
    thing.meta[_MERGED] = True
    hows: set[How] = set()
    for node in sources:
        hows.add(how(node))
        if attribute_tags.has_attribute_tags(node) and isinstance(thing, ir.Node):
            attribute_tags.order(thing)
    if hows:
        thing.meta[_HOW] = next(kind for kind in How if kind in hows)  # the surest of them


def copy(source: ir.Node, target: ir.Node) -> None:
    """A node that took another's place is where it was."""
    give(target, origins(source), (source,))
    if _MERGED not in source.meta:
        del target.meta[_MERGED]


def attach(model: ir.Model) -> p.Hierarchy:
    """Read every node's origins: from tags, torch's metadata, scoped names; the others inherit from the data flow.

    A file in which no node says anything gets its node names as modules.
    """
    readings: list[p.Reading] = []
    known = False
    for scope in scopes(model):
        inherited = origins(scope.holder) if scope.holder is not None else p.UNKNOWN
        for node in scope.graph:
            bared = attribute_tags.read_attributes(node)
            reading = p.read_metadata(node.metadata_props) or _from_name(node)
            if reading is None:
                set_origins(node, inherited, How.INHERITED if inherited else How.ROOT)
                continue
            readings.append(reading)
            if reading.origins:
                known = True
                node.meta[_EVIDENCE] = p.Evidence.ATTRIBUTES if bared else reading.evidence
            set_origins(node, reading.origins, reading.how if reading.origins else How.ROOT)
        for value in scope.graph.initializers.values():
            if (reading := p.read_metadata(value.metadata_props)) is not None:
                value.meta[_ORIGINS] = reading.origins
                readings.append(reading)
    if known:
        inherit(model)
    else:
        for scope in scopes(model):
            for node in scope.graph:
                set_origins(node, frozenset({label(node).replace(".", "_")}), How.ROOT)
                node.meta[_EVIDENCE] = p.Evidence.NAMES
    return p.Hierarchy(readings, p.ModuleTable.from_json(model.metadata_props.get(p.MODULES)))


def _from_name(node: ir.Node) -> p.Reading | None:
    """What a scoped name says; a constant at the top was put there by the exporter, whatever it is for."""
    found = p.read_scoped_name(node.name or "")
    if found is None or (is_constant(node) and found == frozenset({p.ROOT})):
        return None
    return p.Reading(found, evidence=p.Evidence.SCOPES)


def inherit(model: ir.Model) -> None:
    """Give every node that no module was seen running the lowest common module of what it feeds, else of what feeds it.

    Where either is nothing but the model itself, though not all of it is the model's own work, the node stays with the
    model and is counted as such; inside a body of control flow it belongs to the node that holds the body.
    """
    for scope in scopes(model):
        for node in reversed(scope.graph):
            if how(node) is How.ROOT:
                _settle(node, [user for output in node.outputs for user in output.consumers()])
        for node in scope.graph:
            if how(node) is How.ROOT:
                _settle(node, [maker for value in node.inputs if value and (maker := value.producer())])
        if scope.holder is not None and how(scope.holder) is not How.ROOT:
            for node in scope.graph:
                if how(node) is How.ROOT:
                    set_origins(node, origins(scope.holder), How.INHERITED)


def _settle(node: ir.Node, around: list[ir.Node]) -> None:
    owners = {owner(other) for other in around if how(other) is not How.ROOT}
    common = p.lowest_common(owners)
    if owners and (common != p.ROOT or owners == {p.ROOT}):
        set_origins(node, frozenset({common}), How.INHERITED)


def write(model: ir.Model, hierarchy: p.Hierarchy) -> None:
    """Write every node's tags, and all users of every constant, into their metadata."""
    for scope in scopes(model):
        for node in scope.graph:
            own = origins(node)
            if _MERGED in node.meta and p.NAMESPACE in node.metadata_props:
                _rename_space(node, own, hierarchy)
            _replace_tags(node.metadata_props, hierarchy.metadata(own, how(node)))
            attribute_tags.write_attributes(node, in_function=scope.in_function)
        for value in scope.graph.initializers.values():
            if value.is_graph_input():  # a default that a caller may override: the interface stays as it is
                continue
            users = p.merge([origins(value), *(origins(user) for user in value.consumers())])
            _replace_tags(value.metadata_props, hierarchy.metadata(users))
    if hierarchy.table.classes:
        model.metadata_props[p.MODULES] = hierarchy.table.to_json()


def _rename_space(node: ir.Node, own: p.Origins, hierarchy: p.Hierarchy) -> None:
    if hierarchy.table.classes:
        node.metadata_props[p.NAMESPACE] = hierarchy.namespace(own, leaf(node))
    else:
        node.metadata_props.update(hierarchy.torch_metadata(own, label(node), node.op_type))


def leaf(node: ir.Node) -> str:
    """The last step of a node's namespace: its own name and what it does."""
    return f"{label(node).replace('/', '_')}: {node.op_type}"


def _replace_tags(props: dict[str, str], tags: dict[str, str]) -> None:
    for key in p.TAG_KEYS:
        props.pop(key, None)
    props.update(tags)
