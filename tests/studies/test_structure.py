"""The hash of a graph ignores names, node order and operand order of sums, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphs
from sardonyx.ir import io
from sardonyx.verbs.study.experiment import shape_of, values_of

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[2,3] x, float[2,3] z) => (float[2,3] y) <float[2,3] w = {1,2,3,4,5,6}> {
  a = Add(x, w)
  b = Sub(a, z)
  c = Relu(a)
  y = Mul(b, c)
}"""
CHANGED = {
    "sides of a difference": ("Sub(a, z)", "Sub(z, a)"),
    "an operator": ("Relu(a)", "Abs(a)"),
    "what is read": ("Relu(a)", "Relu(b)"),
    "an attribute": ("Relu(a)", "LeakyRelu<alpha = 0.5>(a)"),
    "computed twice": ("y = Mul(b, c)", "d = Relu(a)\n y = Mul(b, d)\n"),
}


def model(text: str = TEXT) -> ir.Model:
    return io.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("change", CHANGED)
def test_a_changed_graph_has_another_hash(change: str) -> None:
    changed = model(TEXT.replace(*CHANGED[change]))
    assert shape_of(changed) != shape_of(model())
    assert values_of(changed) != values_of(model())


def test_names_order_and_operand_order_of_a_sum_do_not_count() -> None:
    same = TEXT.replace("Add(x, w)", "Add(w, x)").replace(
        "b = Sub(a, z)\n  c = Relu(a)", "c = Relu(a)\n  b = Sub(a, z)"
    )
    for old, new in (("a", "first"), ("b", "second"), ("c", "third")):
        same = same.replace(f"{old} =", f"{new} =").replace(f"({old}", f"({new}").replace(f" {old})", f" {new})")
    assert same != TEXT
    assert shape_of(model(same)) == shape_of(model())
    assert values_of(model(same)) == values_of(model())


def test_values_of_weights_count_for_one_hash_only() -> None:
    other = model(TEXT.replace("5,6}", "5,7}"))
    assert shape_of(other) == shape_of(model())
    assert values_of(other) != values_of(model())


def test_an_explicit_default_does_not_count() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[2,3] x) => (float[m,n] y) <int64[2] to = {3,2}> { y = Reshape(x, to) }"""
    written = model(text.replace("Reshape(", "Reshape<allowzero = 0>("))
    assert shape_of(written) == shape_of(model(text))
    assert shape_of(model(text.replace("Reshape(", "Reshape<allowzero = 1>("))) != shape_of(written)


def test_small_integers_count_as_structure() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[2,3] x) => (float[m,n] y) <int64[2] to = {3,2}> { y = Reshape(x, to) }"""
    assert shape_of(model(text)) != shape_of(model(text.replace("{3,2}", "{1,6}")))


def test_bodies_of_control_flow_are_included() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (bool c, float[2] x) => (float[2] y) {
      y = If (c) <then_branch = a () => (float[2] t) { t = Relu(x) }, else_branch = b () => (float[2] e) { e = Abs(x) }>
    }"""
    assert shape_of(model(text)) != shape_of(model(text.replace("Abs(x)", "Neg(x)")))
    assert shape_of(model(text)) == shape_of(model(text.replace("Abs(x)", "Abs(x) ")))


@pytest.mark.slow
@given(graphs.models(), st.integers(0, 1000))
def test_renaming_everything_inside_changes_nothing(proto: onnx.ModelProto, seed: int) -> None:
    plain = io.from_proto(proto)
    outside = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    inside = {name for node in proto.graph.node for name in (*node.input, *node.output) if name} - outside
    fresh = [f"n{index}" for index in range(len(inside))]
    random.Random(seed).shuffle(fresh)
    names = dict(zip(sorted(inside), fresh, strict=True))
    for node in proto.graph.node:
        node.name = ""
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    del proto.graph.value_info[:]
    renamed = io.from_proto(proto)
    assert (shape_of(renamed), values_of(renamed)) == (shape_of(plain), values_of(plain))


def test_weights_in_a_file_and_in_memory_give_the_same_hash(tmp_path: Path) -> None:
    path = tmp_path / "weights.onnx"
    proto = onnx.parser.parse_model(TEXT.replace("float[2,3] w = {1,2,3,4,5,6}", ""))
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    inside = values_of(io.from_proto(proto))
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert values_of(io.load(path)) == inside
