"""Batch normalisation is fused into every linear operator, group and precision, at inference only."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from passes.util import assert_same, op_types, reasons, run_passes
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.passes.cleanup.eliminate_dead_nodes import EliminateDeadNodes
from sardonyx.passes.cleanup.eliminate_unused_initializers import EliminateUnusedInitializers
from sardonyx.passes.products.fuse_batch_norm import FuseBatchNorm

FUSE = [FuseBatchNorm(), EliminateDeadNodes(), EliminateUnusedInitializers()]
KINDS = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float64): TensorProto.DOUBLE,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(ml_dtypes.bfloat16): TensorProto.BFLOAT16,
}


def network(
    op: str,
    weight: tuple[int, ...],
    shape: list[Any],
    *,
    bias: tuple[int, ...] | None = None,
    channels: int | None = None,
    dtype: Any = np.float32,
    opset: int = 18,
    norm: dict[str, Any] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """x -> op -> BatchNormalization -> Relu, with random weights and statistics."""
    rng = np.random.default_rng(7)
    count = channels or weight[0]
    kind = KINDS[np.dtype(dtype)]
    arrays = {"w": rng.standard_normal(weight), "gamma": rng.standard_normal(count), "beta": rng.standard_normal(count)}
    arrays |= {"mean": rng.standard_normal(count), "var": rng.uniform(0.3, 3.0, count)}
    if bias is not None:
        arrays["b"] = rng.standard_normal(bias)
    inputs = ["x", "w", *(["b"] if bias is not None else [])]
    nodes = [
        helper.make_node(op, inputs, ["a"], **attributes),
        helper.make_node("BatchNormalization", ["a", "gamma", "beta", "mean", "var"], ["n"], **(norm or {})),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    given = [helper.make_tensor_value_info("x", kind, shape)]
    made = [helper.make_tensor_value_info("y", kind, None)]
    tensors = [numpy_helper.from_array(array.astype(dtype), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", given, made, tensors)
    proto = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])
    return onnx.shape_inference.infer_shapes(proto)


CASES = {
    "conv": network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6], pads=[1, 1, 1, 1]),
    "conv with bias": network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6], bias=(4,), strides=[2, 2], auto_pad="SAME_UPPER"),
    "grouped conv": network("Conv", (6, 2, 3, 3), ["N", 4, 6, 6], group=2),
    "depthwise conv": network("Conv", (4, 1, 3, 3), ["N", 4, 6, 6], group=4, dilations=[2, 2]),
    "conv 1d": network("Conv", (4, 3, 3), ["N", 3, 9]),
    "conv 3d": network("Conv", (4, 2, 2, 2, 2), ["N", 2, 4, 4, 4], bias=(4,)),
    "transposed conv": network("ConvTranspose", (3, 4, 3, 3), ["N", 3, 5, 5], channels=4, strides=[2, 2]),
    "grouped transposed conv": network(
        "ConvTranspose", (4, 3, 2, 2), ["N", 4, 5, 5], channels=6, group=2, bias=(6,), output_padding=[0, 0]
    ),
    "transposed conv 1d": network("ConvTranspose", (2, 5, 3), ["N", 2, 7], channels=5),
    "gemm": network("Gemm", (3, 4), ["N", 3], channels=4, bias=(4,)),
    "gemm with factors": network("Gemm", (4, 3), ["N", 3], bias=(1, 4), transB=1, alpha=0.5, beta=2.0),
    "gemm with a scalar bias": network("Gemm", (3, 4), ["N", 3], channels=4, bias=(), beta=0.25),
    "gemm without bias": network("Gemm", (3, 4), ["N", 3], channels=4, alpha=3.0),
    "gemm transposed": network("Gemm", (3, 4), [3, "N"], channels=4, bias=(4,), transA=1),
    "matmul": network("MatMul", (3, 4), ["N", 3], channels=4),
}


@pytest.mark.parametrize("case", CASES)
def test_it_folds_into(case: str) -> None:
    model, log = run_passes(CASES[case], FUSE)
    assert "BatchNormalization" not in op_types(model)
    assert len(op_types(model)) == 2, reasons(log)
    assert_same(CASES[case], model, exact=False)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-13), (np.float16, 4e-3)])
def test_it_keeps_the_precision(dtype: Any, rtol: float) -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6], bias=(4,), dtype=dtype)
    model, _ = run_passes(proto, FUSE)
    assert op_types(model) == ["Conv", "Relu"]
    assert {value.const_value.dtype.numpy() for value in model.graph.initializers.values() if value.const_value} == {
        np.dtype(dtype)
    }
    assert_same(proto, model, exact=False, rtol=rtol)


def test_bfloat16_is_folded_in_double_and_rounded_once() -> None:
    proto = network("Conv", (4, 3, 1, 1), ["N", 3, 2, 2], dtype=ml_dtypes.bfloat16, opset=22)
    model, _ = run_passes(proto, FUSE)
    arrays = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}
    scale = arrays["gamma"] / np.sqrt(arrays["var"] + np.float32(1e-5))
    weight = next(v.const_value for v in model.graph.initializers.values() if v.const_value and len(v.shape or ()) == 4)
    wanted = (arrays["w"] * scale.reshape(-1, 1, 1, 1)).astype(ml_dtypes.bfloat16)
    assert weight.numpy().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("opset", [7, 9, 13, 14, 15, 22])
def test_every_version_of_the_operator_folds(opset: int) -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6], opset=opset)
    model, _ = run_passes(proto, FUSE)
    assert op_types(model) == ["Conv", "Relu"]
    assert_same(proto, model, exact=False)


def test_epsilon_is_respected() -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6], norm={"epsilon": 0.5, "momentum": 0.1})
    model, _ = run_passes(proto, FUSE)
    assert op_types(model) == ["Conv", "Relu"]
    assert_same(proto, model, exact=False)


def refused(proto: onnx.ModelProto, reason: str) -> None:
    model, log = run_passes(onnx.shape_inference.infer_shapes(proto), FUSE)
    assert "BatchNormalization" in op_types(model)
    assert reason in reasons(log)
    assert not log.events


def test_training_mode_stays() -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6])
    proto.graph.node[1].attribute.append(helper.make_attribute("training_mode", 1))
    proto.graph.node[1].output.extend(["running_mean", "running_var"])
    refused(proto, "it is in training mode")


def test_training_mode_without_its_other_outputs_stays() -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6])
    proto.graph.node[1].attribute.append(helper.make_attribute("training_mode", 1))
    model = io.from_proto(proto)  # the checker requires those outputs, but files without them exist
    assert not Rewriter(Facts(model), FUSE).run().events


def test_training_mode_of_old_versions_is_recognized_by_the_outputs() -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6], opset=9)
    proto.graph.node[1].output.extend(["mean2", "var2", "saved_mean", "saved_var"])
    refused(proto, "it is in training mode")


def test_old_versions_per_position_stay() -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6], opset=7, norm={"spatial": 0})
    refused(proto, "it normalises every position separately")


def test_a_value_used_elsewhere_stays() -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6])
    proto.graph.node.append(helper.make_node("Neg", ["a"], ["z"]))
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    refused(proto, "the value before it is also used elsewhere")


def test_a_value_that_is_an_output_stays() -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6])
    proto.graph.output.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, None))
    refused(proto, "the value before it is also used elsewhere")


def test_a_value_that_a_body_reads_stays() -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6])
    made = helper.make_tensor_value_info("p", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Neg", ["a"], ["p"])], "body", [], [made])
    proto.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body))
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    refused(proto, "the value before it is also used elsewhere")


@pytest.mark.parametrize(
    ("name", "dims", "reason"),
    [
        ("w", [4, 3, 3, 3], "the weight before it is not a constant"),
        ("b", [4], "the bias before it is not a constant"),
        ("mean", [4], "its parameters are not constants"),
    ],
)
def test_operands_that_are_not_constant_stay(name: str, dims: list[int], reason: str) -> None:
    """This includes defaults that a caller may override."""
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6], bias=(4,))
    proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
    refused(proto, reason)


def test_a_gemm_bias_that_differs_by_row_stays() -> None:
    proto = network("Gemm", (3, 4), [5, 3], channels=4, bias=(5, 4))
    refused(proto, "the bias before it varies within a channel")


def test_a_gemm_bias_of_one_column_stays_even_if_its_size_fits() -> None:
    proto = network("Gemm", (3, 4), [4, 3], channels=4, bias=(4, 1))
    refused(proto, "the bias before it varies within a channel")


def test_a_product_with_more_axes_stays() -> None:
    """The channels of a normalisation are axis 1, those of a product its last one."""
    proto = network("MatMul", (3, 4), [2, 4, 3], channels=4)
    refused(proto, "no convolution or matrix product with a constant weight comes before it")


def test_statistics_without_a_finite_scale_stay() -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6], norm={"epsilon": 0.0})
    variance = next(tensor for tensor in proto.graph.initializer if tensor.name == "var")
    variance.CopyFrom(numpy_helper.from_array(np.array([1, 0, 1, 1], np.float32), "var"))
    refused(proto, "its statistics give no finite scale")


def test_a_shared_weight_is_unchanged_for_other_uses() -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a2"]),
        helper.make_node("BatchNormalization", ["a2", "beta", "gamma", "mean", "var"], ["y2"]),
        helper.make_node("Conv", ["x", "w"], ["y3"]),
    ]
    proto.graph.node.extend(nodes)
    proto.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y2", "y3"))
    proto = onnx.shape_inference.infer_shapes(proto)
    model, _ = run_passes(proto, FUSE)
    assert op_types(model).count("Conv") == 3
    assert "BatchNormalization" not in op_types(model)
    assert_same(proto, model, exact=False)


def test_the_old_weight_and_the_statistics_are_removed() -> None:
    proto = network("Conv", (4, 3, 3, 3), ["N", 3, 6, 6])
    model, log = run_passes(proto, FUSE)
    assert len(model.graph.initializers) == 2
    assert sum(tally.bytes for tally in log.tallies.values()) < 0


@pytest.mark.slow
@given(
    st.sampled_from(["Conv", "ConvTranspose"]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
)
def test_any_group_and_rank_keeps_the_function(
    op: str, groups: int, inputs: int, outputs: int, rank: int, has_bias: bool
) -> None:
    first, second = (groups * outputs, inputs) if op == "Conv" else (groups * inputs, outputs)
    proto = network(
        op,
        (first, second, *[2] * rank),
        [2, groups * inputs, *[3] * rank],
        channels=groups * outputs,
        bias=(groups * outputs,) if has_bias else None,
        group=groups,
    )
    model, _ = run_passes(proto, FUSE)
    assert op_types(model) == [op, "Relu"]
    assert_same(proto, model, exact=False)
