"""Element types of values that a file does not declare."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.facts import element_types


def test_types_follow_the_operators() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    shape = ir.node("Shape", [x])
    cast = ir.node("Cast", [x], attributes={"to": int(ir.DataType.INT32)})
    like = ir.node("CastLike", [x, cast.outputs[0]])
    less = ir.node("Less", [x, x])
    chosen = ir.node("Where", [less.outputs[0], x, x])
    hot = ir.node("OneHot", [shape.outputs[0], shape.outputs[0], x])
    nodes = [shape, cast, like, less, chosen, hot]
    types = element_types(ir.Model(ir.Graph([x], [], nodes=nodes, opset_imports={"": 21}), ir_version=10))
    assert [types.get(node.outputs[0]) for node in nodes] == [
        ir.DataType.INT64,
        ir.DataType.INT32,
        ir.DataType.INT32,
        ir.DataType.BOOL,
        ir.DataType.FLOAT,
        ir.DataType.FLOAT,
    ]
