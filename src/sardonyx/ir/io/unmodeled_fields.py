"""Content of a file that the graph in memory cannot represent, kept with the object it belongs to.

ONNX files differ in ways that have no meaning (a field set to its default, the order of metadata) or that onnx-ir
cannot represent (map types, training info). If the encoding E(x) of an object differs from the bytes R that were read,
both are stored in the `meta` of the object, which is preserved by cloning. On saving, R is written if the object still
encodes to E(x), that is, if it has not changed; otherwise its new encoding is written.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any, TypeVar, cast

import onnx
import onnx_ir as ir
from google.protobuf import message
from msgspec import Struct

Meta = MutableMapping[str, Any]

NODE = "sardonyx.io.node"
GRAPH = "sardonyx.io.graph"
FUNCTION = "sardonyx.io.function"
MODEL = "sardonyx.io.model"  # in the meta of the main graph, because that of a model is not cloned
INPUT, OUTPUT, VALUE_INFO = "sardonyx.io.input", "sardonyx.io.output", "sardonyx.io.value_info"
LISTED = "sardonyx.io.listed"  # a value whose value_info is written although it would not be by default
LOOSE_INFO, INFO_ORDER = "sardonyx.io.loose_info", "sardonyx.io.info_order"
LOOSE_QUANT, QUANT_ORDER = "sardonyx.io.loose_quant", "sardonyx.io.quant_order"
QUANT = "quant_parameter_tensor_names"  # onnx-ir's own key
TRAINING = "sardonyx.io.training"
EXTERNAL = "sardonyx.io.external"  # the source has its weights in another file
UNSORTED = "sardonyx.io.unsorted"  # the nodes of the source are in no topological order

Owner = ir.Node | ir.Value | ir.Graph
Message = TypeVar("Message", bound=message.Message)


def meta(owner: Owner) -> Meta:
    """Return the mapping in which data about an object is stored."""
    return cast(Meta, owner.meta)


class Verbatim(Struct, frozen=True):
    """The encoding of an object and the bytes it was read from."""

    encoded: bytes
    read: bytes


class TrainingInfo(Struct, frozen=True):
    """A TrainingInfoProto and the tensors extracted from it, in the order of `tensors_in`."""

    proto: onnx.TrainingInfoProto
    tensors: tuple[ir.TensorProtocol | None, ...]


def remember(owner: Owner, key: str, fresh: Message, read: Message) -> None:
    """Store the message that was read if it differs from the fresh encoding, which saving would write."""
    verbatim = Verbatim(canonical(fresh), canonical(read))
    if verbatim.encoded != verbatim.read:
        meta(owner)[key] = verbatim


def recall(owner: Owner, key: str, fresh: Message) -> Message:
    """Return the message that was read if the object has not changed since, otherwise the fresh encoding."""
    stored: Verbatim | None = meta(owner).get(key)
    if stored is None or stored.encoded != canonical(fresh):
        return fresh
    return type(fresh).FromString(stored.read)


def canonical(proto: message.Message) -> bytes:
    """Return bytes that are equal if and only if messages are, even with NaN."""
    return proto.SerializeToString(deterministic=True)


def without(proto: Message, *fields: str) -> Message:
    """Return a copy without some fields."""
    copy = type(proto)()
    copy.CopyFrom(cast(Any, proto))
    for field in fields:
        copy.ClearField(cast(Any, field))
    return copy


def in_order(messages: list[Message], field: str, order: tuple[str, ...] | None) -> list[Message]:
    """Return messages sorted by their names, which `field` holds, as in `order`; those that are not in it come last."""
    positions: dict[str, list[int]] = {}
    for position, name in enumerate(order or ()):
        positions.setdefault(name, []).append(position)

    def rank(each: Message) -> int:
        places = positions.get(getattr(each, field))
        return places.pop(0) if places else len(order or ())

    return sorted(messages, key=rank)


def has_training_info(model: ir.Model) -> bool:
    """Return whether there are training graphs, which may refer to anything in the main graph by name."""
    return bool(meta(model.graph).get(TRAINING))


def forget_unsorted(model: ir.Model) -> bool:
    """Return whether the nodes of the source were in no topological order, and forget it: those of the model are."""
    return bool(meta(model.graph).pop(UNSORTED, False))


def tensors_in(graph: onnx.GraphProto) -> Iterable[onnx.TensorProto]:
    """Yield every TensorProto in a graph, at any depth."""
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
