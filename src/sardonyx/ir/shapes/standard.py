"""Infer operators without a rule here with onnx's own inference, one node at a time.

For some operators onnx treats a named dimension as 0 in its arithmetic. A number that it infers is therefore used only
if it infers the same number again with concrete sizes in place of the names. Shapes of operators that it gets wrong
even then are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import onnx
import onnx.checker
import onnx_ir as ir
from onnx.shape_inference import infer_node_outputs

from sardonyx.ir.scopes import has_references
from sardonyx.ir.shapes.expr import Expr
from sardonyx.ir.shapes.node_view import Shape, Typed
from sardonyx.ir.storage import DTYPES

if TYPE_CHECKING:
    from sardonyx.ir.shapes.engine import Shapes

_FAILURES = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
    RuntimeError,
    ValueError,
    TypeError,
)
_WRONG = frozenset({"STFT"})  # operators whose inferred shape is wrong
_KIND = ir.AttributeType
_NOT_SERIALIZED = (_KIND.SPARSE_TENSOR, _KIND.SPARSE_TENSORS, _KIND.UNDEFINED)  # by onnx-ir
_PROBE = 60  # the concrete size: it has many divisors, so few splits and groups fail

Types = dict[str, onnx.TypeProto]


def infer(node: ir.Node, ask: Shapes) -> list[Typed]:
    """Return the element type and shape of each output as far as onnx infers them."""
    unknown: list[Typed] = [(ask.declared(output), None) for output in node.outputs]
    if not ask.opset(node) or not all(output.name for output in node.outputs) or has_references(node):
        return unknown
    if any(attribute.type in _NOT_SERIALIZED for attribute in node.attributes.data.values()):
        return unknown
    names = [f"i{index}" if value is not None else "" for index, value in enumerate(node.inputs)]
    types: Types = {}
    data: dict[str, onnx.TensorProto] = {}
    dims: dict[str, Expr] = {}
    for name, value in zip(names, node.inputs, strict=True):
        if value is None:
            continue
        typed = _type_proto(value, ask, dims)
        if typed is None:
            return unknown
        types[name] = typed
        if (array := ask.small_array(value)) is not None:
            data[name] = onnx.numpy_helper.from_array(array)
    proto = ir.to_proto(node)
    del proto.input[:]
    proto.input.extend(names)
    try:
        inferred = _infer(node, proto, types, data, ask)
    except _FAILURES:
        return unknown
    confirmed = _infer_with_numbers(node, proto, types, data, ask) if dims else inferred
    results = [output.name or "" for output in node.outputs]
    if node.op_type in _WRONG:
        return [(_typed(inferred.get(name), {}, ask, dims)[0], None) for name in results]
    return [_typed(inferred.get(name), confirmed, ask, dims, name) for name in results]


def _infer(
    node: ir.Node, proto: onnx.NodeProto, types: Types, data: dict[str, onnx.TensorProto], ask: Shapes
) -> Mapping[str, onnx.TypeProto]:
    version = ask.opset(node)
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    return infer_node_outputs(schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid("", version)])


def _infer_with_numbers(
    node: ir.Node, proto: onnx.NodeProto, types: Types, data: dict[str, onnx.TensorProto], ask: Shapes
) -> Mapping[str, onnx.TypeProto]:
    """Return what onnx infers with numbers in place of the names, or nothing if that fails."""
    numbered: Types = {}
    for name, typed in types.items():
        copy = onnx.TypeProto()
        copy.CopyFrom(typed)
        for dim in copy.tensor_type.shape.dim if copy.HasField("tensor_type") else ():
            if dim.HasField("dim_param"):
                dim.dim_value = _PROBE
        numbered[name] = copy
    try:
        return _infer(node, proto, numbered, data, ask)
    except _FAILURES:
        return {}


def _type_proto(value: ir.Value, ask: Shapes, dims: dict[str, Expr]) -> onnx.TypeProto | None:
    """Return the type of an input, with a name for every dimension that is not a number; None if unknown."""
    dtype, shape = ask.typed(value)
    if dtype is None:
        return ir.to_proto(value.type) if value.type is not None and ask.declared(value) is not None else None
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = dtype.value
    if shape is not None:
        proto.tensor_type.shape.SetInParent()
        for dim in shape:
            if isinstance(dim, int):
                proto.tensor_type.shape.dim.add().dim_value = dim
            else:
                name = f"d{len(dims)}"
                dims[name] = dim
                proto.tensor_type.shape.dim.add().dim_param = name
    return proto


def _typed(
    proto: onnx.TypeProto | None,
    confirmed: Mapping[str, onnx.TypeProto],
    ask: Shapes,
    dims: Mapping[str, Expr],
    name: str = "",
) -> Typed:
    if proto is None or not proto.HasField("tensor_type"):
        return None, None
    tensor = proto.tensor_type
    dtype = DTYPES.get(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return dtype, None
    confirmed_dims = list(confirmed[name].tensor_type.shape.dim) if name in confirmed else []
    confirmed_sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in confirmed_dims]
    confirmed_sizes += [-1] * (len(tensor.shape.dim) - len(confirmed_sizes))
    shape: Shape = tuple(
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value == number and number >= 0
        else dims.get(dim.dim_param) or ask.unknown()
        for dim, number in zip(tensor.shape.dim, confirmed_sizes, strict=False)
    )
    return dtype, shape
