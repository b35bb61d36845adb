"""Views of weights become weights without reading them, and nothing is stored twice beyond the budget."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Log, Rewriter
from sardonyx.ir.tensors import ComputedTensor
from sardonyx.passes.cleanup.eliminate_identity import EliminateIdentity
from sardonyx.passes.cleanup.eliminate_unused_initializers import EliminateUnusedInitializers
from sardonyx.passes.folding.fold_weight_views import MAX_STORED_TWICE_BYTES, FoldWeightViews
from sardonyx.passes.layout.fuse_gemm_transpose import FuseGemmTranspose

PASSES = (FoldWeightViews(),)
LARGE = MAX_STORED_TWICE_BYTES // 4 + 256  # floats


def weighted(nodes: list[onnx.NodeProto], weight: np.ndarray, *, rank: int = 2) -> onnx.ModelProto:
    """A model on x: [N, 4] with the weight w and the output y of that rank."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", weight.shape[-1]])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [f"D{axis}" for axis in range(rank)])
    graph = helper.make_graph(nodes, "agraph", [x], [y], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def large() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((LARGE // 4, 4)).astype(np.float32)


def test_a_transposed_weight_replaces_the_old_one() -> None:
    nodes = [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("MatMul", ["x", "t"], ["y"])]
    proto = weighted(nodes, large())
    model, log = run_passes(proto, (*PASSES, EliminateUnusedInitializers()))
    assert op_types(model) == ["MatMul"]
    (kept,) = model.graph.initializers.values()
    assert kept.const_value is not None
    assert kept.const_value.nbytes == LARGE * 4
    assert sum(tally.bytes for tally in log.tallies.values()) == 0
    assert_same(proto, model)


def test_weights_are_not_read() -> None:
    def forbidden() -> np.ndarray:
        raise AssertionError("the weight was read")

    lazy = ComputedTensor(ir.DataType.FLOAT, (LARGE // 4, 4), forbidden, name="w")
    weight = ir.Value(name="w", shape=ir.Shape(lazy.shape), type=ir.TensorType(lazy.dtype), const_value=lazy)
    x = ir.val("x", ir.DataType.FLOAT, ["N", 4])
    transpose = ir.node("Transpose", [weight])
    squeezed = ir.node("Unsqueeze", [transpose.outputs[0], ir.val("axes", const_value=ir.tensor([0], name="axes"))])
    product = ir.node("MatMul", [x, squeezed.outputs[0]])
    axes = squeezed.inputs[1]
    assert axes is not None
    graph = ir.Graph(
        [x], product.outputs, nodes=[transpose, squeezed, product], initializers=[weight, axes], opset_imports={"": 18}
    )
    Rewriter(Facts(ir.Model(graph, ir_version=10)), PASSES).run()
    assert [node.op_type for node in graph] == ["MatMul"]


def test_a_tied_weight_is_not_stored_twice() -> None:
    """The embedding reads the weight untransposed; the head transposes it."""
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("MatMul", ["x", "t"], ["a"]),
        helper.make_node("ReduceSum", ["w"], ["b"], keepdims=0),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    proto = weighted(nodes, large())
    model, log = run_passes(proto, PASSES)
    assert "Transpose" in op_types(model)
    assert "the weight is also read in its original layout, so folding would store it twice" in reasons(log)
    small = weighted(nodes, large()[:8])
    model, _ = run_passes(small, PASSES)
    assert "Transpose" not in op_types(model)
    assert_same(small, model)


def test_a_tied_weight_before_a_gemm_is_read_untransposed() -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("Gemm", ["x", "t"], ["a"]),
        helper.make_node("ReduceSum", ["w"], ["b"], keepdims=0),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    proto = weighted(nodes, large())
    model, _ = run_passes(proto, (FuseGemmTranspose(), *PASSES))
    assert sorted(op_types(model)) == ["Add", "Gemm", "ReduceSum"]
    assert len(model.graph.initializers) == 1
    assert_same(proto, model, exact=False)


def test_transposes_of_one_weight_share_one_result() -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("Transpose", ["w"], ["u"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["a"]),
        helper.make_node("MatMul", ["x", "u"], ["b"]),
        helper.make_node("Sub", ["a", "b"], ["y"]),
    ]
    proto = weighted(nodes, large())
    model, _ = run_passes(proto, (*PASSES, EliminateUnusedInitializers()))
    assert op_types(model) == ["MatMul", "MatMul", "Sub"]
    assert len(model.graph.initializers) == 1
    assert_same(proto, model)


def test_transposes_of_one_weight_in_two_ways_stay_two() -> None:
    text = graph_text("""agraph (float[2, 2] x) => (float[2, 2, 2] y) <float[2, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
        t = Transpose(w)  u = Transpose <perm = [1, 0, 2]> (w)  a = MatMul(x, t)  b = MatMul(x, u)  y = Sub(a, b) }""")
    model, _ = run_passes(text, PASSES)
    assert "Transpose" not in op_types(model)
    assert_same(text, model)


@pytest.mark.parametrize(
    ("op", "numbers", "shape"),
    [
        ("Reshape", [2, -1, 4], (2, 512, 4)),
        ("Reshape", [0, 2, 2], (1024, 2, 2)),
        ("Unsqueeze", [-1], (1024, 4, 1)),
        ("Squeeze", [1], None),
        ("Flatten", None, None),
    ],
)
def test_views_are_other_shapes_of_the_same_bytes(
    op: str, numbers: list[int] | None, shape: tuple[int, ...] | None
) -> None:
    weight = np.random.default_rng(0).standard_normal((1024, 1, 4) if shape is None else (1024, 4)).astype(np.float32)
    extra = ["n"] if numbers is not None else []
    nodes = [helper.make_node(op, ["w", *extra], ["v"]), helper.make_node("Neg", ["v"], ["y"])]
    proto = weighted(nodes, weight, rank=len(shape or (1024, 4)))
    if numbers is not None:
        proto.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), "n"))
    model, _ = run_passes(proto, PASSES)
    assert op_types(model) == ["Neg"]
    source = next(iter(model.graph)).inputs[0]
    assert source is not None
    assert source.const_value is not None
    assert source.const_value.tobytes() == weight.tobytes()
    assert tuple(source.const_value.shape) == (shape or (1024, 4))
    assert_same(proto, model)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT4, TensorProto.BOOL])
