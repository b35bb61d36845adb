"""Nodes are shared only if they certainly compute the same and have the same outputs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from passes.util import assert_same, graph_text, op_types, parse, reasons, run_passes
from sardonyx.ir import origins
from sardonyx.passes.cleanup.share_subexpressions import ShareSubexpressions
from sardonyx.records.run import RewriteKind

SHARE = [ShareSubexpressions()]


def built(nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], outputs: list[str]) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()]
    made = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "g", given, made)
    proto = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    inferred = onnx.shape_inference.infer_shapes(proto)
    for output, typed in zip(proto.graph.output, inferred.graph.output, strict=True):
        output.CopyFrom(typed)
    return proto


def test_nested_duplicates_are_removed_in_one_walk_and_the_remaining_node_inherits() -> None:
    text = graph_text("""agraph (float[N] x, float[N] z) => (float[N] y) {
        a = Exp(x)  b = Exp(x)  c = Add(a, z)  d = Add(z, b)  y = Mul(c, d) }""")
    proto = parse(text)
    for index, node in enumerate(proto.graph.node):
        node.name = f"/net/part.{index}/{node.op_type}"
    model, log = run_passes(proto, SHARE)
    assert op_types(model) == ["Exp", "Add", "Mul"]
    assert {event.kind for event in log.events} == {RewriteKind.SHARE}
    assert origins.origins(next(iter(model.graph))) == {"net.part.0", "net.part.1"}
    assert_same(text, model)


@pytest.mark.parametrize(
    "draw",
    [
        "RandomNormalLike(x)",
        "RandomUniformLike(x)",
        "RandomNormalLike <seed = 1.0> (x)",
        "Bernoulli(x)",
        "Multinomial(x)",
        "Dropout(x, half, yes)",
    ],
)
def test_random_nodes_stay_separate(draw: str) -> None:
    kind = "int32" if "Multinomial" in draw else "float"
    text = graph_text(f"""agraph (float[2, 4] x) => ({kind}[2, M] y) <float half = {{0.5}}, bool yes = {{1}}> {{
        a = {draw}  b = {draw}  y = Sub(a, b) }}""")
    model, log = run_passes(text, SHARE)
    assert len(model.graph) == 3
    assert not log.events


def test_an_omitted_output_is_not_shared() -> None:
    pool: dict[str, Any] = {"kernel_shape": [2, 2]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a", ""], **pool),
        helper.make_node("MaxPool", ["x"], ["b", "index"], **pool),
        helper.make_node("MaxPool", ["x"], ["c"], **pool),
        helper.make_node("Cast", ["index"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Sum", ["a", "b", "c", "f"], ["y"]),
    ]
    proto = built(nodes, {"x": [1, 1, 4, 4]}, ["y"])
    model, log = run_passes(proto, SHARE)
    assert Counter(op_types(model))["MaxPool"] == 2  # the first and the third are equal
    assert len(log.events) == 1
    assert_same(proto, model)


def test_an_omitted_input_counts_as_a_position() -> None:
    nodes = [
        helper.make_node("Clip", ["x", "m", ""], ["a"]),
        helper.make_node("Clip", ["x", "", "m"], ["b"]),
        helper.make_node("Clip", ["x", "m"], ["c"]),
        helper.make_node("Sum", ["a", "b", "c"], ["y"]),
    ]
    proto = built(nodes, {"x": [3], "m": []}, ["y"])
    model, log = run_passes(proto, SHARE)
    assert Counter(op_types(model))["Clip"] == 2
    assert len(log.events) == 1
    assert_same(proto, model)


def test_attributes_count_to_the_bit() -> None:
    text = graph_text("""agraph (float[N] x) => (float[N] y) {
        a = LeakyRelu <alpha = 0.0> (x)  b = LeakyRelu <alpha = -0.0> (x)
        c = Constant <value = float {0.0}> ()  d = Constant <value = float {-0.0}> ()
        e = Div(a, c)  f = Div(b, d)  y = Sub(e, f) }""")
    model, log = run_passes(text, SHARE)
    assert len(model.graph) == 7
    assert not log.events


def test_operand_order_counts() -> None:
    text = graph_text("agraph (float[N] x, float[N] z) => (float[N] y) { a = Div(x, z)  b = Div(z, x)  y = Add(a, b) }")
    model, _ = run_passes(text, SHARE)
    assert op_types(model) == ["Div", "Div", "Add"]


def test_two_equal_outputs_keep_their_names() -> None:
    text = graph_text("agraph (float[N] x) => (float[N] y, float[N] z) { y = Exp(x)  z = Exp(x) }")
    model, log = run_passes(text, SHARE)
    assert op_types(model) == ["Exp", "Exp"]
    assert reasons(log) == ["the graph's output would lose its name"]


def test_a_duplicate_that_is_an_output_passes_its_name_on() -> None:
    text = graph_text("agraph (float[N] x) => (float[N] y, float[N] z) { a = Exp(x)  y = Neg(a)  z = Exp(x) }")
    model, _ = run_passes(text, SHARE)
    assert sorted(op_types(model)) == ["Exp", "Neg"]
    assert_same(text, model)


def test_bodies_share_within_themselves_and_not_with_others() -> None:
    text = graph_text("""agraph (float[N] x, bool c) => (float[N] y) {
        a = Exp(x)
        z = If (c) <then_branch = t () => (float[N] p) { q = Exp(x)  r = Exp(x)  p = Add(q, r) },
                    else_branch = e () => (float[N] s) { s = Exp(x) }>
        y = Add(a, z)
    }""")
    model, log = run_passes(text, SHARE)
    assert len(log.events) == 1
    assert op_types(model) == ["Exp", "If", "Add"]
    assert_same(text, model)


def test_a_duplicate_that_a_body_reads_is_replaced_there() -> None:
    text = graph_text("""agraph (float[N] x, bool c) => (float[N] y) {
        a = Exp(x)  b = Exp(x)
        z = If (c) <then_branch = t () => (float[N] p) { p = Neg(b) },
                    else_branch = e () => (float[N] s) { s = Abs(b) }>
        y = Add(a, z)
    }""")
    model, _ = run_passes(text, SHARE)
    assert op_types(model) == ["Exp", "If", "Add"]
    assert_same(text, model)


def test_nodes_with_bodies_and_nodes_of_other_domains_stay() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 18, "my.ops" : 1]>
        agraph (float[N] x, bool c) => (float[N] y) {
            a = If (c) <then_branch = t () => (float[N] p) { p = Neg(x) },
                        else_branch = e () => (float[N] s) { s = Abs(x) }>
            b = If (c) <then_branch = u () => (float[N] q) { q = Neg(x) },
                        else_branch = f () => (float[N] r) { r = Abs(x) }>
            d = my.ops.Stateful(x)
            e = my.ops.Stateful(x)
            y = Sum(a, b, d, e)
        }
    """
    _, log = run_passes(text, SHARE)
    assert not log.events


