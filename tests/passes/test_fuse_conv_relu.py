"""An activation is fused into its convolution exactly on the ort target, and reported on the portable one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from passes.util import assert_same, op_types, reasons, run_passes
from sardonyx.passes.ort.fuse_conv_relu import FuseConvRelu

FUSE = [FuseConvRelu()]
NEEDS_ORT = "needs the ort target's FusedConv"


def network(
    op: str, *, kind: int = TensorProto.FLOAT, opset: int = 18, bounds: list[str] | None = None, **attributes: Any
) -> onnx.ModelProto:
    """A strided convolution with groups, then an activation."""
    rng = np.random.default_rng(5)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    arrays = {"w": rng.standard_normal((6, 2, 3, 3)), "b": rng.standard_normal(6), "low": -0.5, "high": 0.75}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], group=2, pads=[1, 0, 1, 0], strides=[2, 1]),
        helper.make_node(op, ["a", *(bounds or [])], ["y"], **attributes),
    ]
    values = [helper.make_tensor_value_info("x", kind, ["N", 4, 7, 9]), helper.make_tensor_value_info("y", kind, None)]
    tensors = [numpy_helper.from_array(np.asarray(array).astype(dtype), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    proto = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    return onnx.shape_inference.infer_shapes(proto)


CASES = {
    "relu": network("Relu"),
    "leaky relu": network("LeakyRelu", alpha=0.2),
    "leaky relu by default": network("LeakyRelu"),
    "sigmoid": network("Sigmoid"),
    "tanh": network("Tanh"),
    "hard sigmoid": network("HardSigmoid", alpha=0.25, beta=0.4),
    "hard sigmoid by default": network("HardSigmoid"),
    "clip": network("Clip", bounds=["low", "high"]),
    "clip below": network("Clip", bounds=["low"]),
    "clip above": network("Clip", bounds=["", "high"]),
    "clip nothing": network("Clip"),
    "old clip": network("Clip", opset=9, min=-0.25, max=0.5),
}


@pytest.mark.parametrize("case", CASES)
def test_it_fuses_bit_for_bit(case: str) -> None:
    model, _ = run_passes(CASES[case], FUSE, target="ort")
    assert op_types(model) == ["FusedConv"]
    assert model.opset_imports["com.microsoft"] == 1
    assert_same(CASES[case], model)


@pytest.mark.parametrize("case", CASES)
def test_the_portable_target_only_reports_it(case: str) -> None:
    model, log = run_passes(CASES[case], FUSE)
    assert op_types(model)[0] == "Conv"
    assert reasons(log) == [NEEDS_ORT]
    assert "com.microsoft" not in model.opset_imports


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_other_precisions_have_no_kernel(kind: int) -> None:
    model, log = run_passes(network("Relu", kind=kind), FUSE, target="ort")
    assert op_types(model) == ["Conv", "Relu"]
    assert not log.events


def test_bounds_that_are_not_constant_stay() -> None:
    proto = network("Clip", bounds=["low", "high"])
    proto.graph.input.append(helper.make_tensor_value_info("low", TensorProto.FLOAT, []))
    model, _ = run_passes(proto, FUSE, target="ort")
    assert op_types(model) == ["Conv", "Clip"]


@pytest.mark.parametrize("reader", ["node", "output", "body"])
def test_a_result_needed_elsewhere_stays(reader: str) -> None:
    proto = network("Relu")
    made = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    if reader == "output":
        proto.graph.output.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, None))
    elif reader == "node":
        proto.graph.node.append(helper.make_node("Neg", ["a"], ["z"]))
        proto.graph.output.append(made)
    else:
        inner = helper.make_tensor_value_info("p", TensorProto.FLOAT, None)
        body = helper.make_graph([helper.make_node("Neg", ["a"], ["p"])], "body", [], [inner])
        proto.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body))
        proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
        proto.graph.output.append(made)
    model, log = run_passes(onnx.shape_inference.infer_shapes(proto), FUSE, target="ort")
    assert op_types(model)[:2] == ["Conv", "Relu"]
    assert reasons(log) == ["the value before it is also used elsewhere"]


def test_a_body_imports_the_operator_set_too() -> None:
    proto = network("Relu")
    branch = onnx.GraphProto.FromString(proto.graph.SerializeToString())
    del branch.input[:]
    node = helper.make_node("If", ["c"], ["out"], then_branch=branch, else_branch=branch)
    inputs = [*proto.graph.input, helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    made = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    proto.graph.CopyFrom(helper.make_graph([node], "g", inputs, [made]))
    proto = onnx.shape_inference.infer_shapes(proto)
    model, log = run_passes(proto, FUSE, target="ort")
    assert len(log.events) == 2
    assert model.opset_imports["com.microsoft"] == 1
    assert_same(proto, model)
