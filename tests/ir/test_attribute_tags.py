"""Tags as node attributes: checker and runtime accept them on every node, and they are read back unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.ir import io, origins
from sardonyx.ir import origins as attribute_tags
from sardonyx.ir.scopes import scopes
from sardonyx.records import provenance as p
from sardonyx.runtime import Session

EVERYWHERE = """<ir_version: 10, opset_import: ["" : 18, "local" : 1, "com.microsoft" : 1]>
agraph (float[2,4] x, bool c) => (float[2,4] y) {
    k = Constant <value = float[1] {2.0}> ()
    l = Constant <value_float = 3.0> ()
    m = Constant <value_ints = [2, 4]> ()
    a = local.fn(x)
    g = com.microsoft.Gelu(a)
    b = If (c) <then_branch = t () => (float[2,4] q) { z = Constant <value_float = 3.0> ()  q = Mul(g, z) },
                else_branch = e () => (float[2,4] r) { r = Relu(g) }>
    d = Reshape(b, m)
    e = Mul(d, k)
    y = Add(e, l)
}
<domain: "local", opset_import: ["" : 18]>
fn (X) => (Y) { one = Constant <value_float = 1.0> ()  T = Neg(X)  Y = Add(T, one) }
"""


def with_attribute_tags(model: ir.Model) -> ir.Model:
    for node in nodes(model):
        node.metadata_props.update({p.MODULE_PATH: "net", p.SOURCE_MODULE: "/Net"})
    hierarchy = origins.attach(model)
    for node in nodes(model):
        attribute_tags.request(node)
    origins.write(model, hierarchy)
    return model


def nodes(model: ir.Model) -> list[ir.Node]:
    return [node for scope in scopes(model) for node in scope.graph]


def assert_loads(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    onnx.checker.check_model(proto, full_check=True)
    off, on = (Session(proto, optimize=optimize).run(feeds) for optimize in (False, True))
    for one, other in zip(off, on, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5)


@pytest.mark.parametrize("taken", [True, False])
def test_every_kind_of_node_may_have_them(taken: bool) -> None:
    model = with_attribute_tags(io.from_proto(onnx.parser.parse_model(EVERYWHERE)))
    proto = io.to_proto(model)
    for node in (*proto.graph.node, *proto.functions[0].node):
        tags = [attribute.name for attribute in node.attribute if attribute.name in attribute_tags.ATTRIBUTES]
        assert bool(tags) is (node.op_type != "Constant")  # many tools take its only attribute for the value
    assert_loads(proto, {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4), "c": np.array(taken)})


ACTIVATIONS = "Elu HardSigmoid LeakyRelu Relu Selu Sigmoid Softplus Softsign Tanh ThresholdedRelu Abs Exp Sqrt Erf"
BEFORE = {
    "gemm": "h = Gemm(x, w, b)",
    "product": "m = MatMul(x, w)  h = Add(m, b)",
    "reshaped": "g = Gemm(x, w, b)  s = Shape(g)  i = Identity(g)  h = Reshape(i, s)",
    "residual": "g = Gemm(x, w, b)  h = Add(g, x)",
    "other": "h = Neg(x)",
}


@pytest.mark.parametrize("before", list(BEFORE))
@pytest.mark.parametrize("op_type", ACTIVATIONS.split())
def test_the_runtime_may_fuse_any_activation_into_what_comes_before(op_type: str, before: str) -> None:
    weights = "float[4,4] w = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}, float[4] b = {1,2,3,4}"
    head = '<ir_version: 10, opset_import: ["" : 18]>'
    body = f"agraph (float[4,4] x) => (float[4,4] y) <{weights}> {{ {BEFORE[before]}  y = {op_type}(h) }}"
    model = with_attribute_tags(io.from_proto(onnx.parser.parse_model(f"{head}\n{body}")))
    proto = io.to_proto(model)
    assert_loads(proto, {"x": np.linspace(0.1, 1, 16, dtype=np.float32).reshape(4, 4)})
    bare = {
        node.op_type
        for node in proto.graph.node
        if not any(a.name in attribute_tags.ATTRIBUTES for a in node.attribute)
    }
    fused = before != "other" and op_type in ACTIVATIONS.split()[:10]
    assert bare == ({op_type} if fused else set())


def _model(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_attributes_are_read_if_the_metadata_was_dropped() -> None:
    tags: dict[str, Any] = {
        "__source_module": "/Net/Layer.0",
        "__module_path": "layers.0",
        "__call": "layers.0@1",
        "__how": "inherited",
    }
    listed: dict[str, Any] = {
        "__hierarchy_tags": ["/Net/Layer.0", "/Net/Layer.1"],
        "__module_paths": ["layers.0", "layers.1"],
    }
    model = io.from_proto(
        _model(
            [
                helper.make_node("Neg", ["x"], ["a"], **tags),
                helper.make_node("Abs", ["a"], ["b"], __source_module="/Net", __module_path="layers", **listed),
                helper.make_node("Exp", ["b"], ["y"], __source_module="/Other/Kind.3"),
            ]
        )
    )
    hierarchy = origins.attach(model)
    first, second, third = model.graph
    assert [set(origins.origins(node)) for node in model.graph] == [
        {"layers.0@1"},
        {"layers.0", "layers.1"},
        {"Other.Kind_3"},
    ]
    assert not any(name.startswith("__") for node in model.graph for name in node.attributes)
    assert (origins.how(first).value, origins.how(second).value) == ("inherited", "direct")
    assert {origins.evidence(node) for node in model.graph} == {p.Evidence.ATTRIBUTES}
    origins.write(model, hierarchy)
    assert first.attributes["__call"].as_string() == "layers.0@1"
    assert list(second.attributes["__module_paths"].as_strings()) == ["layers.0", "layers.1"]
    assert third.attributes["__source_module"].as_string() == "/Other/Kind.3"


def test_metadata_takes_precedence_over_attributes() -> None:
    model = io.from_proto(_model([helper.make_node("Neg", ["x"], ["y"], __source_module="/Old", __module_path="old")]))
    model.graph[0].metadata_props.update({p.MODULE_PATH: "new", p.SOURCE_MODULE: "/New"})
    origins.write(model, origins.attach(model))
    assert model.graph[0].attributes["__module_path"].as_string() == "new"


def test_equal_nodes_with_different_tags_are_shared() -> None:
    equal_nodes = [
        helper.make_node("Sin", ["x"], ["a"], __source_module="/A", __module_path="a"),
        helper.make_node("Sin", ["x"], ["b"], __source_module="/B", __module_path="b"),
        helper.make_node("Add", ["a", "b"], ["y"], __source_module="/C", __module_path="c"),
    ]
    result = sardonyx.optimize(_model(equal_nodes), only=["share-subexpressions"]).model
    assert result is not None
    sin, _ = result.graph
    assert list(sin.attributes["__module_paths"].as_strings()) == ["a", "b"]


@pytest.mark.parametrize(("name", "exporter"), [("bert", "dynamo"), ("cnn", "torchscript")])
def test_a_real_model_keeps_them_through_optimize(
    small_model: Callable[[str, str], Path], tmp_path: Path, name: str, exporter: str
) -> None:
    raw, tagged, small = small_model(name, exporter), tmp_path / "tagged.onnx", tmp_path / "small.onnx"
    adopted = sardonyx.adopt(raw, tagged, tag_attributes=True)
    assert adopted.attributes
    onnx.checker.check_model(tagged, full_check=True)
    run = sardonyx.optimize(tagged, small)
    assert run.status == "done"
    assert run.after.nodes == sardonyx.optimize(raw, verify="off").after.nodes
    onnx.checker.check_model(small, full_check=True)
    for path in (tagged, small):
        for optimize in (False, True):
            Session(path, optimize=optimize)
    for node in io.load(small).graph:
        if "__source_module" in node.attributes:
            for attribute, key in (("__source_module", p.SOURCE_MODULE), ("__module_path", p.MODULE_PATH)):
                assert node.attributes[attribute].as_string() == node.metadata_props[key]
        else:  # a constant, or one that the runtime would fuse into a product
            assert node.op_type in ("Constant", "Tanh", "Relu", "Sigmoid")
