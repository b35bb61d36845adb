"""A product plus a bias becomes one Gemm if and only if both are matrices and the bias fits."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.products.fuse_matmul_add import FuseMatMulAdd

PASSES = (FuseMatMulAdd(),)

CASES = [
    ("float[N, 4] x, float[4, 3] w, float[3] b", True),
    ("float[N, 4] x, float[4, 3] w, float[1, 3] b", True),
    ("float[N, 4] x, float[4, 3] w, float[1] b", True),
    ("float[N, 4] x, float[4, 3] w, float b", True),
    ("float[N, 4] x, float[4, 3] w, float[N, 3] b", True),
    ("float[N, 4] x, float[4, 3] w, float[N, 1] b", True),
    ("float[N, 4] x, float[4, K] w, float[K] b", True),
    ("float[N, 4] x, float[4, K] w, float[L] b", False),
    ("float[1, 4] x, float[4, 3] w, float[5, 3] b", False),
    ("float[N, 4] x, float[4, 1] w, float[3] b", False),
    ("float[N, 4] x, float[4, 3] w, float[1, 1, 3] b", False),
    ("float[N, 4] x, float[4, 3] w, float[M, 3] b", False),
    ("float[N, M, 4] x, float[4, 3] w, float[3] b", False),
    ("float[4] x, float[4, 3] w, float[3] b", False),
    ("float[N, 4] x, float[4] w, float[N] b", False),
    ("int64[N, 4] x, int64[4, 3] w, int64[3] b", False),
]


@pytest.mark.parametrize("sum_", ["Add(a, b)", "Add(b, a)"])
@pytest.mark.parametrize(("inputs", "fuses"), CASES)
def test_fuses_exactly_if_the_shapes_are_certain(inputs: str, fuses: bool, sum_: str) -> None:
    kind = "int64" if "int64" in inputs else "float"
    rank = 3 if inputs.count("M, 4") or "1, 1, 3" in inputs else 1 if "[4] x" in inputs or "[4] w" in inputs else 2
    dims = ", ".join(f"D{axis}" for axis in range(rank))
    text = graph_text(f"agraph ({inputs}) => ({kind}[{dims}] y) {{ a = MatMul(x, w)  y = {sum_} }}")
    model, _ = run_passes(text, PASSES)
    assert (op_types(model) == ["Gemm"]) == fuses
    if fuses:
        assert_same(text, model, exact=False)


@pytest.mark.parametrize(("kind", "rtol"), [("double", 1e-12), ("float16", 5e-3)])
def test_other_float_types_are_fused(kind: str, rtol: float) -> None:
    inputs = f"{kind}[N, 4] x, {kind}[4, 3] w, {kind}[3] b"
    text = graph_text(f"agraph ({inputs}) => ({kind}[N, 3] y) {{ a = MatMul(x, w)  y = Add(a, b) }}")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Gemm"]
    assert_same(text, model, exact=False, rtol=rtol)


def test_a_gemm_without_bias_gets_one() -> None:
    text = graph_text("""agraph (float[4, N] x, float[3, 4] w, float[3] b) => (float[N, 3] y) {
        a = Gemm <alpha = 0.5, beta = 3.0, transA = 1, transB = 1> (x, w)  y = Add(b, a) }""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Gemm"]
    assert_same(text, model, exact=False)


def test_a_gemm_with_bias_stays() -> None:
    text = graph_text("""agraph (float[N, 4] x, float[4, 3] w, float[3] b) => (float[N, 3] y) {
        a = Gemm(x, w, b)  y = Add(b, a) }""")
    assert op_types(run_passes(text, PASSES)[0]) == ["Gemm", "Add"]


@pytest.mark.parametrize("more", ["z = Neg(a)", "z = Identity(a)"])
def test_a_product_that_others_read_is_kept(more: str) -> None:
    text = graph_text(f"""agraph (float[N, 4] x, float[4, 3] w, float[3] b) => (float[N, 3] y, float[N, 3] z) {{
        a = MatMul(x, w)  y = Add(a, b)  {more} }}""")
    model, log = run_passes(text, PASSES)
    assert "Gemm" not in op_types(model)
    assert "the product is read elsewhere" in reasons(log)


def test_a_product_that_is_an_output_is_kept() -> None:
    text = graph_text("""agraph (float[N, 4] x, float[4, 3] w, float[3] b) => (float[N, 3] a, float[N, 3] y) {
        a = MatMul(x, w)  y = Add(a, b) }""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["MatMul", "Add"]
    assert_same(text, model)


def test_a_product_that_a_branch_reads_is_kept() -> None:
    text = graph_text("""agraph (bool c, float[N, 4] x, float[4, 3] w, float[3] b) => (float[N, 3] y, float[N, 3] z) {
        a = MatMul(x, w)
        y = Add(a, b)
        z = If(c) <
            then_branch = t () => (float[N, 3] r) { r = Neg(a) },
            else_branch = e () => (float[N, 3] s) { s = Abs(a) }
        >
    }""")
    assert "MatMul" in op_types(run_passes(text, PASSES)[0])


def test_a_product_added_to_itself_is_kept() -> None:
    text = graph_text("agraph (float[N, 4] x, float[4, 3] w) => (float[N, 3] y) { a = MatMul(x, w)  y = Add(a, a) }")
    assert op_types(run_passes(text, PASSES)[0]) == ["MatMul", "Add"]


def test_of_two_products_one_becomes_the_others_bias() -> None:
    text = graph_text("""agraph (float[N, 4] x, float[4, 3] w, float[4, 3] v) => (float[N, 3] y) {
        a = MatMul(x, w)  b = MatMul(x, v)  y = Add(a, b) }""")
    model, _ = run_passes(text, PASSES)
    assert sorted(op_types(model)) == ["Gemm", "MatMul"]
    assert_same(text, model, exact=False)


dims = st.sampled_from(["1", "2", "3", "N", "M"])


@settings(max_examples=40)
@given(rows=dims, columns=dims, bias=st.lists(dims, max_size=3))
def test_no_combination_of_sizes_changes_the_result(rows: str, columns: str, bias: list[str]) -> None:
    kind = f"float[{', '.join(bias)}]" if bias else "float"
    rank = max(2, len(bias))
    shape = ", ".join(f"D{axis}" for axis in range(rank))
    text = graph_text(
        f"agraph (float[{rows}, 4] x, float[4, {columns}] w, {kind} b) => (float[{shape}] y)"
        "{ a = MatMul(x, w)  y = Add(a, b) }"
    )
    sizes = list(zip(["", rows, columns][-len(bias) :] if bias else [], bias, strict=True))
    assume(not any({"2", "3"} == {size, other} for size, other in sizes))  # these cannot be added
    model, log = run_passes(text, PASSES)
    if log.events:
        assert_same(text, model, exact=False)
