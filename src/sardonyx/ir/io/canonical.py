"""Quick checks whether a message has the usual form, so that nothing about it has to be remembered.

Loading must notice everything that saving would write differently. Encoding each object and comparing the bytes finds
all of it but is slow; nearly all nodes and declarations in real files have the usual form, which these rules recognize.
They may report a usual message as unusual, but never the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx
import onnx_ir as ir

Kind = ir.AttributeType
_VALUE_FIELD = {  # attribute type -> the field that holds its value
    Kind.FLOAT: "f", Kind.INT: "i", Kind.STRING: "s", Kind.TENSOR: "t", Kind.GRAPH: "g",
    Kind.FLOATS: "floats", Kind.INTS: "ints", Kind.STRINGS: "strings",
}  # fmt: skip
_FIELD_NUMBER = {
    kind.value: onnx.AttributeProto.DESCRIPTOR.fields_by_name[name].number for kind, name in _VALUE_FIELD.items()
}
_FLOATS = (2, 7)  # a NaN may have payload bits that Python's floats do not preserve


def node(proto: onnx.NodeProto) -> bool:
    """Return whether a node has an operator, no empty strings, and usual attributes and metadata."""
    has_operator = False
    for descriptor, value in proto.ListFields():
        match descriptor.number:
            case 1 | 2 | 6:  # inputs, outputs, documentation: always preserved
                pass
            case 3 | 4 | 7:  # name, operator, domain
                has_operator = has_operator or descriptor.number == 4
                if not value or value == "ai.onnx":
                    return False
            case 5:
                if not all(map(_attribute, value)):
                    return False
            case 9:
                if not _props(value):
                    return False
            case _:
                return False
    return has_operator


def declares(info: onnx.ValueInfoProto, value: ir.Value) -> bool:
    """Return whether a declaration has the usual form and states exactly what is known about the value."""
    doc_string: str | None = None
    metadata: list[tuple[str, str]] = []
    declared: onnx.TypeProto | None = None
    for descriptor, content in info.ListFields():
        match descriptor.number:
            case 1:
                if not content:
                    return False
            case 2:
                declared = content
            case 3:
                doc_string = content
            case _:
                metadata = [(entry.key, entry.value) for entry in content]
                if not _props(content):
                    return False
    if doc_string != value.doc_string or metadata != list(value.metadata_props.items()):
        return False
    return value.type is None and value.shape is None if declared is None else _type(declared, value)


def has_unknown_fields(proto: onnx.ModelProto) -> bool:
    """Return whether the model has fields anywhere that this version of ONNX does not know."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.DiscardUnknownFields()
    return copy.ByteSize() != proto.ByteSize()


def _attribute(proto: onnx.AttributeProto) -> bool:
    number = _FIELD_NUMBER.get(proto.type)
    fields = [(descriptor.number, value) for descriptor, value in proto.ListFields()]
    present = [field for field, _ in fields if field != 13]  # documentation is always preserved
    if number is None or not proto.name:
        return False
    if present == [1, 20]:
        return number >= 7  # an empty list
    if present != [1, number, 20]:
        return False
    return number not in _FLOATS or _no_nan(fields[1][1])


def _no_nan(value: Any) -> bool:
    return value == value if isinstance(value, float) else all(item == item for item in value)


def _props(entries: Iterable[onnx.StringStringEntryProto]) -> bool:
    keys: set[str] = set()
    for entry in entries:
        if not (entry.HasField("key") and entry.HasField("value")) or entry.key in keys:
            return False
        keys.add(entry.key)
    return True


def _type(proto: onnx.TypeProto, value: ir.Value) -> bool:
    """Return whether this is a tensor type without denotations that equals the one of the value."""
    value_type = value.type
    if not isinstance(value_type, ir.TensorType) or value_type.denotation or len(proto.ListFields()) != 1:
        return False
    if not proto.HasField("tensor_type"):
        return False
    tensor = proto.tensor_type
    if not tensor.HasField("elem_type") or tensor.elem_type != value_type.dtype.value:
        return False
    if not tensor.HasField("shape"):
        return value.shape is None
    dims = tensor.shape.dim
    if value.shape is None or len(dims) != len(value.shape):
        return False
    return all(map(_dim, dims, value.shape.dims))


def _dim(proto: onnx.TensorShapeProto.Dimension, dim: int | ir.SymbolicDim) -> bool:
    if proto.HasField("denotation"):
        return False
    kind = proto.WhichOneof("value")
    if kind == "dim_value":
        return isinstance(dim, int) and proto.dim_value == dim
    if isinstance(dim, int):
        return False
    return dim.value == (proto.dim_param if kind == "dim_param" else None)
