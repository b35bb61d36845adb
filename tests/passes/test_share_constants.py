"""Constants are shared if their bits are equal and the shared one is visible."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from passes.util import assert_same, graph_text, run_passes
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.passes.cleanup.share_constants import ShareConstants
from sardonyx.records.run import RewriteKind

SHARE = [ShareConstants()]


def model_with(tensors: list[onnx.TensorProto], op: str = "Identity") -> onnx.ModelProto:
    """Every constant is read by its own node, and every result is an output."""
    nodes = [helper.make_node(op, [tensor.name], [f"y_{tensor.name}"]) for tensor in tensors]
    outputs = [helper.make_tensor_value_info(f"y_{t.name}", t.data_type, list(t.dims)) for t in tensors]
    graph = helper.make_graph(nodes, "g", [], outputs, tensors)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def floats(name: str, *bits: int) -> onnx.TensorProto:
    return helper.make_tensor(name, TensorProto.FLOAT, [len(bits)], struct.pack(f"<{len(bits)}I", *bits), raw=True)


def test_equal_constants_become_one_with_an_event() -> None:
    text = graph_text("""agraph (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 2.0}, float[2] v = {1.0, 2.0}, float[2] u = {1.0, 3.0}>
        { a = Mul(x, w)  b = Add(a, v)  y = Add(b, u) }""")
    model, log = run_passes(text, SHARE)
    assert list(model.graph.initializers) == ["w", "u"]
    assert [event.kind for event in log.events] == [RewriteKind.SHARE]
    assert_same(text, model)


@pytest.mark.parametrize(
    ("one", "other"),
    [(0x00000000, 0x80000000), (0x7FC00000, 0x7FC00001), (0x7FC00000, 0xFFC00000)],
    ids=["signed zeros", "NaN payloads", "signed NaNs"],
)
def test_constants_with_different_bits_stay_separate(one: int, other: int) -> None:
    model, log = run_passes(model_with([floats("a", one), floats("b", other), floats("c", one)]), SHARE)
    assert list(model.graph.initializers) == ["a", "b"]
    assert len(log.events) == 1


def test_type_and_shape_count() -> None:
    zeros = np.zeros(4, np.float32)
    tensors = [
        numpy_helper.from_array(zeros, "a"),
        numpy_helper.from_array(zeros.reshape(2, 2), "b"),
        numpy_helper.from_array(zeros.astype(np.int32), "c"),
        numpy_helper.from_array(zeros.astype(np.float64)[:2], "d"),
    ]
    model, log = run_passes(model_with(tensors), SHARE)
    assert len(model.graph.initializers) == 4
    assert not log.events


@pytest.mark.parametrize(
    "kind", [TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.INT4, TensorProto.BOOL, TensorProto.FLOAT16]
)
def test_every_type_is_shared(kind: int) -> None:
    pair = [helper.make_tensor(name, kind, [4], [0, 1, 1, 0]) for name in "ab"]
    model, _ = run_passes(model_with([*pair, helper.make_tensor("c", kind, [4], [0, 1, 1, 1])]), SHARE)
    assert list(model.graph.initializers) == ["a", "c"]


def test_strings_are_shared_by_content() -> None:
    tensors = [
        TensorProto(name=name, data_type=TensorProto.STRING, dims=[2], string_data=texts)
        for name, texts in (("a", [b"x", b"yz"]), ("b", [b"xy", b"z"]), ("c", [b"x", b"yz"]))
    ]
    model, _ = run_passes(model_with(tensors), SHARE)
    assert list(model.graph.initializers) == ["a", "b"]


def test_inputs_with_defaults_and_outputs_stay() -> None:
    text = graph_text("""agraph (float[2] x, float[2] w) => (float[2] y, float[2] v)
        <float[2] w = {1.0, 2.0}, float[2] v = {1.0, 2.0}, float[2] u = {1.0, 2.0}>
        { a = Mul(x, w)  y = Add(a, u) }""")
    model, log = run_passes(text, SHARE)
    assert list(model.graph.initializers) == ["w", "v", "u"]
    assert not log.events


def test_a_body_reads_the_equal_constant_around_it() -> None:
    text = graph_text("""agraph (float[2] x, bool c) => (float[2] y) <float[2] w = {1.0, 2.0}> {
        a = Mul(x, w)
        y = If (c) <then_branch = t () => (float[2] p) <float[2] mine = {1.0, 2.0}> { p = Mul(a, mine) },
                    else_branch = e () => (float[2] q) <float[2] other = {1.0, 2.0}> { q = Add(a, other) }>
    }""")
    model, log = run_passes(text, SHARE)
    assert len(log.events) == 2
    assert_same(text, model)


def test_constants_of_sibling_bodies_are_not_shared() -> None:
    text = graph_text("""agraph (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] p) <float[2] mine = {1.0, 2.0}> { p = Mul(x, mine) },
                    else_branch = e () => (float[2] q) <float[2] other = {1.0, 2.0}> { q = Add(x, other) }>
    }""")
    _, log = run_passes(text, SHARE)
    assert not log.events


def test_a_constant_is_not_shared_with_a_body_that_shadows_its_name() -> None:
    text = graph_text("""agraph (float[2] x, bool c) => (float[2] y) <float[2] w = {1.0, 2.0}> {
        a = Mul(x, w)
        y = If (c) <then_branch = t () => (float[2] p) <float[2] mine = {1.0, 2.0}> { w = Neg(a)  p = Mul(w, mine) },
                    else_branch = e () => (float[2] q) { q = Identity(a) }>
    }""")
    model = io.from_proto(onnx.parser.parse_model(text))  # the checker forbids such names, but runtimes accept them
    facts = Facts(model)
    assert [event.root for event in Rewriter(facts, SHARE).run().events] == ["mine"]
    _, inner, _ = facts.scopes
    assert [value.name for value in inner[1].inputs if value is not None] == ["w_1", "w"]


def _large(path: Path, arrays: dict[str, np.ndarray]) -> ir.Model:
    proto = model_with([numpy_helper.from_array(array, name) for name, array in arrays.items()])
    onnx.save(proto, path)
    return io.load(path)


def test_large_constants_are_compared_in_the_file(tmp_path: Path) -> None:
    one = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    late = one.copy()
    late[70_001] += 1  # in none of the samples
    model = _large(tmp_path / "m.onnx", {"a": one, "b": late, "c": one})
    Rewriter(Facts(model), SHARE).run()
    assert list(model.graph.initializers) == ["a", "b"]


@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=2), min_size=1, max_size=6))
def test_one_constant_remains_for_each_different_value(rows: list[list[int]]) -> None:
    tensors = [numpy_helper.from_array(np.array(row, np.int64), f"t{index}") for index, row in enumerate(rows)]
    proto = model_with(tensors)
    model, _ = run_passes(proto, SHARE)
    assert len(model.graph.initializers) == len({tuple(row) for row in rows})
    assert_same(proto, model)