def test_functions_share_inside_and_respect_their_parameters() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        agraph (float[N] x) => (float[N] y) { y = local.leaky <alpha = 0.5, beta = 0.25> (x) }
        <domain: "local", opset_import: ["" : 18]>
        leaky <alpha, beta> (a) => (b) {
            p = LeakyRelu <alpha: float = @alpha> (a)
            q = LeakyRelu <alpha: float = @alpha> (a)
            r = LeakyRelu <alpha: float = @beta> (a)
            s = Add(p, q)
            b = Add(s, r)
        }
    """
    model, log = run_passes(text, SHARE)
    assert len(log.events) == 1
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["LeakyRelu", "LeakyRelu", "Add", "Add"]
    assert_same(text, model)


def test_string_tensors_in_attributes_are_compared() -> None:
    def constant(name: str, text: bytes) -> onnx.NodeProto:
        value = TensorProto(name="value", data_type=TensorProto.STRING, dims=[1], string_data=[text])
        return helper.make_node("Constant", [], [name], value=value)

    nodes = [
        constant("a", b"x"),
        constant("b", b"x"),
        constant("c", b"y"),
        helper.make_node("Concat", ["a", "b", "c"], ["y"], axis=0),
    ]
    _, log = run_passes(built(nodes, {}, ["y"]), SHARE)
    assert len(log.events) == 1


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(["Add", "Sub", "Mul"]), st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_any_graph_keeps_its_function_and_has_no_duplicates_left(steps: list[tuple[str, int, int]]) -> None:
    made = ["x", "z"]
    lines: list[str] = []
    for index, (op, left, right) in enumerate(steps):
        lines.append(f"v{index} = {op}({made[left % len(made)]}, {made[right % len(made)]})")
        made.append(f"v{index}")
    body = "  ".join([*lines, f"y = Sum({', '.join(made)})"])
    text = graph_text(f"agraph (float[3] x, float[3] z) => (float[3] y) {{ {body} }}")
    model, _ = run_passes(text, SHARE)
    keys = [(node.op_type, *map(id, node.inputs)) for node in model.graph]
    assert len(keys) == len(set(keys))
    assert_same(text, model)
