"""Views and transposes around row-wise operators cancel, and the result is the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.passes.layout.eliminate_layout_roundtrips import EliminateLayoutRoundtrips

PASSES = (EliminateLayoutRoundtrips(),)
CONSTANTS = """<
    int64[2] flat = {-1, 4}, int64[3] back = {2, -1, 4}, int64[3] back6 = {2, -1, 6}, int64[4] heads = {2, -1, 2, 2},
    float[4, 6] w = {1, 2, 3, 4, 5, 6, -7, 8, 9, 1, 2, 3, 4, -5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6},
    float[6, 4] v = {1, 2, 3, 4, 5, 6, -7, 8, 9, 1, 2, 3, 4, -5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6},
    float[6] b = {1, 2, 3, -4, 5, 6}, float[1, 6] row = {1, 2, 3, -4, 5, 6}, float[4] c = {1, -2, 3, 4},
    float two = {2}, float[1] one = {3}, float[1, 1] deep = {3}
>"""
WORK = [
    ("f = Gemm(a, w, b)", "back6", ["MatMul", "Add"]),
    ("f = Gemm(a, w, row)", "back6", ["MatMul", "Add"]),
    ("f = Gemm <transB = 1> (a, v, b)", "back6", ["Transpose", "MatMul", "Add"]),
    ("f = Gemm(a, w)", "back6", ["MatMul"]),
    ("p = MatMul(a, w)  f = Add(b, p)", "back6", ["MatMul", "Add"]),
    ("p = MatMul(a, w)  q = Add(p, row)  f = Relu(q)", "back6", ["MatMul", "Add", "Relu"]),
    ("f = Softmax <axis = -1> (a)", "back", ["Softmax"]),
    ("f = Softmax <axis = 1> (a)", "back", ["Softmax"]),
    ("f = LayerNormalization <axis = 1> (a, c, c)", "back", ["LayerNormalization"]),
    ("p = Mul(a, c)  q = Sub(two, p)  r = Mul(q, one)  f = Div(r, deep)", "back", ["Mul", "Sub", "Mul", "Div"]),
    ("p = Cast <to = 11> (a)  f = Cast <to = 1> (p)", "back", ["Cast", "Cast"]),
]


@pytest.mark.parametrize("kind", ["[2, 3, 4]", "[2, N, 4]"])
@pytest.mark.parametrize(("work", "back", "left"), WORK)
def test_flattening_around_row_wise_operators_is_removed(work: str, back: str, left: list[str], kind: str) -> None:
    text = graph_text(f"""agraph (float{kind} k) => (float[A, B, C] y) {CONSTANTS} {{
        x = Neg(k)  a = Reshape(x, flat)  {work}  g = Reshape(f, {back})  y = Neg(g) }}""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", *left, "Neg"]
    assert_same(text, model, exact=False)


def test_a_following_view_replaces_both() -> None:
    text = graph_text(f"""agraph (float[2, 3, 4] k) => (float[A, B, C, D] y) {CONSTANTS} {{
        x = Neg(k)  a = Reshape(x, flat)  f = Mul(a, c)  g = Reshape(f, heads)  y = Neg(g) }}""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Mul", "Reshape", "Neg"]
    assert_same(text, model)


def test_a_gemm_gains_nothing_from_another_view() -> None:
    text = graph_text(f"""agraph (float[2, 3, 4] k) => (float[A, B, C, D] y)
        <int64[2] flat = {{-1, 4}}, int64[4] t = {{2, 3, 2, 3}}, float[6] b = {{1, 2, 3, -4, 5, 6}},
        float[4, 6] w = {{{", ".join("1234567" * 3)}, 2, 3, 4}}> {{
        x = Neg(k)  a = Reshape(x, flat)  f = Gemm(a, w, b)  g = Reshape(f, t)  y = Neg(g) }}""")
    model, log = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Reshape", "Gemm", "Reshape", "Neg"]
    assert "it would save no node" in reasons(log)


def test_a_flattened_value_that_others_read_stays_if_nothing_is_saved() -> None:
    text = graph_text(f"""agraph (float[2, 3, 4] k) => (float[A, B, C] y, float[D, E] z) {CONSTANTS} {{
        x = Neg(k)  a = Reshape(x, flat)  f = Gemm(a, w, b)  g = Reshape(f, back6)  y = Neg(g)  z = Neg(a) }}""")
    model, log = run_passes(text, PASSES)
    assert op_types(model).count("Reshape") == 2
    assert "it would save no node" in reasons(log)
    assert_same(text, model)


@pytest.mark.parametrize(
    "work",
    [
        "f = Add(a, k2)",  # another computed value of the flattened shape
        "f = Gemm <alpha = 2.0> (a, w4, c)",
        "f = Gemm <transA = 1> (a, w6, c)",
        "f = Gemm(a, w4, full)",
        "f = Softmax <axis = 0> (a)",
        "f = MatMul(w66, a)",
    ],
)
def test_operators_that_are_not_row_wise_stay(work: str) -> None:
    body = "0.5, " * 35 + "1.5"
    text = graph_text(f"""agraph (float[2, 3, 4] k, float[6, 4] k2) => (float[A, B, C] y)
        <int64[2] flat = {{-1, 4}}, int64[3] back = {{2, -1, 4}}, float[4] c = {{1, -2, 3, 4}},
        float[4, 4] w4 = {{{", ".join("1234567890123456")}}},
        float[6, 4] full = {{{", ".join("1234567890" * 2)}, 1, 2, 3, 4}},
        float[6, 4] w6 = {{{", ".join("1234567890" * 2)}, 1, 2, 3, 4}}, float[6, 6] w66 = {{{body}}}> {{
        x = Neg(k)  a = Reshape(x, flat)  {work}  g = Reshape(f, back)  y = Neg(g) }}""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model).count("Reshape") == 2


