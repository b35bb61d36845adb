"""Declarations of values in a file: their types and documentation, and the form in which they are written."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir
from onnx_ir import serde

from sardonyx.ir.io import canonical, unmodeled_fields
from sardonyx.ir.io.encode import declared_by_default
from sardonyx.ir.io.skeletons import value_skeleton

Scope = dict[str, ir.Value]


def props(entries: Sequence[onnx.StringStringEntryProto]) -> dict[str, str] | None:
    """Return metadata as a dictionary, or None if there is none."""
    return {entry.key: entry.value for entry in entries} if entries else None


def type_and_shape(proto: onnx.TypeProto) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """Return the part of a type that onnx-ir can represent; the rest is kept in `unmodeled_fields`."""
    if proto.HasField("tensor_type") and not proto.HasField("denotation"):
        return _tensor_type(proto.tensor_type)
    leaf = proto
    while (kind := leaf.WhichOneof("value")) in ("sequence_type", "optional_type"):
        leaf = getattr(leaf, kind).elem_type
    if kind not in ("tensor_type", "sparse_tensor_type") or not getattr(leaf, kind).HasField("elem_type"):
        return None, None
    return serde.deserialize_type_proto_for_type(proto), serde.deserialize_type_proto_for_shape(proto)


def _tensor_type(proto: onnx.TypeProto.Tensor) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """Return the type and shape of a tensor type, which is the most common case."""
    if not proto.HasField("elem_type"):
        return None, None
    shape = serde.deserialize_tensor_shape(proto.shape) if proto.HasField("shape") else None
    return ir.TensorType(ir.DataType(proto.elem_type)), shape


def declare(value: ir.Value, info: onnx.ValueInfoProto) -> ir.Value:
    """Add a declaration to a value, which may be declared as an input, in value_info and as an output."""
    declared, shape = type_and_shape(info.type)
    if value.const_value is None:  # the tensor itself takes precedence
        value.type = declared or value.type
        value.shape = value.shape if shape is None else shape
    if info.metadata_props:
        value.metadata_props.update({entry.key: entry.value for entry in info.metadata_props})
    if info.HasField("doc_string"):
        value.doc_string = info.doc_string
    return value


def remember_declaration(value: ir.Value, role: str, info: onnx.ValueInfoProto, *, sure: bool) -> None:
    """Remember a declaration that saving would write differently; `sure` skips the quick check."""
    if sure or not canonical.declares(info, value):
        encoded = unmodeled_fields.nameless(value_skeleton(value))
        unmodeled_fields.store(value, role, encoded, unmodeled_fields.nameless(info))


def remember_value_info(graph: ir.Graph, values: Scope, infos: Sequence[onnx.ValueInfoProto], *, sure: bool) -> None:
    """Remember value_info that saving would write differently, and its order if that is unusual."""
    if not infos:
        return
    unmatched: list[bytes] = []
    listed: set[str] = set()
    for info in infos:
        value = values.get(info.name)
        if value is None or info.name in listed:
            unmatched.append(unmodeled_fields.canonical(info))
            continue
        listed.add(info.name)
        remember_declaration(value, unmodeled_fields.VALUE_INFO, info, sure=sure)
        if not declared_by_default(value):
            unmodeled_fields.meta(value)[unmodeled_fields.LISTED] = True
    if unmatched:
        unmodeled_fields.meta(graph)[unmodeled_fields.LOOSE_INFO] = tuple(unmatched)
    usual = [name for name in values if name in listed]
    names = tuple(info.name for info in infos)
    if list(names) != usual:
        unmodeled_fields.meta(graph)[unmodeled_fields.INFO_ORDER] = names


def remember_annotations(graph: ir.Graph, values: Scope, quants: Sequence[onnx.TensorAnnotation]) -> None:
    """Attach quantization annotations to their values, and remember those that fit no value."""
    if not quants:
        return
    unmatched: list[bytes] = []
    seen: set[str] = set()
    for quant in quants:
        value = values.get(quant.tensor_name)
        names = props(quant.quant_parameter_tensor_names) or {}
        plain = onnx.TensorAnnotation(tensor_name=quant.tensor_name)
        plain.quant_parameter_tensor_names.extend(
            onnx.StringStringEntryProto(key=key, value=name) for key, name in names.items()
        )
        if value is None or quant.tensor_name in seen or plain != quant:
            unmatched.append(quant.SerializeToString(deterministic=True))
        else:
            unmodeled_fields.meta(value)[unmodeled_fields.QUANT] = names
        seen.add(quant.tensor_name)  # a second one for the same value is unmatched
    if unmatched:
        unmodeled_fields.meta(graph)[unmodeled_fields.LOOSE_QUANT] = tuple(unmatched)
    unmodeled_fields.meta(graph)[unmodeled_fields.QUANT_ORDER] = tuple(quant.tensor_name for quant in quants)
