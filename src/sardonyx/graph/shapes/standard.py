"""Operators without a rule of ours: onnx's own inference, one node at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from onnx.shape_inference import infer_node_outputs

from sardonyx.graph.shapes.expr import Expr

if TYPE_CHECKING:
    from sardonyx.graph.shapes.engine import Shape, Shapes, Typed

_DTYPES = {dtype.value: dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED}
_FAILURES = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    onnx.defs.SchemaError,
    RuntimeError,
    ValueError,
)


def infer(node: ir.Node, ask: Shapes) -> list[Typed]:
    """Element type and shape of each output, as far as onnx can tell; what it cannot is not known."""
    unknown: list[Typed] = [(output.dtype, None) for output in node.outputs]
    version = ask.opset(node)
    if not version or not all(output.name for output in node.outputs):
        return unknown
    names = [f"i{index}" if value is not None else "" for index, value in enumerate(node.inputs)]
    types: dict[str, onnx.TypeProto] = {}
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
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        found = infer_node_outputs(schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid("", version)])
    except _FAILURES:
        return unknown
    return [_typed(found.get(output.name or ""), output, ask, dims) for output in node.outputs]


def _type_proto(value: ir.Value, ask: Shapes, dims: dict[str, Expr]) -> onnx.TypeProto | None:
    """The type of an input, with a name for every dim that is no number."""
    dtype, shape = ask.typed(value)
    if dtype is None:
        return ir.to_proto(value.type) if value.type is not None else None
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


def _typed(proto: onnx.TypeProto | None, output: ir.Value, ask: Shapes, dims: dict[str, Expr]) -> Typed:
    if proto is None or not proto.HasField("tensor_type"):
        return output.dtype, None
    tensor = proto.tensor_type
    dtype = _DTYPES.get(tensor.elem_type)
    if not tensor.HasField("shape"):
        return dtype, None
    shape: Shape = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dims.get(dim.dim_param) or ask.unknown()
        for dim in tensor.shape.dim
    )
    return dtype, shape