def test_a_constant_beside_a_view_is_viewed_the_other_way() -> None:
    text = graph_text("""agraph (float[6, 2, 5, 5] k) => (float[A, B, C, D] y, float[E, F, G, H] z)
        <int64[5] t = {2, 3, 2, 5, 5}, int64[4] u = {-1, 2, 5, 5}, float[1, 3, 1, 1, 5] m = {0, 1, 2, 3, 4, 5, 6, 7, 8,
        9, 10, 11, 12, 13, 14}, float[2, 3, 1, 1, 1] full = {1, 2, 3, 4, 5, 6}> {
            x = Neg(k)  a = Reshape(x, t)  f = Add(a, full)  g = Reshape(f, u)  y = Neg(g)
            c = Reshape(x, t)  d = Add(c, m)  e = Reshape(d, u)  z = Neg(e) }""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Add", "Neg", "Reshape", "Add", "Reshape", "Neg"]  # half of a merged axis stays
    assert_same(text, model)


@pytest.mark.parametrize(
    ("first", "work", "last", "left"),
    [
        ([1, 0, 2], "p = MatMul(a, w)  f = Add(p, b)", [1, 0, 2], ["MatMul", "Add"]),
        ([1, 0, 2], "f = MatMul(a, w)", [1, 2, 0], ["MatMul", "Transpose"]),
        ([0, 2, 1], "f = Relu(a)", [0, 2, 1], ["Relu"]),
        ([0, 2, 1], "f = Mul(column, a)", [0, 2, 1], ["Mul"]),
        ([2, 0, 1], "f = Add(a, row3)", [1, 2, 0], ["Add"]),
        ([0, 2, 1], "f = Softmax <axis = -1> (a)", [0, 2, 1], ["Transpose", "Softmax", "Transpose"]),
    ],
)
def test_transposes_cancel_too(first: list[int], work: str, last: list[int], left: list[str]) -> None:
    text = graph_text(f"""agraph (float[2, 3, 4] k) => (float[A, B, C] y)
        <float[4, 6] w = {{1, 2, 3, 4, 5, 6, -7, 8, 9, 1, 2, 3, 4, -5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}},
        float[6] b = {{1, 2, 3, -4, 5, 6}}, float[4, 1] column = {{1, -2, 3, 4}}, float[3] row3 = {{1, -2, 3}}> {{
        x = Neg(k)  a = Transpose <perm = {first}> (x)  {work}  g = Transpose <perm = {last}> (f)  y = Neg(g) }}""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", *left, "Neg"]
    assert_same(text, model, exact=False)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_two_permutations_around_a_constant(data: st.DataObject) -> None:
    perms = [data.draw(st.permutations(range(3))) for _ in range(2)]
    moved = [(2, 3, 4)[axis] for axis in perms[0]]
    shape = [data.draw(st.sampled_from([1, dim])) for dim in moved][data.draw(st.integers(0, 3)) :]
    numbers = ", ".join(str(number) for number in range(1, int(np.prod(shape)) + 1))
    text = graph_text(f"""agraph (float[2, 3, 4] k) => (float[A, B, C] y) <float{shape} c = {{{numbers}}}> {{
        x = Neg(k)  a = Transpose <perm = {perms[0]}> (x)  f = Mul(a, c)  g = Transpose <perm = {perms[1]}> (f)
        y = Neg(g) }}""").replace("float[] c", "float c")
    model, _ = run_passes(text, PASSES)
    assert op_types(model).count("Transpose") <= 1
    assert_same(text, model)


def grouped(sizes: list[int], data: st.DataObject) -> list[int]:
    """The sizes with neighbours multiplied, and some ones in between."""
    shape = [1]
    for size in sizes:
        if data.draw(st.booleans()):
            shape[-1] *= size
        else:
            shape.append(size)
    return shape if shape[0] > 1 or data.draw(st.booleans()) else shape[1:]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_two_views_around_a_constant(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([2, 3, 5]), min_size=2, max_size=4))
    source, viewed, result = (grouped(sizes, data) for _ in range(3))
    shape = [data.draw(st.sampled_from([1, dim])) for dim in viewed]
    numbers = ", ".join(str(number) for number in range(1, int(np.prod(shape)) + 1))
    text = graph_text(f"""agraph (float{source} k) => (float[{", ".join("ABCDE"[: len(result)])}] y) <
        int64[{len(viewed)}] s = {{{", ".join(map(str, viewed))}}}, float{shape} c = {{{numbers}}},
        int64[{len(result)}] t = {{{", ".join(map(str, result))}}}> {{
        x = Neg(k)  a = Reshape(x, s)  f = Mul(a, c)  g = Reshape(f, t)  y = Neg(g) }}""")
    model, _ = run_passes(text, PASSES)
    assert_same(text, model)


def test_a_constant_of_strings_is_not_rearranged() -> None:
    text = graph_text("""agraph (string[4, 6] x) => (bool[4, 6] y)
        <int64[3] s = {2, 2, 6}, int64[2] t = {4, 6}> { a = Reshape(x, s)  b = Equal(a, c)  y = Reshape(b, t) }""")
    proto = onnx.parser.parse_model(text)
    proto.opset_import[0].version = 19
    for sizes, left in (([6], ["Equal"]), ([1, 2, 6], ["Reshape", "Equal", "Reshape"])):
        del proto.graph.initializer[2:]
        values = np.array([str(number) for number in range(int(np.prod(sizes)))], object).reshape(sizes)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, "c"))
        model = io.from_proto(proto)
        Rewriter(Facts(model), PASSES).run()
        assert op_types(model) == left
