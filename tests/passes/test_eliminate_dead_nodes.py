"""Unused nodes are removed with everything computed only for them; uses in bodies count at any depth."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.cleanup.eliminate_dead_nodes import EliminateDeadNodes
from sardonyx.records.run import RewriteKind

DROP = [EliminateDeadNodes()]


def test_a_dead_chain_is_removed_in_one_walk() -> None:
    text = graph_text("agraph (float[N] x) => (float[N] y) { a = Neg(x)  b = Exp(a)  c = Sin(b)  y = Relu(x) }")
    model, log = run_passes(text, DROP)
    assert op_types(model) == ["Relu"]
    assert [event.kind for event in log.events] == [RewriteKind.DROP]
    assert [len(event.before) for event in log.events] == [3]
    assert_same(text, model)


def test_a_value_that_a_nested_body_reads_stays() -> None:
    text = graph_text("""agraph (float[N] x, bool c) => (float[N] y) {
        a = Neg(x)
        y = If (c) <
            then_branch = t () => (float[N] p) {
                p = If (c) <then_branch = tt () => (float[N] q) { q = Exp(a) },
                            else_branch = te () => (float[N] r) { r = Identity(x) }>
            },
            else_branch = e () => (float[N] s) { s = Identity(x) }
        >
    }""")
    model, log = run_passes(text, DROP)
    assert op_types(model) == ["Neg", "If"]
    assert not log.events


def test_producers_of_a_dead_node_of_a_body_are_removed_too() -> None:
    text = graph_text("""agraph (float[N] x, bool c) => (float[N] y) {
        a = Neg(x)
        y = If (c) <then_branch = t () => (float[N] p) { unread = Exp(a)  p = Abs(x) },
                    else_branch = e () => (float[N] s) { s = Identity(x) }>
    }""")
    model, _ = run_passes(text, DROP)
    assert op_types(model) == ["If"]
    assert_same(text, model)


def test_a_dead_if_releases_what_its_bodies_read() -> None:
    text = graph_text("""agraph (float[N] x, bool c) => (float[N] y) {
        a = Neg(x)
        unread = If (c) <then_branch = t () => (float[N] p) { p = Exp(a) },
                         else_branch = e () => (float[N] s) { s = Sin(a) }>
        y = Relu(x)
    }""")
    model, _ = run_passes(text, DROP)
    assert op_types(model) == ["Relu"]


def test_a_node_with_one_read_output_stays() -> None:
    text = graph_text("""agraph (float[4] x) => (int64[1] index) {
        k = Constant <value = int64[1] {1}> ()  top, index = TopK(x, k)
    }""")
    model, log = run_passes(text, DROP)
    assert op_types(model) == ["TopK"]
    assert not log.events


def test_an_unknown_operator_may_have_effects() -> None:
    nodes = [
        helper.make_node("Log", ["x"], ["seen"], domain="my.ops"),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my.ops", 1)]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    model, log = run_passes(helper.make_model(graph, ir_version=10, opset_imports=opsets), DROP)
    assert op_types(model) == ["Log", "Relu"]
    assert reasons(log) == ["an operator of an unknown operator set may have side effects"]


def test_a_dead_call_of_a_function_is_removed_and_functions_are_cleaned_inside() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        agraph (float[N] x) => (float[N] y) { unread = local.twice(x)  y = local.twice(x) }
        <domain: "local", opset_import: ["" : 18]>
        twice (a) => (b) { unread = Exp(a)  b = Add(a, a) }
    """
    model, _ = run_passes(text, DROP)
    assert op_types(model) == ["twice"]
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Add"]
    assert_same(text, model)


def test_nodes_without_names_are_removed() -> None:
    proto = onnx.parser.parse_model(graph_text("agraph (float[N] x) => (float[N] y) { a = Neg(x)  y = Relu(x) }"))
    for node in proto.graph.node:
        node.name = ""
    model, _ = run_passes(proto, DROP)
    assert op_types(model) == ["Relu"]
