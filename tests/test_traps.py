"""Cases that other optimizers got wrong, through the whole pipeline: verified, no rollback, same interface."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.ir import io
from sardonyx.verbs.optimize.pipeline import Optimized, optimize

HEAD = '<ir_version: 10, opset_import: ["" : 18]>'
CONV = "float[1, 1, 1, 1] w = {2.0}, float[1] s = {3.0}, float[1] b = {0.5}, float[1] m = {0.25}, float[1] v = {1.5}"

VERIFIED = {
    "two convolutions share a weight and only one is normalised": f"""
        g (float[1, 1, H, W] x) => (float[1, 1, H, W] p, float[1, 1, H, W] q) <{CONV}> {{
            a = Conv(x, w)  p = BatchNormalization(a, s, b, m, v)  q = Conv(p, w)
        }}""",
    "a convolution is read before and after its normalisation": f"""
        g (float[1, 1, H, W] x) => (float[1, 1, H, W] y) <{CONV}> {{
            a = Conv(x, w)  n = BatchNormalization(a, s, b, m, v)  y = Add(n, a)
        }}""",
    "a convolution that is normalised is also an output": f"""
        g (float[1, 1, H, W] x) => (float[1, 1, H, W] a, float[1, 1, H, W] y) <{CONV}> {{
            a = Conv(x, w)  y = BatchNormalization(a, s, b, m, v)
        }}""",
    "a normalisation in training": f"""
        g (float[2, 1, H, W] x) => (float[2, 1, H, W] y, float[1] rm, float[1] rv) <{CONV}> {{
            a = Conv(x, w)  y, rm, rv = BatchNormalization <training_mode = 1> (a, s, b, m, v)
        }}""",
    "the second of two reshapes copies a dim of the first": """
        g (float[4, 2, 8] x) => (float[16, 2, 2] y) <int64[3] p = {16, 2, 2}, int64[3] q = {0, 2, -1}> {
            a = Reshape(x, p)  y = Reshape(a, q)
        }""",
    "a reshape in the middle is an output": """
        g (float[N, 6] x) => (float[M] a, float[K, 2] y) <int64[1] p = {-1}, int64[2] q = {-1, 2}> {
            a = Reshape(x, p)  y = Reshape(a, q)
        }""",
    "one value is two outputs under two names": """
        g (float[N] x) => (float[N] a, float[N] b) { a = Relu(x)  b = Identity(a) }""",
    "an input is an output": "g (float[N] x, float[N] z) => (float[N] y) { y = Identity(x) }",
    "zero padding before a maximum of negative numbers": """
        g (float[1, 1, 6, 6] x) => (float[1, 1, 4, 4] y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}> {
            n = Abs(x)  a = Neg(n)  b = Pad(a, p)  y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
        }""",
    "an optional output is skipped by one twin": """
        g (float[1, 1, 6, 6] x) => (float[1, 1, 5, 5] y, int64[1, 1, 5, 5] i) {
            y = MaxPool <kernel_shape = [2, 2]> (x)  z, i = MaxPool <kernel_shape = [2, 2]> (x)
        }""",
    "an optional input is skipped by one twin": """
        g (float[N] x) => (float[N] y) <float lo = {0.0}, float hi = {1.0}> {
            a = Clip(x, lo)  b = Clip(x, , hi)  y = Sub(a, b)
        }""",
    "branches read outer values that nothing else reads": """
        g (bool c, float[N] x) => (float[N] y) {
            a = Neg(x)  w = Constant <value = float {2.0}> ()
            y = If (c) <
                then_branch = t () => (float[N] p) { i = Identity(a)  p = Mul(i, w) },
                else_branch = e () => (float[N] q) { q = Exp(a) }
            >
        }""",
    "a loop reads and carries values": """
        g (float[3] x) => (float[3] y) <int64 n = {3}, bool go = {1}> {
            k = Exp(x)
            y = Loop (n, go, x) <body = b (int64 i, bool c, float[3] s) => (bool d, float[3] t) {
                one = Constant <value = float {1.0}> ()
                d = Identity(c)  m = Mul(s, one)  t = Add(m, k)
            }>
        }""",
    "a scan reads an outer value": """
        g (float[2] s, float[4, 2] x) => (float[2] t, float[4, 2] y) {
            k = Exp(s)
            t, y = Scan <num_scan_inputs = 1, body = b (float[2] a, float[2] e) => (float[2] c, float[2] z) {
                i = Identity(a)  c = Add(i, e)  z = Mul(c, k)
            }> (s, x)
        }""",
    "the shape of a part of the dims": """
        g (float[A, 3, 4] x) => (int64[1] y, int64[K] z) {
            y = Shape <start = 1, end = 2> (x)  z = Shape <start = 2, end = 1> (x)
        }""",
    "a sum with a constant that enlarges it": """
        g (float[1, 3] x) => (float[2, 3] y) <float[2, 1] w = {0.0, 0.0}> { y = Add(x, w) }""",
    "minus zero is added": "g (float[N] x) => (float[N] y) <float w = {-0.0}> { a = Add(x, w)  y = Reciprocal(a) }",
}


def run(text: str, **options: Any) -> tuple[onnx.ModelProto, Optimized]:
    proto = onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEAD + text)
    return proto, optimize(proto, **options)


def interface(proto: onnx.ModelProto) -> list[str]:
    return [str(value) for value in (*proto.graph.input, *proto.graph.output)]


def result_of(one: Optimized) -> onnx.ModelProto:
    assert one.model is not None
    return io.to_proto(one.model)


@pytest.mark.parametrize("text", VERIFIED.values(), ids=VERIFIED)
@pytest.mark.parametrize("target", ["portable", "ort"])
def test_trap(text: str, target: str) -> None:
    proto, one = run(text, target=target)
    assert one.verdict is not None
    assert one.verdict.passed
    assert not one.rolled_back, "a pass is wrong here, and only verification undid it"
    result = result_of(one)
    assert interface(result) == interface(proto)
    if target == "portable":
        onnx.checker.check_model(result, full_check=True)


def ops(proto: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in proto.graph.node)


@pytest.mark.parametrize("op", ["Bernoulli(x)", "RandomNormalLike(x)", "RandomUniformLike(x)", "Dropout(x, r, t)"])
def test_equal_random_nodes_are_neither_merged_nor_folded(op: str) -> None:
    constants = "<float[3] x = {0.5, 0.5, 0.5}, float r = {0.5}, bool t = {1}>"
    text = f"{{ a = {op} b = {op} c = Sub(a, b) y = Add(c, z) w = Neg(z) }}"
    _, one = run(f"g (float[3] z) => (float[3] y, float[3] w) {constants} {text}")
    assert ops(result_of(one))[op.split("(")[0]] == 2


def test_nodes_out_of_order_are_sorted() -> None:
    proto = onnx.parser.parse_model(HEAD + "g (float[N] x) => (float[N] y) { a = Exp(x)  b = Identity(a)  y = Neg(b) }")
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))
    result = result_of(optimize(proto))
    onnx.checker.check_model(result)
    assert [node.op_type for node in result.graph.node] == ["Exp", "Neg"]


def test_nodes_without_names_stay_distinct() -> None:
    proto, one = run("g (float[N, 2] x) => (float[N, 2] y) { a = Identity(x) b = Relu(a) c = Identity(b) y = Neg(c) }")
    assert not any(node.name for node in proto.graph.node)
    assert ops(result_of(one)) == {"Relu": 1, "Neg": 1}


def test_functions_custom_domains_and_runtime_operators_are_preserved() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 18, "mine" : 1, "other" : 7, "com.microsoft" : 1]>
        g (float[N] x) => (float[N] y) {
            a = mine.twice(x)  b = other.Secret <power = 3> (a)  c = com.microsoft.Gelu(b)  d = Identity(c)  y = Neg(d)
        }
        <domain: "mine", opset_import: ["" : 17]> twice (x) => (z) { i = Identity(x)  z = Add(i, i) }
    """
    proto, one = run(text, verify="off")
    result = result_of(one)
    assert [(node.domain, node.op_type) for node in result.graph.node] == [
        ("mine", "twice"),
        ("other", "Secret"),
        ("com.microsoft", "Gelu"),
        ("", "Neg"),
    ]
    assert result.graph.node[1].attribute[0].i == 3
    assert sorted(map(str, result.opset_import)) == sorted(map(str, proto.opset_import))
    (function,) = result.functions
    assert function.opset_import[0].version == 17
    assert [node.op_type for node in function.node] == ["Add"]


