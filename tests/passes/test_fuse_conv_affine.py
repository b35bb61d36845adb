"""Constants per channel are fused into the convolution before them; other constants are not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from passes.util import assert_same, op_types, reasons, run_passes
from sardonyx.passes.products.fuse_conv_affine import FuseConvAffine

FUSE = [FuseConvAffine()]


def network(
    op: str,
    shape: tuple[int, ...],
    *,
    conv: str = "Conv",
    constant_first: bool = False,
    bias: bool = False,
    kind: str = "float32",
    channels: int = 4,
) -> onnx.ModelProto:
    """A convolution with two groups, then an operator with a constant."""
    rng = np.random.default_rng(3)
    weight = (channels, 2, 3, 3) if conv == "Conv" else (4, channels // 2, 3, 3)
    arrays = {"w": rng.standard_normal(weight), "c": rng.uniform(0.5, 2.0, shape) * rng.choice([-1, 1], shape)}
    if bias:
        arrays["b"] = rng.standard_normal(channels)
    operands = ["c", "a"] if constant_first else ["a", "c"]
    nodes = [
        helper.make_node(conv, ["x", "w", *(["b"] if bias else [])], ["a"], group=2, pads=[1, 1, 1, 1]),
        helper.make_node(op, operands, ["y"]),
    ]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    values = [
        helper.make_tensor_value_info("x", element, ["N", 4, 4, 4]),
        helper.make_tensor_value_info("y", element, None),
    ]
    tensors = [numpy_helper.from_array(np.asarray(array).astype(kind), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    proto = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    return onnx.shape_inference.infer_shapes(proto)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1), (4, 1, 1), (1, 4, 1, 1)])
@pytest.mark.parametrize(
    ("op", "constant_first"),
    [("Mul", False), ("Mul", True), ("Add", False), ("Add", True), ("Sub", False), ("Sub", True), ("Div", False)],
)
@pytest.mark.parametrize("bias", [False, True])
def test_a_constant_per_channel_folds(op: str, constant_first: bool, shape: tuple[int, ...], bias: bool) -> None:
    proto = network(op, shape, constant_first=constant_first, bias=bias)
    model, _ = run_passes(proto, FUSE)
    assert op_types(model) == ["Conv"]
    assert_same(proto, model, exact=False)


@pytest.mark.parametrize("op", ["Mul", "Add", "Sub", "Div"])
def test_transposed_convolutions_fold_by_group(op: str) -> None:
    proto = network(op, (4, 1, 1), conv="ConvTranspose", bias=True)
    model, _ = run_passes(proto, FUSE)
    assert op_types(model) == ["ConvTranspose"]
    assert_same(proto, model, exact=False)


def test_precision_is_kept() -> None:
    proto = network("Mul", (4, 1, 1), kind="float64", bias=True)
    model, _ = run_passes(proto, FUSE)
    assert op_types(model) == ["Conv"]
    assert_same(proto, model, exact=False, rtol=1e-13)


@pytest.mark.parametrize(("groups", "reason"), [(1, None), (2, "a wrong bias"), (4, None)])
def test_half_precision(groups: int, reason: str | None) -> None:
    """On Arm the runtime adds the bias of the first group to all groups, unless each channel is a group."""
    proto = network("Mul", (4, 1, 1), kind="float16", bias=True)
    proto.graph.node[0].attribute[0].i = groups
    weight = np.random.default_rng(0).standard_normal((4, 4 // groups, 3, 3)).astype(np.float16)
    next(each for each in proto.graph.initializer if each.name == "w").CopyFrom(numpy_helper.from_array(weight, "w"))
    model, log = run_passes(proto, FUSE)
    assert op_types(model) == (["Conv"] if reason is None else ["Conv", "Mul"])
    assert reason is None or any(reason in each for each in reasons(log))
    assert_same(proto, model, exact=False, rtol=4e-3)


@pytest.mark.parametrize(
    "shape", [(4,), (4, 1), (1, 4), (4, 4), (2, 1, 1, 1), (1, 4, 1, 4), (1, 1, 1, 1, 1), (1, 4, 4, 1)]
)
def test_a_constant_that_varies_within_a_channel_stays(shape: tuple[int, ...]) -> None:
    proto = network("Add", shape)
    model, log = run_passes(proto, FUSE)
    assert op_types(model) == ["Conv", "Add"]
    assert reasons(log) == ["the constant varies within a channel"]


def test_a_constant_that_would_add_channels_stays() -> None:
    rng = np.random.default_rng(0)
    proto = network("Mul", (3, 1, 1), channels=2)
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "w")
    weight.CopyFrom(numpy_helper.from_array(rng.standard_normal((1, 4, 3, 3)).astype(np.float32), "w"))
    proto.graph.node[0].attribute[0].i = 1
    del proto.graph.value_info[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model, _ = run_passes(onnx.shape_inference.infer_shapes(proto), FUSE)
    assert op_types(model) == ["Conv", "Mul"]


def test_a_constant_divided_by_the_result_stays() -> None:
    model, _ = run_passes(network("Div", (1,), constant_first=True), FUSE)
    assert op_types(model) == ["Conv", "Div"]


def test_division_by_zero_stays() -> None:
    proto = network("Div", (4, 1, 1))
    constant = next(tensor for tensor in proto.graph.initializer if tensor.name == "c")
    constant.CopyFrom(numpy_helper.from_array(np.array([1, 0, 2, 3], np.float32).reshape(4, 1, 1), "c"))
    model, log = run_passes(proto, FUSE)
    assert op_types(model) == ["Conv", "Div"]
    assert reasons(log) == ["the constant gives no finite scale"]


def test_a_residual_is_not_a_constant() -> None:
    proto = network("Add", (4, 1, 1))
    proto.graph.node[1].input[1] = "x"
    model, log = run_passes(proto, FUSE)
    assert op_types(model) == ["Conv", "Add"]
    assert not log.refusals


def test_a_result_that_is_read_twice_stays() -> None:
    """As in a decomposed hard swish: the result of the convolution is read before and after the addition."""
    proto = network("Add", ())
    proto.graph.node[1].output[0] = "s"
    proto.graph.node.append(helper.make_node("Mul", ["s", "a"], ["y"]))
    model, log = run_passes(proto, FUSE)
    assert op_types(model) == ["Conv", "Add", "Mul"]
    assert reasons(log) == ["the value before it is also used elsewhere"]


def test_an_overridable_constant_stays() -> None:
    proto = network("Add", (4, 1, 1))
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [4, 1, 1]))
    model, _ = run_passes(proto, FUSE)
    assert op_types(model) == ["Conv", "Add"]


def test_arithmetic_before_a_convolution_stays() -> None:
    proto = network("Add", (4, 1, 1))
    proto.graph.node[0].input[0], proto.graph.node[0].output[0] = "s", "y"
    proto.graph.node[1].input[0], proto.graph.node[1].output[0] = "x", "s"
    nodes = [proto.graph.node[1], proto.graph.node[0]]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    del proto.graph.value_info[:]
    model, log = run_passes(proto, FUSE)
    assert op_types(model) == ["Add", "Conv"]
    assert not log.events


def test_a_whole_chain_folds() -> None:
    proto = network("Mul", (4, 1, 1), bias=True)
    proto.graph.node[1].output[0] = "m"
    proto.graph.node.extend([helper.make_node("Sub", ["c", "m"], ["s"]), helper.make_node("Div", ["s", "c"], ["y"])])
    model, _ = run_passes(proto, FUSE)
    assert op_types(model) == ["Conv"]
    assert_same(proto, model, exact=False)