def test_every_type_is_transposed_correctly(dtype: int) -> None:
    values = [index % 2 for index in range(15)]
    weight = helper.make_tensor("w", dtype, [3, 5], values)
    nodes = [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("Identity", ["t"], ["y"])]
    y = helper.make_tensor_value_info("y", dtype, [5, 3])
    graph = helper.make_graph(nodes, "agraph", [], [y], [weight])
    proto = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    model, _ = run_passes(proto, PASSES)
    made = next(iter(model.graph)).inputs[0]
    assert made is not None
    assert made.const_value is not None
    wanted = np.array(values).reshape(3, 5).T
    np.testing.assert_array_equal(made.const_value.numpy().astype(np.int64), wanted)
    after = ir.to_proto(model).graph.initializer
    again = ir.from_proto(next(tensor for tensor in after if tensor.name == made.name))
    np.testing.assert_array_equal(again.numpy().astype(np.int64), wanted)


def test_an_overridable_weight_is_transposed_at_run_time() -> None:
    text = graph_text("""agraph (float[N, 2] x, float[3, 2] w = {1, 2, 3, 4, 5, 6}) => (float[N, 3] y) {
        t = Transpose(w)  y = MatMul(x, t) }""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Transpose", "MatMul"]


def test_a_weight_in_a_function_becomes_a_constant_node_there() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        agraph (float[N, 2] x) => (float[N, 2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 18]> f (a) => (d) {
            w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()  t = Transpose(w)  d = MatMul(a, t) }"""
    model, _ = run_passes(text, PASSES)
    (function,) = model.functions.values()
    assert sorted({node.op_type for node in function}) == ["Constant", "MatMul"]
    assert_same(text, model)


def test_a_weight_behind_identity_is_found() -> None:
    nodes = [
        helper.make_node("Identity", ["w"], ["i"]),
        helper.make_node("Transpose", ["i"], ["t"]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    proto = weighted(nodes, large())
    model, _ = run_passes(proto, (EliminateIdentity(), *PASSES))
    assert op_types(model) == ["MatMul"]


def test_a_transposed_weight_that_is_an_output_keeps_its_name() -> None:
    text = graph_text("agraph (float[1] x) => (float[2, 1] y) <float[1, 2] w = {1, 2}> { y = Transpose(w) }")
    log: Log
    model, log = run_passes(text, PASSES)
    assert op_types(model) == ["Transpose"]
    assert not log.events
