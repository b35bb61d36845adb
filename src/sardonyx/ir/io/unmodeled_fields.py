"""What a file said that the graph in memory has no place for, kept beside the object it belongs to.

ONNX files differ in ways that mean nothing (a field set to its default, the order of metadata) or that onnx-ir cannot
hold (map types, training info). When the fresh encoding of an object differs from what was read, both are remembered in
the object's `meta`, which survives cloning; an object that still encodes the same on saving is written as it was read.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import onnx
import onnx_ir as ir

Meta = MutableMapping[str, Any]

NODE = "sardonyx.io.node"
GRAPH = "sardonyx.io.graph"
FUNCTION = "sardonyx.io.function"
MODEL = "sardonyx.io.model"  # in the main graph's meta: a model's own is not cloned
INPUT, OUTPUT, VALUE_INFO = "sardonyx.io.input", "sardonyx.io.output", "sardonyx.io.value_info"
LISTED = "sardonyx.io.listed"  # a value whose value_info is kept although saving would not write one
LOOSE_INFO, INFO_ORDER = "sardonyx.io.loose_info", "sardonyx.io.info_order"
LOOSE_QUANT, QUANT_ORDER = "sardonyx.io.loose_quant", "sardonyx.io.quant_order"
QUANT = "quant_parameter_tensor_names"  # onnx-ir's own key
TRAINING = "sardonyx.io.training"
EXTERNAL = "sardonyx.io.external"  # the source kept its weights in another file

Message = TypeVar("Message", onnx.NodeProto, onnx.GraphProto, onnx.FunctionProto, onnx.ModelProto, onnx.ValueInfoProto)


def meta(owner: ir.Node | ir.Value | ir.Graph) -> Meta:
    """What is remembered about an object."""
    return cast(Meta, owner.meta)


@dataclass(frozen=True, slots=True)
class Verbatim:
    """An object as it encodes and as it was read."""

    encoded: bytes
    read: bytes


@dataclass(frozen=True, slots=True)
class TrainingInfo:
    """A TrainingInfoProto and the tensors that were cut out of it, in the order in which `tensors_in` meets them."""

    proto: onnx.TrainingInfoProto
    tensors: tuple[ir.TensorProtocol | None, ...]


def remember(meta: Meta, key: str, encoded: bytes, read: bytes) -> None:
    """Keep what was read, where it is not what would be written."""
    if encoded != read:
        meta[key] = Verbatim(encoded, read)


def recall(meta: Meta, key: str, fresh: Message) -> Message:
    """What was read, as long as the object has not changed since; else the fresh encoding."""
    kept: Verbatim | None = meta.get(key)
    if kept is None or kept.encoded != canonical(fresh):
        return fresh
    return type(fresh).FromString(kept.read)


def canonical(
    message: onnx.NodeProto | onnx.GraphProto | onnx.FunctionProto | onnx.ModelProto | onnx.ValueInfoProto,
) -> bytes:
    """Bytes that are equal where messages are, even for NaN."""
    return message.SerializeToString(deterministic=True)


def nameless(info: onnx.ValueInfoProto) -> bytes:
    """A declaration apart from its name, so that a renamed value keeps the rest."""
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(info)
    copy.ClearField("name")
    return canonical(copy)


def in_order(names: Iterable[str], order: tuple[str, ...] | None) -> list[int]:
    """Positions of the names sorted as in `order`; what it does not know comes last, as given."""
    listed = list(names)
    if order is None:
        return list(range(len(listed)))
    places: dict[str, list[int]] = {}
    for place, name in enumerate(order):
        places.setdefault(name, []).append(place)
    rank = [places[name].pop(0) if places.get(name) else len(order) for name in listed]
    return sorted(range(len(listed)), key=rank.__getitem__)


def has_training_info(model: ir.Model) -> bool:
    """Whether graphs beside the main one may refer to anything in it by name."""
    return bool(meta(model.graph).get(TRAINING))


def tensors_in(graph: onnx.GraphProto) -> Iterable[onnx.TensorProto]:
    """Every TensorProto in a graph, at any depth."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from attribute.tensors
            sparse_tensors = list(attribute.sparse_tensors)
            bodies = list(attribute.graphs)
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("sparse_tensor"):
                sparse_tensors.append(attribute.sparse_tensor)
            if attribute.HasField("g"):
                bodies.append(attribute.g)
            for sparse in sparse_tensors:
                yield from (sparse.values, sparse.indices)
            for body in bodies:
                yield from tensors_in(body)
