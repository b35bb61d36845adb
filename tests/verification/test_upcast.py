"""Half precision is compared in double precision: a weight off by half a percent fails, a correct rewrite passes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper, parser

from narrowing import present
from sardonyx import verify
from sardonyx.ir import io
from sardonyx.runtime import Session
from sardonyx.runtime.library import NoKernel
from sardonyx.verification.subject import Subject
from sardonyx.verification.upcast import new_constants, round_results, upcast
from verification.text_models import array

DEPTH, WIDTH = 8, 32


def deep(*, factor: float = 1.0, at: int = 3, fold: bool = False, dtype: type = np.float16) -> onnx.ModelProto:
    """Layers of (h @ w) * s, tanh, residual, norm; `factor` scales one weight, `fold` stores w * s."""
    rng = np.random.default_rng(0)
    kind = "float16" if dtype is np.float16 else "bfloat16"
    lines, stored, h = [], {}, "x"
    for layer in range(DEPTH):
        weight = rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH) * (factor if layer == at else 1.0)
        stored[f"w{layer}"] = (weight.astype(dtype).astype(np.float64) * (1.1 if fold else 1.0)).astype(dtype)
        product = f"m{layer} = MatMul ({h}, w{layer})"
        lines += [product] if fold else [f"n{layer} = MatMul ({h}, w{layer})", f"m{layer} = Mul (n{layer}, s)"]
        lines += [f"t{layer} = Tanh (m{layer})", f"a{layer} = Add ({h}, t{layer})"]
        lines += [f"h{layer} = LayerNormalization <axis = -1> (a{layer}, g)"]
        h = f"h{layer}"
    stored |= {"g": np.ones(WIDTH, dtype)} | ({} if fold else {"s": np.asarray(1.1, dtype)})
    body = "\n".join([*lines, f"y = Identity ({h})"])
    head = f'<ir_version: 9, opset_import: ["" : 18]> deep ({kind}[n, s, {WIDTH}] x) => ({kind}[n, s, {WIDTH}] y)'
    model = parser.parse_model(head + "{" + body + "}")
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    return model


@pytest.mark.parametrize("at", [0, 3, DEPTH - 1])
@pytest.mark.parametrize("factor", [1.005, 0.99])
def test_a_weight_half_a_percent_off_is_found(factor: float, at: int) -> None:
    verdict = verify(deep(), deep(factor=factor, at=at), seeds=(0,), trials=1)
    assert not verdict.passed
    assert any("in double precision" in failure for failure in verdict.failures)


@pytest.mark.slow
def test_a_folded_scale_passes_though_every_weight_is_rounded_again() -> None:
    verdict = verify(deep(), deep(fold=True))
    assert verdict.passed, verdict.failures
    assert not verify(deep(), deep(fold=True, factor=1.005)).passed


def test_only_what_the_inputs_reach_is_widened() -> None:
    """Values computed from constants keep their rounding, because a rewrite may have stored them."""
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    table (float16[n, 4] x) => (float16[n, 4] y, int64[2] size)
    {
        angle = Mul (position, rate)
        turned = Cos (angle)
        y = Mul (x, turned)
        size = Shape (x)
    }
    """
    model = parser.parse_model(text)
    values = {"position": np.full(4, 1000, np.float16), "rate": np.array([0.1, 0.3, 0.7, 1.1], np.float16)}
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in values.items())
    wide = upcast(io.from_proto(model))
    assert wide is not None
    x = np.ones((2, 4), np.float16)
    narrow_y, _ = Session(model).run({"x": x})
    wide_y, size = Subject(wide).open(Session).run({"x": x})
    assert array(wide_y).dtype == np.float32
    assert np.array_equal(array(narrow_y), array(wide_y).astype(np.float16))
    assert array(size).tolist() == [2, 4]


