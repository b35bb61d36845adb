"""Neutral constants are removed exactly: signs of zeros, broadcasting and types are preserved."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.cleanup.eliminate_add_zero import EliminateAddZero
from sardonyx.passes.cleanup.eliminate_noop_arithmetic import UNROUNDED, EliminateNoopArithmetic

PASSES = (EliminateNoopArithmetic(),)
CONSTANTS = """<
    float one = {1}, float[1] one1 = {1}, float[1, 4] ones = {1, 1, 1, 1}, float[2, 4] many = {1, 1, 1, 1, 1, 1, 1, 1},
    float[1, 1, 1] deep = {1}, float[4] mixed = {1, 1, 1, 2}, float zero = {0.0}, float minus_zero = {-0.0},
    float[0] empty = {}, int64 i1 = {1}, bool yes = {1}, bool no = {0}, float two = {2}
>"""

CALLS = [
    ("Mul(a, one)", "float[N, 4]", True),
    ("Mul(one, a)", "float[N, 4]", True),
    ("Mul(a, one1)", "float[N, 4]", True),
    ("Mul(a, ones)", "float[N, 4]", True),
    ("Mul(a, ones)", "float[N, M]", False),
    ("Mul(a, many)", "float[2, 4]", True),
    ("Mul(a, many)", "float[1, 4]", False),
    ("Mul(a, deep)", "float[N, 4]", False),
    ("Mul(a, mixed)", "float[N, 4]", False),
    ("Mul(a, two)", "float[N, 4]", False),
    ("Mul(a, empty)", "float[N, 1]", False),
    ("Div(a, one)", "float[N, 4]", True),
    ("Div(one, a)", "float[N, 4]", False),
    ("Pow(a, one)", "float[N, 4]", True),
    ("Pow(a, i1)", "float[N, 4]", True),
    ("Sub(a, zero)", "float[N, 4]", True),
    ("Sub(a, minus_zero)", "float[N, 4]", False),
    ("Sub(zero, a)", "float[N, 4]", False),
    ("Add(a, minus_zero)", "float[N, 4]", True),
    ("Add(a, zero)", "float[N, 4]", False),
    ("Where(yes, a, zero)", "float[N, 4]", False),
    ("Where(no, zero, a)", "float[N, 4]", True),
    ("Where(no, a, zero)", "float[N, 4]", False),
    ("Where(yes, a, many)", "float[1, 4]", False),
]


@pytest.mark.parametrize(("call", "kind", "goes"), CALLS)
def test_it_is_removed_exactly_if_it_is_neutral(call: str, kind: str, goes: bool) -> None:
    dims = "A, B, C" if "deep" in call else "A, B"
    text = graph_text(f"agraph ({kind} x) => (float[{dims}] y) {CONSTANTS} {{ a = Neg(x)  b = {call}  y = Neg(b) }}")
    model, _ = run_passes(text, PASSES)
    assert (op_types(model) == ["Neg", "Neg"]) == goes
    if kind != "float[N, M]":
        assert_same(text, model)


@pytest.mark.parametrize("call", ["And(a, yes)", "Or(no, a)", "Xor(a, no)"])
def test_logic_with_a_neutral_constant_is_removed(call: str) -> None:
    text = graph_text(f"agraph (bool[N] x) => (bool[N] y) {CONSTANTS} {{ a = Not(x)  b = {call}  y = Not(b) }}")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Not", "Not"]
    assert_same(text, model)


@pytest.mark.parametrize("call", ["And(a, no)", "Or(yes, a)", "Xor(a, yes)"])
def test_logic_with_another_constant_stays(call: str) -> None:
    text = graph_text(f"agraph (bool[N] x) => (bool[N] y) {CONSTANTS} {{ a = Not(x)  b = {call}  y = Not(b) }}")
    assert len(op_types(run_passes(text, PASSES)[0])) == 3


def test_zero_added_to_integers_is_removed() -> None:
    text = graph_text("agraph (int64[N] x) => (int64[N] y) <int64 z = {0}> { a = Neg(x)  b = Add(a, z)  y = Neg(b) }")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Neg"]
    assert_same(text, model)


def test_the_exact_pass_keeps_the_sign_of_zero_and_the_other_pass_does_not() -> None:
    text = graph_text("agraph (float[N] x) => (float[N] y) <float z = {0.0}> { a = Neg(x)  y = Add(a, z) }")
    feeds = {"x": np.array([0.0, 1.0], np.float32)}
    exact, _ = run_passes(text, PASSES)
    assert_same(text, exact, feeds=feeds)
    loose, _ = run_passes(text, (EliminateAddZero(),))
    assert op_types(loose) == ["Neg"]
    assert_same(text, loose, exact=False, rtol=0.0, feeds=feeds)
    with pytest.raises(AssertionError):
        assert_same(text, loose, feeds=feeds)


def test_a_vector_with_one_other_number_is_not_zero() -> None:
    body = "{ a = Neg(x)  b = Add(a, z)  y = Neg(b) }"
    text = graph_text(f"agraph (float[N, 2] x) => (float[N, 2] y) <float[2] z = {{0, 1}}> {body}")
    assert "Add" in op_types(run_passes(text, (EliminateAddZero(),))[0])


@pytest.mark.parametrize("dtype", [onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16])
@pytest.mark.parametrize(("number", "goes"), [(1.0, True), (1.5, False)])
def test_small_float_types_are_read_correctly(dtype: int, number: float, goes: bool) -> None:
    values = [onnx.helper.make_tensor_value_info(name, dtype, ["N"]) for name in "xy"]
    nodes = [onnx.helper.make_node("Mul", ["x", "w"], ["a"]), onnx.helper.make_node("Neg", ["a"], ["y"])]
    weight = onnx.helper.make_tensor("w", dtype, [], [number])
    graph = onnx.helper.make_graph(nodes, "agraph", values[:1], values[1:], [weight])
    proto = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 18)])
    model, _ = run_passes(proto, PASSES)
    assert (op_types(model) == ["Neg"]) == goes


def test_an_overridable_one_is_not_neutral() -> None:
    text = graph_text("agraph (float[N] x, float w = {1}) => (float[N] y) { a = Mul(x, w)  y = Neg(a) }")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Mul", "Neg"]


def test_old_opsets_that_broadcast_on_request_stay() -> None:
    text = graph_text(
        "agraph (float[2, 4] x) => (float[2, 4] y) <float[4] w = {1, 1, 1, 1}>"
        "{ a = Mul <axis = 1, broadcast = 1> (x, w)  y = Neg(a) }",
        6,
    )
    assert op_types(run_passes(text, PASSES)[0]) == ["Mul", "Neg"]


def test_enlarging_constants_are_refused_with_a_reason() -> None:
    text = graph_text(f"agraph (float[N, M] x) => (float[A, B] y) {CONSTANTS} {{ a = Mul(x, ones)  y = Neg(a) }}")
    assert "the constant's shape could enlarge the result" in reasons(run_passes(text, PASSES)[1])


@pytest.mark.parametrize(("call", "goes"), [("Pow(a, one)", False), ("Mul(a, one)", True), ("Div(a, one)", True)])
def test_large_integers(call: str, goes: bool) -> None:
    """The runtime computes powers in double precision, which cannot represent 2**60 + 1."""
    text = graph_text(
        f"agraph (int64[N] x) => (int64[N] y) <int64 one = {{1}}> {{ a = Neg(x)  b = {call}  y = Neg(b) }}"
    )
    model, _ = run_passes(text, PASSES)
    assert (op_types(model) == ["Neg", "Neg"]) == goes
    assert_same(text, model, feeds={"x": np.array([2**60 + 1, -(2**53) - 1, 7], np.int64)})


@pytest.mark.parametrize(
    ("made", "goes"), [("Cast <to = 10> (x)", False), ("Exp(h)", False), ("Sub(h, h)", True), ("Transpose(h)", True)]
)
@pytest.mark.parametrize("call", ["Add(a, zero)", "Mul(a, one)"])
def test_a_rounding_to_half_precision_is_kept(call: str, made: str, goes: bool) -> None:
    """Pow has no float16 kernel: the runtime computes in float and removes the Casts between such operators."""
    text = graph_text(f"""agraph (float[N] x) => (float16[N] y)
        <float16 zero = {{0}}, float16 one = {{15360}}, float e = {{0.5}}> {{
        c = Cast <to = 10> (x)  h = Transpose(c)  a = {made}  b = {call}  y = Pow(b, e) }}""")
    model, log = run_passes(text, (*PASSES, EliminateAddZero()))
    assert (call.split("(")[0] in op_types(model)[-2:-1]) != goes
    assert (UNROUNDED in reasons(log)) != goes
    assert_same(text, model, feeds={"x": np.array([70000.0, 2.0001, 1e-9], np.float32)})
