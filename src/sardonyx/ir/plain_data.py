"""Attributes, types and small tensors of nodes as plain data, for records and to compare them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.ir.shapes import Shape
from sardonyx.ir.tensors import FileTensor
from sardonyx.records.inspection import AttributeValue, BodyValue, Scalar, TensorValue

_A = ir.AttributeType
MAX_ELEMENTS = 16  # tensors with at most this many elements are converted whole


def attributes_of(node: ir.Node, names: Mapping[ir.Node, str] | None = None) -> dict[str, AttributeValue]:
    """Return all attributes of a node; `names` has the names of nodes in its bodies, which are left out without it."""
    return {
        name: attribute_value(attribute, names)
        for name, attribute in node.attributes.items()
        if names is not None or attribute.type not in (_A.GRAPH, _A.GRAPHS)
    }


def attribute_value(attribute: ir.Attr, names: Mapping[ir.Node, str] | None = None) -> AttributeValue:
    """Return one attribute as plain data; for a body, the names of its nodes."""
    if attribute.is_ref():
        return f"attribute {attribute.ref_attr_name} of the function"
    value = attribute.value
    match attribute.type:
        case _A.FLOAT | _A.INT | _A.STRING:
            return scalar(value)
        case _A.FLOATS | _A.INTS | _A.STRINGS:
            return tuple(map(scalar, value))
        case _A.TENSOR:
            return tensor_value(value)
        case _A.GRAPH | _A.GRAPHS:
            graphs: Sequence[ir.Graph] = (value,) if attribute.type == _A.GRAPH else value
            return BodyValue(tuple(names[node] for graph in graphs for node in graph) if names is not None else ())
        case other:
            return f"({other.name.lower()})"  # types, sparse tensors and lists of tensors: rare, and never weights


@functools.cache
def default_attributes(domain: str, op_type: str, version: int) -> Mapping[str, ir.Attr]:
    """Return the attributes of an operator that have a default; none for operators that onnx does not know."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return {}
    protos = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    return {name: ir.from_proto(proto) for name, proto in protos.items() if proto.type}


def tensor_value(tensor: ir.TensorProtocol) -> TensorValue:
    """Return the type and shape of a tensor, and its elements if they are few and in memory."""
    shape = tuple(int(dim) for dim in tensor.shape.numpy())
    few = tensor.size <= MAX_ELEMENTS and not isinstance(tensor, FileTensor)
    return TensorValue(dtype_name(tensor.dtype), shape, elements(tensor.numpy()) if few else None)


def dtype_name(dtype: ir.DataType) -> str:
    """Return the ONNX name of an element type in lower case."""
    return dtype.name.lower()


def value_type(dtype: ir.DataType | None, shape: Shape | None) -> str | None:
    """Return the type of a value: "float[batch,128]", "?" for an unknown dimension; None if the rank is unknown."""
    if dtype is None or shape is None:
        return None
    dims = ("?" if (text := str(dim)).startswith("?") else text for dim in shape)
    return f"{dtype_name(dtype)}[{','.join(dims)}]"


def elements(array: np.ndarray) -> tuple[Scalar, ...]:
    """Return the elements of an array in row-major order."""
    return tuple(scalar(item) for item in array.reshape(-1))


def scalar(item: Any) -> Scalar:
    """Convert one element to a type that JSON supports."""
    match item:
        case bytes():
            return item.decode(errors="replace")
        case str():
            return item
        case bool() | int() | np.bool_() | np.integer():
            return int(item)  # pyright: ignore[reportUnknownArgumentType]  (numpy's own width)
        case complex() | np.complexfloating():
            return str(item)  # pyright: ignore[reportUnknownArgumentType]  (numpy's own width)
        case _:
            number = float(item)
            return number if math.isfinite(number) else str(number)
