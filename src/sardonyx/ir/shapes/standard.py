"""Infer operators without a rule here with onnx's own inference, one node at a time.

For some operators onnx treats a named dimension as 0 in its arithmetic. A number that it infers is therefore used only
if it infers the same number again with concrete sizes in place of the names. Shapes of operators that it gets wrong
even then are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import onnx
import onnx.checker
import onnx_ir as ir
from onnx.shape_inference import infer_node_outputs

from sardonyx.ir.scopes import has_references
from sardonyx.ir.shapes.expr import Expr, Size
from sardonyx.ir.shapes.node_view import Typed
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
_PROBED_SIZE = 60  # the concrete size: it has many divisors, so few splits and groups fail

Types = Mapping[str, onnx.TypeProto | None]


def infer(node: ir.Node, ask: Shapes) -> list[Typed]:
    """Return the element type and shape of each output as far as onnx infers them."""
    unknown: list[Typed] = [(ask.declared(output), None) for output in node.outputs]
    if not ask.opset(node) or not all(output.name for output in node.outputs) or has_references(node):
        return unknown
    if any(attribute.type in _NOT_SERIALIZED for attribute in node.attributes.data.values()):
        return unknown
    operands = {f"i{index}": value for index, value in enumerate(node.inputs) if value is not None}
    dims: dict[str, Expr] = {}
    types = {name: _type_proto(value, ask, dims) for name, value in operands.items()}
    if None in types.values():
        return unknown
    arrays = {name: ask.small_array(value) for name, value in operands.items()}
    data = {name: onnx.numpy_helper.from_array(array) for name, array in arrays.items() if array is not None}
    proto = ir.to_proto(node)
    del proto.input[:]
    proto.input.extend(f"i{index}" if value is not None else "" for index, value in enumerate(node.inputs))
    inferred = _infer(node, proto, types, data, ask)
    if inferred is None:
        return unknown
    confirmed: Mapping[str, onnx.TypeProto] | None = inferred
    if dims:
        numbered = {name: _type_proto(value, ask, None) for name, value in operands.items()}
        confirmed = _infer(node, proto, numbered, data, ask)
    results: list[Typed] = []
    for output in node.outputs:
        name = output.name or ""
        dtype, shape = _typed(inferred.get(name), (confirmed or {}).get(name), ask, dims)
        results.append((dtype, None if node.op_type in _WRONG else shape))
    return results


def _infer(
    node: ir.Node, proto: onnx.NodeProto, types: Types, data: dict[str, onnx.TensorProto], ask: Shapes
) -> Mapping[str, onnx.TypeProto] | None:
    version = ask.opset(node)
    imports = [onnx.helper.make_opsetid("", version)]
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        return infer_node_outputs(schema, proto, cast(Any, types), data, opset_imports=imports)
    except _FAILURES:
        return None


def _type_proto(value: ir.Value, ask: Shapes, dims: dict[str, Expr] | None) -> onnx.TypeProto | None:
    """Return the type of an input, None if unknown.

    A dimension that is not a number gets a new name in `dims`, or a number if that is None.
    """
    dtype, shape = ask.typed(value)
    if dtype is None:
        return ir.to_proto(value.type) if value.type is not None and ask.declared(value) is not None else None
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = dtype.value
    if shape is not None:
        proto.tensor_type.shape.SetInParent()
        for dim in shape:
            entry = proto.tensor_type.shape.dim.add()
            if isinstance(dim, int) or dims is None:
                entry.dim_value = dim if isinstance(dim, int) else _PROBED_SIZE
            else:
                entry.dim_param = f"d{len(dims)}"
                dims[entry.dim_param] = dim
    return proto


def _typed(
    proto: onnx.TypeProto | None, confirmed: onnx.TypeProto | None, ask: Shapes, dims: Mapping[str, Expr]
) -> Typed:
    if proto is None or not proto.HasField("tensor_type"):
        return None, None
    tensor = proto.tensor_type
    dtype = DTYPES.get(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return dtype, None
    others = confirmed.tensor_type.shape.dim if confirmed is not None else ()
    shape: list[Size] = []
    for index, dim in enumerate(tensor.shape.dim):
        is_number = dim.HasField("dim_value") and dim.dim_value >= 0 and dim in others[index : index + 1]
        shape.append(dim.dim_value if is_number else dims.get(dim.dim_param) or ask.unknown())
    return dtype, tuple(shape)