def test_an_overridable_initializer_is_no_constant() -> None:
    text = "g (float[N] x, float[1] w = {1.0}) => (float[N] y) { a = Mul(x, w)  b = Sqrt(w)  y = Add(a, b) }"
    proto, one = run(text)
    result = result_of(one)
    assert ops(result) == ops(proto)
    assert interface(result) == interface(proto)
    assert [tensor.name for tensor in result.graph.initializer] == ["w"]


def test_quantized_weights_stay_quantized() -> None:
    weights = np.arange(-8, 8, dtype=np.int8).reshape(4, 4)
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [
            helper.make_tensor("q", TensorProto.INT4, [4, 4], weights),
            numpy_helper.from_array(np.array(0.5, np.float32), "s"),
        ],
    )
    proto = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    one = optimize(proto)
    assert ops(result_of(one)) == ops(proto)
    assert {tensor.data_type for tensor in result_of(one).graph.initializer} == {TensorProto.INT4, TensorProto.FLOAT}


def test_a_model_of_a_foreign_domain_alone_is_preserved() -> None:
    node = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])],
    )
    proto = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("ai.onnx.ml", 3)])
    one = optimize(proto)
    assert one.verdict is not None
    assert one.verdict.passed
    assert result_of(one).opset_import == proto.opset_import
