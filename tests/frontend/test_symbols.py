"""Dimensions have the user's names, and equal sums are written the same way."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.frontend.tracing.graph_names import settle


def test_torch_symbols_get_their_names_and_sums_one_order() -> None:
    ids = ir.Value(name="ids", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["s7", "s3"]))
    past = ir.Value(name="past", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["s7", "s9"]))
    nodes = [ir.node("Identity", [ids]), ir.node("Identity", [ids]), ir.node("Identity", [ids])]
    for node, formula in zip(nodes, ("s9 + s3", "s3 + s9", "2*s3 - s9 + 1"), strict=True):
        node.outputs[0].shape = ir.Shape(["s7", formula])
    model = ir.Model(ir.Graph([ids, past], [node.outputs[0] for node in nodes], nodes=nodes), ir_version=10)

    settle(model, {"ids": {0: "batch", 1: "sequence"}, "past": {1: "past_sequence"}}, {})

    shapes = [str(node.outputs[0].shape) for node in nodes]
    assert shapes[0] == shapes[1] == "[batch,past_sequence + sequence]"
    assert shapes[2] == "[batch,2*sequence - past_sequence + 1]"
