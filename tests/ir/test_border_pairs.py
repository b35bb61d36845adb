"""Which border values of two models correspond."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from sardonyx.ir.module_region import Flow
from sardonyx.ir.origins import tagged
from sardonyx.verbs.locate.module_search import pair_borders


def test_a_mask_is_paired_although_another_input_of_its_reader_is_gone() -> None:
    """Its reader has two inputs without an equal name in one model, one in the other: their modules tell them apart."""
    first, second = flow("mask", "angle"), flow("hidden", None)
    (one,), (other,) = first.outputs, second.outputs
    pairs, _ = pair_borders(first, second, [(one, other)])
    assert ("/model/mask_out", "/model/hidden_out") in [
        (pair.first.name if pair.first is not None else "", pair.second.name) for pair in pairs
    ]


def flow(mask: str, angle: str | None) -> Flow:
    nodes = [helper.make_node("Neg", ["x"], [f"/model/{mask}_out"], f"/model/{mask}")]
    read = f"/model/{mask}_out"
    if angle is not None:
        nodes.append(helper.make_node("Cos", ["x"], [f"/model/rotary/{angle}_out"], f"/model/rotary/{angle}"))
        nodes.append(
            helper.make_node("Mul", [read, nodes[-1].output[0]], ["/model/attention/m"], "/model/attention/Mul")
        )
        read = nodes[-1].output[0]
    nodes.append(helper.make_node("Add", [read, read], ["y"], "/model/attention/Add"))
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    return Flow(tagged(model).model)
