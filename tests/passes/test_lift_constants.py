"""Constant nodes of every form become initializers if the graph may contain some."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.passes.cleanup.lift_constants import LiftConstants

LIFT = [LiftConstants()]


@pytest.mark.parametrize(
    ("attribute", "kind", "expected"),
    [
        ("value = float[2] {1.5, 2.5}", "float[2]", np.array([1.5, 2.5], np.float32)),
        ("value_float = 1.5", "float", np.array(1.5, np.float32)),
        ("value_floats = [1.5, 2.5]", "float[2]", np.array([1.5, 2.5], np.float32)),
        ("value_int = 7", "int64", np.array(7, np.int64)),
        ("value_ints = [7, 8]", "int64[2]", np.array([7, 8], np.int64)),
    ],
)
def test_every_form_is_lifted(attribute: str, kind: str, expected: np.ndarray) -> None:
    text = graph_text(f"agraph ({kind} x) => ({kind} y) {{ c = Constant <{attribute}> ()  y = Add(x, c) }}")
    model, log = run_passes(text, LIFT)
    (value,) = model.graph.initializers.values()
    assert value.const_value is not None
    assert value.const_value.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(value.const_value.numpy(), expected)
    assert log.tallies["lift-constants"].constants == -1
    assert_same(text, model)


@pytest.mark.parametrize("attribute", ['value_string = "a"', 'value_strings = ["a"]', 'value = string[1] {"a"}'])
def test_strings_are_lifted(attribute: str) -> None:
    text = graph_text(f"agraph (string[1] x) => (bool[1] y) {{ c = Constant <{attribute}> ()  y = Equal(x, c) }}", 19)
    model, _ = run_passes(text, LIFT)
    assert len(model.graph.initializers) == 1
    assert len(model.graph) == 1


def test_an_output_keeps_its_node() -> None:
    text = graph_text("""agraph (float x) => (float y, float c) {
        c = Constant <value = float {1.0}> ()  y = Add(x, c) }""")
    model, log = run_passes(text, LIFT)
    assert len(model.graph) == 2
    assert reasons(log) == ["the graph's output would lose its name"]


def test_a_sparse_constant_and_a_parameter_keep_theirs() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        agraph (float x) => (float y) { y = local.f <k = 2.0> (x) }
        <domain: "local", opset_import: ["" : 18]>
        f <k> (a) => (b) { c = Constant <value_float: float = @k> ()  d = Constant <value_float = 1.0> ()
                           e = Add(a, c)  b = Add(e, d) }
    """
    model, log = run_passes(text, LIFT)
    assert not log.events
    assert_same(text, model)


def test_old_ir_versions_keep_theirs() -> None:
    text = """<ir_version: 3, opset_import: ["" : 8]>
        agraph (float x) => (float y) { c = Constant <value = float {1.0}> ()  y = Add(x, c) }"""
    model, log = run_passes(text, LIFT)
    assert not log.events
    assert len(model.graph) == 2


def test_bodies_are_lifted_too() -> None:
    text = graph_text("""agraph (float x, bool c) => (float y) {
        y = If (c) <then_branch = t () => (float p) { k = Constant <value_float = 2.0> ()  p = Mul(x, k) },
                    else_branch = e () => (float q) { q = Neg(x) }>
    }""")
    model, _ = run_passes(text, LIFT)
    assert op_types(model) == ["If"]
    assert [n.op_type for n in next(iter(model.graph)).attributes["then_branch"].as_graph()] == ["Mul"]
    assert_same(text, model)


def test_the_tensor_of_the_source_keeps_its_name() -> None:
    text = graph_text("agraph (float x) => (float y) { c = Constant <value = float {1.0}> ()  y = Add(x, c) }")
    model = ir.from_proto(onnx.parser.parse_model(text))
    tensor = next(iter(model.graph)).attributes["value"].as_tensor()
    name = tensor.name
    Rewriter(Facts(model), LIFT).run()
    assert tensor.name == name
