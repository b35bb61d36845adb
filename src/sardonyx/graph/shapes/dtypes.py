"""The element types operators make; for those in `RULES` of `operators` and `views` only, onnx tells the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import onnx_ir as ir

if TYPE_CHECKING:
    from sardonyx.graph.shapes.engine import Shapes

_BY_NUMBER: Mapping[int, ir.DataType] = {dtype.value: dtype for dtype in ir.DataType}  # calling the enum is slow
_TRUTH = frozenset(
    ["And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor"]
)
_PLACES = frozenset({"ArgMax", "ArgMin", "Shape", "Size"})
_TYPE_ATTRIBUTES = {"Cast": "to", "Bernoulli": "dtype", "EyeLike": "dtype", "RandomNormalLike": "dtype"}
_TYPE_ATTRIBUTES["RandomUniformLike"] = "dtype"
_ASK_ONNX = frozenset({"QuantizeLinear", "DequantizeLinear", "MatMulInteger"})


def of_output(node: ir.Node, index: int, ask: Shapes) -> ir.DataType | None:
    """The element type of one output; None where it is not known."""
    op_type = node.op_type
    if op_type in _TRUTH:
        return ir.DataType.BOOL
    if op_type in _PLACES or (op_type == "MaxPool" and index == 1):
        return ir.DataType.INT64
    if op_type in _TYPE_ATTRIBUTES and (named := node.attributes.get(_TYPE_ATTRIBUTES[op_type])) is not None:
        return _BY_NUMBER.get(named.as_int()) if named.type == ir.AttributeType.INT else None
    match op_type:
        case "Where" | "CastLike":
            return ask.dtype(node.inputs[1])
        case "ConstantOfShape":
            value = node.attributes.get("value")
            return ir.DataType.FLOAT if value is None else cast("ir.TensorProtocol", value.value).dtype
        case "Dropout" if index == 1:
            return ir.DataType.BOOL
        case "If" | "Loop" | "Scan":
            return node.outputs[index].dtype or _of_body(node, index, ask)
        case _ if op_type in _ASK_ONNX:
            return None
        case _:
            return ask.dtype(node.inputs[0]) if node.inputs else None


def _of_body(node: ir.Node, index: int, ask: Shapes) -> ir.DataType | None:
    """A body returns what the node does, a Loop's after the condition."""
    body = node.attributes["then_branch" if node.op_type == "If" else "body"].as_graph()
    return ask.dtype(body.outputs[index + (node.op_type == "Loop")])