def test_in_double_precision_weights_are_cast_after_they_are_moved_and_before_all_other_nodes() -> None:
    """A table of embeddings is never widened as a whole, and the runtime casts a weight when it needs it."""
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    decoder (int64[n] ids) => (float[n, 6] y)
    {
        rows = Gather (table, ids)
        first = Transpose <perm = [1, 0]> (a)
        hidden = MatMul (rows, first)
        active = Tanh (hidden)
        second = Transpose <perm = [1, 0]> (table)
        y = MatMul (active, second)
    }
    """
    model, rng = parser.parse_model(text), np.random.default_rng(0)
    values = {"table": rng.standard_normal((6, 4), np.float32), "a": rng.standard_normal((4, 4), np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in values.items())
    wide = upcast(io.from_proto(model), constants="widen", to=ir.DataType.DOUBLE)
    assert wide is not None
    assert [node.op_type for node in wide.graph][:4] == ["Transpose", "Cast", "Transpose", "Cast"]
    casts = [node for node in wide.graph if node.op_type == "Cast"]
    assert {present(node.inputs[0]).name for node in casts} == {"rows", "first", "second"}
    ids = np.array([3, 0, 5])
    (y,) = Subject(wide).open(Session).run({"ids": ids})
    table, a = (value.astype(np.float64) for value in values.values())
    np.testing.assert_allclose(array(y), np.tanh(table[ids] @ a.T) @ table.T, rtol=1e-14)


def test_bodies_and_casts_compute_in_single_precision_too() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    bodies (float[n, 4] x, bool flip, float16[4] h) => (float[n, 4] y, bfloat16[n, 4] z)
    {
        small = Cast <to = 10> (x)
        chosen = If (flip) <
            then_branch = a () => (float16[n, 4] p) { p = Mul (small, third) },
            else_branch = b () => (float16[n, 4] q) { q = Add (small, h) }
        >
        y = Cast <to = 1> (chosen)
        z = Cast <to = 16> (y)
    }
    """
    model = parser.parse_model(text)
    third = helper.make_node("Constant", [], ["third"], value=numpy_helper.from_array(np.array(0.333, np.float16)))
    model.graph.node.insert(0, third)
    wide = upcast(io.from_proto(model))
    assert wide is not None
    session = Subject(wide).open(Session)
    x, h = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32), np.ones(4, np.float16)
    for flip, expected in ((True, x * np.float32(np.float16(0.333))), (False, x + 1)):
        y, z = session.run({"x": x, "flip": np.asarray(flip), "h": h})
        assert np.allclose(array(y), expected, rtol=1e-6)
        assert np.allclose(array(z), expected, rtol=1e-6)


def test_the_source_is_unchanged() -> None:
    source = io.from_proto(deep())
    before = io.to_proto(source).SerializeToString(deterministic=True)
    assert upcast(source) is not None
    assert io.to_proto(source).SerializeToString(deterministic=True) == before


def test_a_model_without_half_precision_has_no_copy() -> None:
    text = '<ir_version: 9, opset_import: ["" : 18]> plain (float[n] x) => (float[n] y) { y = Exp (x) }'
    assert upcast(io.from_proto(parser.parse_model(text))) is None


def test_new_constants_are_those_with_other_values() -> None:
    changed = new_constants(io.from_proto(deep(factor=1.01)), io.from_proto(deep()))
    assert changed == {"w3"}
    assert new_constants(io.from_proto(deep()), io.from_proto(deep())) == frozenset()


@pytest.mark.medium
def test_a_bfloat16_output_half_a_percent_off_is_found() -> None:
    def model(factor: float) -> onnx.ModelProto:
        text = '<ir_version: 9, opset_import: ["" : 18]> out (float[n, 8] x) => (bfloat16[n, 8] y)'
        made = parser.parse_model(text + "{ s = Mul (x, k) y = Cast <to = 16> (s) }")
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(factor, np.float32), "k"))
        return made

    assert verify(model(1.0), model(1.0)).passed
    assert not verify(model(1.0), model(1.005)).passed
    assert verify(model(1.0), model(1.0 + 1e-7)).passed


def test_bfloat16_layers_are_compared_in_single_precision() -> None:
    kind = ml_dtypes.bfloat16
    if upcast(io.from_proto(deep(dtype=kind))) is None:
        pytest.fail("bfloat16 counts as half precision")


def test_results_in_half_precision_are_rounded_where_there_is_no_kernel() -> None:
    """Every result equals the one that a kernel for the type would give: float32 has enough digits for one rounding."""
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[n, 4] x, bool flag) => (bfloat16[n, 4] y, float[n, 4] z) {
        h = Cast <to = 16> (x)
        s = Mul (h, w)
        t = Exp (s)
        y = If (flag) <then_branch = a () => (bfloat16[n, 4] u) { u = Add (t, h) },
                       else_branch = b () => (bfloat16[n, 4] v) { v = Sub (t, h) }>
        z = Cast <to = 1> (y)
    }"""
    bfloat16 = ml_dtypes.bfloat16
    weight: Any = np.array([0.3, -1.7, 1.01, 2.9], bfloat16)
    proto = parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    with pytest.raises(NoKernel):
        Session(proto)
    model = io.from_proto(proto)
    round_results(model)
    x = np.random.default_rng(0).standard_normal((500, 4)).astype(np.float32)
    narrow = x.astype(bfloat16)
    grown = np.exp(narrow * weight)
    for flag, expected in ((True, grown + narrow), (False, grown - narrow)):
        y, z = Session(io.to_proto(model)).run({"x": x, "flag": np.array(flag)})
        assert array(y).dtype == bfloat16
        assert np.array_equal(array(y), expected)
        assert np.array_equal(array(z), expected.astype(np.float32))
