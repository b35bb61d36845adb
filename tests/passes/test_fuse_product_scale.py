"""A scale after a product becomes part of the weight, for every position and rank of the scale."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.products.fuse_product_scale import FuseProductScale

PASSES = (FuseProductScale(),)
CONSTANTS = """<
    float[2, 3] w = {1, -2, 3, 4, 5, 6}, float[3, 2] v = {1, -2, 3, 4, 5, 6}, float[3] b = {7, 8, -9},
    float[3] s = {2, -3, 0.5}, float[1, 1, 3] deep = {2, -3, 0.5}, float[3, 1] column = {2, 3, 4}, float half = {0.5},
    float[1] one = {4}, float[1, 3] row = {1, 2, 3}, float zero = {0}, float[4, 1] rows = {1, 2, 3, 4}
>"""


@pytest.mark.parametrize(
    "tail", ["y = Mul(c, s)", "y = Mul(s, c)", "y = Mul(deep, c)", "y = Mul(c, half)", "y = Div(c, one)"]
)
@pytest.mark.parametrize(
    ("product", "left"),
    [
        ("a = MatMul(x, w)  c = Add(a, b)", ["MatMul", "Add"]),
        ("a = MatMul(x, w)  c = Add(b, a)", ["MatMul", "Add"]),
        ("c = MatMul(x, w)", ["MatMul"]),
    ],
)
def test_a_scale_is_fused_into_the_weight(product: str, left: list[str], tail: str) -> None:
    text = graph_text(f"agraph (float[N, 4, 2] x) => (float[N, 4, 3] y) {CONSTANTS} {{ {product}  {tail} }}")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == left
    assert_same(text, model, exact=False)


@pytest.mark.parametrize(
    "product",
    [
        "c = Gemm(x, w, b)",
        "c = Gemm(x, w)",
        "c = Gemm <alpha = 2.0, beta = 0.5> (x, w, b)",
        "c = Gemm <transB = 1, beta = 3.0> (x, v, b)",
    ],
)
def test_a_scale_is_fused_into_a_gemm_too(product: str) -> None:
    text = graph_text(f"agraph (float[N, 2] x) => (float[N, 3] y) {CONSTANTS} {{ {product}  y = Mul(c, s) }}")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Gemm"]
    assert_same(text, model, exact=False)


@pytest.mark.parametrize("opset", [7, 13, 21])
def test_a_transpose_between_is_kept(opset: int) -> None:
    text = graph_text(
        f"""agraph (float[N, 4, 2] x) => (float[N, 3, 4] y) {CONSTANTS} {{
        a = MatMul(x, w)  d = Transpose <perm = [0, 2, 1]> (a)  y = Mul(column, d) }}""",
        opset,
    )
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["MatMul", "Transpose"]
    assert_same(text, model, exact=False)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = MatMul(x, w)  y = Mul(a, rows)", "the constant varies within a column"),
        (
            "a = MatMul(x, w)  d = Transpose <perm = [0, 2, 1]> (a)  y = Mul(d, rows)",
            "the constant varies within a column",
        ),
        ("a = MatMul(x, w)  c = Mul(a, s)  y = Add(a, c)", "the value before it is also used elsewhere"),
        ("e = MatMul(x, w)  a = MatMul(x, w)  c = Mul(a, s)  y = Add(e, c)", "the weight before it is shared"),
        ("a = MatMul(x, w)  y = Div(a, zero)", "the constant gives no finite scale"),
        ("a = MatMul(x, w)  c = Add(a, row)  y = Mul(c, s)", "the bias before it does not have one number per column"),
    ],
)
def test_near_misses(body: str, reason: str) -> None:
    text = graph_text(f"agraph (float[N, 4, 2] x) => (float[N, A, B] y) {CONSTANTS} {{ {body} }}")
    if "Transpose" in body:
        text = text.replace("float[4, 1] rows", "float[4] rows")
    model, log = run_passes(text, PASSES)
    assert op_types(model).count("Mul") + op_types(model).count("Div") == 1
    assert reason in reasons(log)


def test_a_constant_divided_by_a_product_is_not_a_scale() -> None:
    text = graph_text(f"agraph (float[N, 2] x) => (float[N, 3] y) {CONSTANTS} {{ a = MatMul(x, w)  y = Div(s, a) }}")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["MatMul", "Div"]


def test_half_precision_stays_half_precision() -> None:  # the text holds the bits: 1, 2, 3, 4 and 2, 4
    text = graph_text("""agraph (float16[N, 2] x) => (float16[N, 2] y)
        <float16[2, 2] w = {15360, 16384, 16896, 17408}, float16[2] s = {16384, 17408}>
        { a = MatMul(x, w)  y = Mul(a, s) }""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["MatMul"]
    assert_same(text, model, exact=False, rtol=1e-3)


def test_a_scaled_weight_that_underflows_stays() -> None:
    text = graph_text("""agraph (float16[N, 2] x) => (float16[N, 2] y)
        <float16[2, 2] w = {1, 2, 3, 4}, float16[2] s = {2, 4}> { a = MatMul(x, w)  y = Mul(a, s) }""")
    model, log = run_passes(text, PASSES)
    assert op_types(model) == ["MatMul", "Mul"]
    assert reasons(log) == ["a folded constant would overflow or lose precision in float16"]
