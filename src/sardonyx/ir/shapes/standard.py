"""Operators without a rule of ours: onnx's own inference, one node at a time.

It reads a dim that has a name as 0 in some of its sums. So what it says is only taken for a number where it says the
same once numbers stand for the names; and what it gets wrong even then is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx.checker
import onnx_ir as ir
from onnx.shape_inference import infer_node_outputs

from sardonyx.ir.shapes.attributes import depends_on_caller
from sardonyx.ir.shapes.expr import Expr
from sardonyx.ir.shapes.queries import Ask, Shape, Typed

_DTYPES = {dtype.value: dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED}
_FAILURES = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
    RuntimeError,
    ValueError,
    TypeError,
)
_WRONG = frozenset({"STFT"})
_SPARSE = (ir.AttributeType.SPARSE_TENSOR, ir.AttributeType.SPARSE_TENSORS)  # onnx-ir writes none
_PROBE = 60  # divisible by much, so that few splits and groups fail on it

Types = dict[str, onnx.TypeProto]


def infer(node: ir.Node, ask: Ask) -> list[Typed]:
    """Element type and shape of each output, as far as onnx can tell; what it cannot is not known."""
    unknown: list[Typed] = [(ask.declared(output), None) for output in node.outputs]
    if not ask.opset(node) or not all(output.name for output in node.outputs) or depends_on_caller(node):
        return unknown
    if any(attribute.type in _SPARSE for attribute in node.attributes.data.values()):
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
        found = _asked(node, proto, types, data, ask)
    except _FAILURES:
        return unknown
    probed = _probed(node, proto, types, data, ask) if dims else found
    results = [output.name or "" for output in node.outputs]
    if node.op_type in _WRONG:
        return [(_typed(found.get(name), {}, ask, dims)[0], None) for name in results]
    return [_typed(found.get(name), probed, ask, dims, name) for name in results]


def _asked(
    node: ir.Node, proto: onnx.NodeProto, types: Types, data: dict[str, onnx.TensorProto], ask: Ask
) -> Mapping[str, onnx.TypeProto]:
    version = ask.opset(node)
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    return infer_node_outputs(schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid("", version)])


def _probed(
    node: ir.Node, proto: onnx.NodeProto, types: Types, data: dict[str, onnx.TensorProto], ask: Ask
) -> Mapping[str, onnx.TypeProto]:
    """What it says with numbers for the names; nothing where it cannot."""
    numbered: Types = {}
    for name, typed in types.items():
        copy = onnx.TypeProto()
        copy.CopyFrom(typed)
        for dim in copy.tensor_type.shape.dim if copy.HasField("tensor_type") else ():
            if dim.HasField("dim_param"):
                dim.dim_value = _PROBE
        numbered[name] = copy
    try:
        return _asked(node, proto, numbered, data, ask)
    except _FAILURES:
        return {}


def _type_proto(value: ir.Value, ask: Ask, dims: dict[str, Expr]) -> onnx.TypeProto | None:
    """The type of an input, with a name for every dim that is no number."""
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
    probed: Mapping[str, onnx.TypeProto],
    ask: Ask,
    dims: Mapping[str, Expr],
    name: str = "",
) -> Typed:
    if proto is None or not proto.HasField("tensor_type"):
        return None, None
    tensor = proto.tensor_type
    dtype = _DTYPES.get(tensor.elem_type)
    if not tensor.HasField("shape"):
        return dtype, None
    again = list(probed[name].tensor_type.shape.dim) if name in probed else []
    certain = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in again]
    certain += [-1] * (len(tensor.shape.dim) - len(certain))
    shape: Shape = tuple(
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value == number and number >= 0
        else dims.get(dim.dim_param) or ask.unknown()
        for dim, number in zip(tensor.shape.dim, certain, strict=False)
    )
    return dtype, shape
