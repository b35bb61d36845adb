"""What a file declares about values: their types, their documentation, and how it said so."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir
from onnx_ir import serde

from sardonyx.ir.io import canonical, unmodeled_fields
from sardonyx.ir.io.encode import declared_by_default
from sardonyx.ir.io.skeletons import value_shell

Scope = dict[str, ir.Value]


def props(entries: Sequence[onnx.StringStringEntryProto]) -> dict[str, str] | None:
    """Metadata as a dictionary, or None without any."""
    return {entry.key: entry.value for entry in entries} if entries else None


def type_and_shape(proto: onnx.TypeProto) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """What onnx-ir can say about a type; the rest of it is carried."""
    if proto.HasField("tensor_type") and not proto.HasField("denotation"):
        return _tensor_type(proto.tensor_type)
    leaf = proto
    while (kind := leaf.WhichOneof("value")) in ("sequence_type", "optional_type"):
        leaf = getattr(leaf, kind).elem_type
    if kind not in ("tensor_type", "sparse_tensor_type") or not getattr(leaf, kind).HasField("elem_type"):
        return None, None
    return serde.deserialize_type_proto_for_type(proto), serde.deserialize_type_proto_for_shape(proto)


def _tensor_type(proto: onnx.TypeProto.Tensor) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """The common case, short."""
    if not proto.HasField("elem_type"):
        return None, None
    shape = serde.deserialize_tensor_shape(proto.shape) if proto.HasField("shape") else None
    return ir.TensorType(ir.DataType(proto.elem_type)), shape


def declare(value: ir.Value, info: onnx.ValueInfoProto) -> ir.Value:
    """Add what a declaration says; a value may be declared as input, in value_info and as output."""
    declared, shape = type_and_shape(info.type)
    if value.const_value is None:  # a tensor knows better
        value.type = declared or value.type
        value.shape = value.shape if shape is None else shape
    if info.metadata_props:
        value.metadata_props.update({entry.key: entry.value for entry in info.metadata_props})
    if info.HasField("doc_string"):
        value.doc_string = info.doc_string
    return value


def remember_declaration(value: ir.Value, role: str, info: onnx.ValueInfoProto, *, sure: bool) -> None:
    """Keep a declaration that saving would write otherwise; `sure` trusts no shortcut."""
    if sure or not canonical.declares(info, value):
        unmodeled_fields.remember(
            unmodeled_fields.meta(value),
            role,
            unmodeled_fields.nameless(value_shell(value)),
            unmodeled_fields.nameless(info),
        )


def keep_value_info(graph: ir.Graph, values: Scope, infos: Sequence[onnx.ValueInfoProto], *, sure: bool) -> None:
    """Remember the value_info that saving would not write just so, and their order where it is unusual."""
    if not infos:
        return
    loose: list[bytes] = []
    listed: set[str] = set()
    for info in infos:
        value = values.get(info.name)
        if value is None or info.name in listed:
            loose.append(unmodeled_fields.canonical(info))
            continue
        listed.add(info.name)
        remember_declaration(value, unmodeled_fields.VALUE_INFO, info, sure=sure)
        if not declared_by_default(value):
            unmodeled_fields.meta(value)[unmodeled_fields.LISTED] = True
    if loose:
        unmodeled_fields.meta(graph)[unmodeled_fields.LOOSE_INFO] = tuple(loose)
    usual = [name for name in values if name in listed]
    names = tuple(info.name for info in infos)
    if list(names) != usual:
        unmodeled_fields.meta(graph)[unmodeled_fields.INFO_ORDER] = names


def keep_annotations(graph: ir.Graph, values: Scope, quants: Sequence[onnx.TensorAnnotation]) -> None:
    """Put quantization annotations on their values, and keep what fits none of them."""
    if not quants:
        return
    loose: list[bytes] = []
    seen: set[str] = set()
    for quant in quants:
        value = values.get(quant.tensor_name)
        names = props(quant.quant_parameter_tensor_names) or {}
        plain = onnx.TensorAnnotation(tensor_name=quant.tensor_name)
        plain.quant_parameter_tensor_names.extend(
            onnx.StringStringEntryProto(key=key, value=name) for key, name in names.items()
        )
        if value is None or quant.tensor_name in seen or plain != quant:
            loose.append(quant.SerializeToString(deterministic=True))
        else:
            unmodeled_fields.meta(value)[unmodeled_fields.QUANT] = names
        seen.add(quant.tensor_name)  # a second one for the same value comes after the first
    if loose:
        unmodeled_fields.meta(graph)[unmodeled_fields.LOOSE_QUANT] = tuple(loose)
    unmodeled_fields.meta(graph)[unmodeled_fields.QUANT_ORDER] = tuple(quant.tensor_name for quant in quants)
