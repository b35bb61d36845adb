"""Attach provenance to the nodes of a graph when it is read, and write it to the metadata when it is saved.

In memory it is kept in `meta`, which is not serialized, so that the format of tags is defined in one place.
"""

from __future__ import annotations

import functools
import json
import os
from collections import UserDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import onnx
import onnx_ir as ir
from msgspec import Struct

from sardonyx.common import gc_pause
from sardonyx.ir.io import from_proto, load, to_proto
from sardonyx.ir.ops import ARITHMETIC, CASTS, KEEPS_ORDER, MATRIX_PRODUCTS
from sardonyx.ir.scopes import is_constant, label, scopes
from sardonyx.records import provenance as p
from sardonyx.records.provenance import Hierarchy, strings
from sardonyx.records.run import How

ATTRIBUTES = {
    "__source_module": p.SOURCE_MODULE,
    "__module_path": p.MODULE_PATH,
    "__call": p.CALL,
    "__hierarchy_tags": p.HIERARCHY_TAGS,
    "__module_paths": p.MODULE_PATHS,
    "__how": p.HOW,
}
_LISTS = (p.HIERARCHY_TAGS, p.MODULE_PATHS)
_REQUESTED = "sardonyx.attribute_tags"
_FUSED_INTO_GEMM = frozenset(
    ["Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"]
)
_ABSORBED = ARITHMETIC | KEEPS_ORDER | CASTS | {"BatchNormalization", "Dropout", "Transpose"}


def request(node: ir.Node) -> None:
    """Request that the tags of a node are also written as attributes."""
    node.meta[_REQUESTED] = True


def has_attribute_tags(node: ir.Node) -> bool:
    """Return whether the tags of a node are also written as attributes."""
    return _REQUESTED in node.meta


def read_attributes(node: ir.Node) -> bool:
    """Move tags from the attributes of a node to its metadata, and return whether the metadata changed.

    Metadata that has tags already takes precedence.
    """
    names = [name for name in node.attributes if name in ATTRIBUTES]
    if not names:
        return False
    request(node)
    tags = {ATTRIBUTES[name]: _text(node.attributes.pop(name)) for name in names}
    if p.MODULE_PATH in node.metadata_props or p.SOURCE_MODULE not in tags:
        return False
    if p.MODULE_PATH not in tags:  # written by another tool, which has only the tag
        tags[p.MODULE_PATH] = tags[p.SOURCE_MODULE].strip("/").replace(".", "_").replace("/", ".")
    node.metadata_props.update(tags)
    return True


def write_attributes(node: ir.Node, *, in_function: bool = False) -> None:
    """Write the tags of a node as attributes, if it was read with attributes or they were requested.

    Constants get none, because many tools take their only attribute for the value. Neither do activations that ONNX
    Runtime fuses into a Gemm: it copies their attributes under new names, which it then rejects. In a function, the
    operand of an activation may be the result of a Gemm outside.
    """
    if not has_attribute_tags(node) or is_constant(node):
        return
    if node.op_type in _FUSED_INTO_GEMM and (in_function or _follows_product(node)):
        return
    for name, key in ATTRIBUTES.items():
        text = node.metadata_props.get(key)
        if text is not None:
            node.attributes[name] = ir.AttrStrings(name, strings(text)) if key in _LISTS else ir.AttrString(name, text)


def _follows_product(node: ir.Node) -> bool:
    """Return whether a matrix product precedes the node, directly or through nodes that optimizers remove or absorb."""
    visited: set[ir.Node] = set()
    pending = [node]
    while pending:
        for value in pending.pop().inputs:
            producer = value.producer() if value is not None else None
            if producer is None or producer in visited:
                continue
            if producer.domain or producer.op_type in MATRIX_PRODUCTS:  # an operator of another domain may be a product
                return True
            visited.add(producer)
            if producer.op_type in _ABSORBED:
                pending.append(producer)
    return False


def _text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.STRINGS:
        return json.dumps(list(attribute.as_strings()))
    return attribute.as_string() if attribute.type == ir.AttributeType.STRING else str(attribute.value)


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
    return cast("UserDict[str, How]", node.meta).data.get(_HOW, How.DIRECT)


