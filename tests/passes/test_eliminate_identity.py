"""Identity and Dropout are removed unless a name, a mask or training needs them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from passes.util import assert_same, graph_text, op_types, parse, reasons, run_passes
from sardonyx.passes.cleanup.eliminate_identity import EliminateIdentity

PASSES = (EliminateIdentity(),)


def test_a_chain_between_input_and_node_is_removed() -> None:
    text = graph_text("agraph (float[N] x) => (float[N] y) { a = Identity(x)  b = Identity(a)  y = Neg(b) }")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg"]
    assert_same(text, model)


def test_the_producer_gets_the_graph_output_name() -> None:
    text = graph_text("agraph (float[N] x) => (float[N] y) { a = Neg(x)  y = Identity(a) }")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg"]
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert_same(text, model)


@pytest.mark.parametrize(
    "body",
    [
        "agraph (float[N] x) => (float[N] y) { y = Identity(x) }",
        "agraph (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1, -2}> { y = Identity(w)  z = Neg(x) }",
        "agraph (float[N] x) => (float[N] y, float[N] z) { y = Neg(x)  z = Identity(y) }",
    ],
    ids=["input-to-output", "initializer-to-output", "both-outputs"],
)
def test_output_names_are_never_lost(body: str) -> None:
    text = graph_text(body)
    model, log = run_passes(text, PASSES)
    assert "Identity" in op_types(model)
    assert any("lose its name" in reason for reason in reasons(log))
    assert_same(text, model)


def test_branch_that_returns_an_outer_value_keeps_its_identity() -> None:
    text = graph_text("""
        agraph (bool c, float[N] x) => (float[N] y) {
            a = Neg(x)
            y = If(c) <
                then_branch = t () => (float[N] r) { r = Identity(a) },
                else_branch = e () => (float[N] s) { b = Identity(a)  s = Abs(b) }
            >
        }""")
    model, _ = run_passes(text, PASSES)
    (branch,) = [node for node in model.graph if node.op_type == "If"]
    assert [node.op_type for node in branch.attributes["then_branch"].as_graph()] == ["Identity"]
    assert [node.op_type for node in branch.attributes["else_branch"].as_graph()] == ["Abs"]
    assert_same(text, model)


def test_identity_of_an_overridable_initializer_is_removed_and_the_value_stays_overridable() -> None:
    text = graph_text("agraph (float[2] x, float[2] w = {1, 2}) => (float[2] y) { a = Identity(w)  y = Mul(x, a) }")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Mul"]
    assert [value.name for value in model.graph.inputs] == ["x", "w"]
    assert_same(text, model)


def test_identity_inside_a_function_is_removed() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        agraph (float[N] x) => (float[N] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 18]> f (a) => (d) { b = Identity(a)  d = Neg(b) }"""
    model, _ = run_passes(text, PASSES)
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Neg"]
    assert_same(text, model)


DROPOUTS = [
    ("Dropout(a)", 18, True),
    ("Dropout <seed = 3> (a, r)", 18, True),
    ("Dropout(a, r, off)", 18, True),
    ("Dropout(a, r, on)", 18, False),
    ("Dropout(a, r, flag)", 18, False),
    ("Dropout <ratio = 0.5> (a)", 10, True),
    ("Dropout <ratio = 0.5, is_test = 1> (a)", 6, True),
    ("Dropout <ratio = 0.5> (a)", 6, False),
]


@pytest.mark.parametrize(("call", "opset", "goes"), DROPOUTS)
def test_dropout_is_removed_only_if_it_certainly_drops_nothing(call: str, opset: int, goes: bool) -> None:
    text = graph_text(
        "agraph (float[N] x, bool flag) => (float[N] y)"
        "<float r = {0.5}, bool on = {1}, bool off = {0}>"
        f"{{ a = Neg(x)  b = {call}  y = Abs(b) }}",
        opset,
    )
    model, log = run_passes(text, PASSES)
    assert ("Dropout" not in op_types(model)) == goes
    assert goes or "it may run in training mode" in reasons(log)
    if goes and opset >= 7:
        assert_same(text, model)


def test_dropout_whose_mask_is_read_stays() -> None:
    text = graph_text("agraph (float[N] x) => (float[N] y, bool[N] z) { y, m = Dropout(x)  z = Not(m) }")
    model, log = run_passes(text, PASSES)
    assert "Dropout" in op_types(model)
    assert "the mask of the Dropout is read" in reasons(log)


def test_the_source_model_is_not_changed() -> None:
    proto = parse(graph_text("agraph (float[N] x) => (float[N] y) { a = Identity(x)  y = Neg(a) }"))
    before = proto.SerializeToString()
    model, _ = run_passes(proto, PASSES)
    assert proto.SerializeToString() == before
    assert isinstance(model, ir.Model)