def evidence(node: ir.Node) -> p.Evidence | None:
    """Return what identified the module of a node when it was read, or None if nothing about the node itself did."""
    return cast("UserDict[str, p.Evidence]", node.meta).data.get(_EVIDENCE)


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
        if has_attribute_tags(node) and isinstance(thing, ir.Node):
            request(thing)
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
    nodes = [node for scope in scopes(model) for node in scope.graph if not is_constant(node)]
    props = [(node.name or "", node.metadata_props) for node in nodes]
    unread = [name for name, tags in props if p.MODULE_PATH not in tags and not tags.get(p.NAME_SCOPES)]
    names = p.ScopedNames(unread, _operators())
    for scope in scopes(model):
        inherited = origins(scope.holder) if scope.holder is not None else p.UNKNOWN
        for node in scope.graph:
            from_attributes = read_attributes(node)
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
                if hierarchy.table.classes:
                    node.metadata_props[p.NAMESPACE] = hierarchy.namespace(own, leaf(node))
                else:
                    node.metadata_props.update(hierarchy.torch_metadata(own, label(node), node.op_type))
            _replace_tags(node.metadata_props, hierarchy.metadata(own, how(node)) if tagged else {})
            write_attributes(node, in_function=scope.in_function)
        for value in scope.graph.initializers.values():
            if value.is_graph_input():  # a default value that a caller may override is part of the interface
                continue
            users = p.merge([origins(value), *(origins(user) for user in value.consumers())])
            _replace_tags(value.metadata_props, hierarchy.metadata(users) if tagged else {})
    if hierarchy.table.classes:
        model.metadata_props[p.MODULES] = hierarchy.table.to_json()


def leaf(node: ir.Node) -> str:
    """Return the last part of the namespace of a node: its name and its operator."""
    return f"{label(node).replace('/', '_')}: {node.op_type}"


def _replace_tags(props: dict[str, str], tags: dict[str, str]) -> None:
    for key in p.TAG_KEYS:
        props.pop(key, None)
    props.update(tags)


Source = str | os.PathLike[str] | onnx.ModelProto | ir.Model


def is_program(source: object) -> bool:
    """Return whether a source is what torch's exporters return, without importing torch."""
    kind = type(source)
    return kind.__name__ in ("ExportedProgram", "ONNXProgram") and kind.__module__.startswith("torch.")


class Tagged(Struct, frozen=True):
    """A model whose nodes have their modules attached, and the file it was read from, if any."""

    model: ir.Model
    hierarchy: Hierarchy
    path: Path | None

    @property
    def name(self) -> str:
        """Return the name to show; bytes of the path that are not valid text are replaced."""
        if self.path is not None:
            return os.fsencode(self.path).decode(errors="replace")
        return self.model.graph.name or "model in memory"


def tagged(source: Source) -> Tagged:
    """Read a model and the origins of its nodes. The given object is not changed."""
    path = None
    with gc_pause.paused():
        match source:
            case onnx.ModelProto():
                model = from_proto(source)
            case ir.Model():
                model = source.clone()  # because origins are attached to the nodes
            case _:
                path = Path(source)
                model = load(path)
        return Tagged(model, attach(model), path)


def distinct_labels(names: Sequence[str]) -> list[str]:
    """Return distinct names: file names, or full paths if these are not distinct, or numbered file names."""
    short = [os.path.basename(name) or name for name in names]
    for candidates in (short, list(names)):
        if len(set(candidates)) == len(candidates):
            return candidates
    return [f"{name} ({index})" for index, name in enumerate(short, 1)]


class HasModel:
    """A result that holds the created model in `model`."""

    __slots__ = ()  # so that a record can inherit from it in addition to its own base

    model: ir.Model | None

    def to_proto(self) -> onnx.ModelProto:
        """Return the model as a ModelProto with all data inline, as in `sardonyx.optimize(proto).to_proto()`."""
        assert self.model is not None, "set by the verb that creates the result"
        return to_proto(self.model)
