"""Consecutive permutations become one, and a Gemm absorbs a swap."""

from __future__ import annotations

import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowing import present
from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx import analyze, optimize
from sardonyx.passes.cleanup.eliminate_noop_shape import EliminateNoopShape
from sardonyx.passes.layout.fuse_gemm_transpose import FuseGemmTranspose
from sardonyx.passes.layout.merge_transposes import MergeTransposes

PASSES = (MergeTransposes(),)


@pytest.mark.medium
@settings(max_examples=40)
@given(perms=st.lists(st.one_of(st.none(), st.permutations(range(3))), min_size=2, max_size=4), symbolic=st.booleans())
def test_any_chain_of_transposes_keeps_its_function_and_becomes_at_most_one(
    perms: list[list[int] | None], symbolic: bool
) -> None:
    lines, value = [], "x"
    for index, perm in enumerate(perms):
        lines.append(f"v{index} = Transpose {'' if perm is None else f'<perm = {list(perm)}>'} ({value})")
        value = f"v{index}"
    kind = "float[N, M, K]" if symbolic else "float[2, 3, 4]"
    text = graph_text(f"agraph ({kind} w) => (float[A, B, C] y) {{ x = Neg(w) {'  '.join(lines)} y = Neg({value}) }}")
    model, _ = run_passes(text, (*PASSES, EliminateNoopShape()))
    assert op_types(model).count("Transpose") <= 1
    assert_same(text, model)


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Transpose <perm = [1, 0]> (x)  y = Transpose <perm = [0, 2, 1]> (a)",
        "a = Transpose <perm = [1, 0, 2]> (w)  y = MatMul(x, a)",
        "h = Unsqueeze(x, axes)  a = Attention(h, h, h)  y = Transpose <perm = [0, 2, 1, 3, 4]> (a)",
        "a = Transpose <perm = [0, 2, 1, 3, 4]> (x)  h = Unsqueeze(a, axes)  y = Attention(h, h, h)",
    ],
)
def test_a_permutation_of_another_rank_is_left_alone(nodes: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 23]> agraph (float[2, 3] x) => (float y)
        <float[2, 3] w = {{1, 2, 3, 4, 5, 6}}, int64[2] axes = {{0, 1}}> {{ {nodes} }}"""
    run = optimize(onnx.parser.parse_model(text), verify="off")
    assert "Transpose" in op_types(present(run.model))
    analyze(onnx.parser.parse_model(text))


def test_two_reversals_cancel_for_unknown_rank() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        agraph (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 18]> f (a) => (d) {
            z = Neg(a)  b = Transpose(z)  c = Transpose(b)  d = Neg(c) }"""
    model, _ = run_passes(text, PASSES)
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Neg", "Neg"]
    assert_same(text, model)


def test_an_inverse_pair_is_removed_even_if_the_intermediate_value_is_an_output() -> None:
    text = graph_text("""agraph (float[N, 3] w) => (float[3, N] a, float[N, 3] y) {
        x = Neg(w)  a = Transpose(x)  b = Transpose <perm = [1, 0]> (a)  y = Neg(b) }""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model).count("Transpose") == 1
    assert_same(text, model)


def test_another_pair_stays_if_the_intermediate_value_is_read() -> None:
    text = graph_text("""agraph (float[N, 3, 4] x) => (float[3, N, 4] a, float[3, 4, N] y) {
        a = Transpose <perm = [1, 0, 2]> (x)  y = Transpose <perm = [0, 2, 1]> (a) }""")
    model, log = run_passes(text, PASSES)
    assert op_types(model) == ["Transpose", "Transpose"]
    assert "the value in between is read elsewhere" in reasons(log)


def test_a_permutation_given_as_a_function_parameter_stays() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        agraph (float[2, 3] x) => (float[2, 3] y) { y = local.f <p = [1, 0]> (x) }
        <domain: "local", opset_import: ["" : 18]> f <p> (a) => (d) {
            b = Transpose <perm: ints = @p> (a)  c = Transpose <perm = [1, 0]> (b)  d = Neg(c) }"""
    model, _ = run_passes(text, PASSES)
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Transpose", "Transpose", "Neg"]
    assert_same(text, model)


GEMMS = [
    ("Gemm(ta, b)", "float[4, N] a, float[4, 3] b"),
    ("Gemm(a, tb)", "float[N, 4] a, float[3, 4] b"),
    ("Gemm(ta, tb)", "float[4, N] a, float[3, 4] b"),
    ("Gemm <transA = 1> (ta, b)", "float[N, 4] a, float[4, 3] b"),
    ("Gemm <transA = 1, transB = 1, alpha = 0.5, beta = 2.0> (ta, tb, c)", "float[N, 4] a, float[4, 3] b"),
    ("Gemm(ta, ta)", "float[4, 4] a, float[4, 3] b"),
]


@pytest.mark.parametrize(("call", "inputs"), GEMMS)
def test_gemm_reads_the_other_layout(call: str, inputs: str) -> None:
    text = graph_text(f"""agraph ({inputs}) => (float[X, Y] y) <float[3] c = {{1, 2, 3}}> {{
        ta = Transpose(a)  tb = Transpose <perm = [1, 0]> (b)  y = {call} }}""")
    model, _ = run_passes(text, (FuseGemmTranspose(),))
    gemm = next(node for node in model.graph if node.op_type == "Gemm")
    assert all(value is None or value.producer() is None for value in gemm.inputs)
    assert_same(text, model, exact=False)


def test_a_transpose_that_others_read_stays_for_them() -> None:
    text = graph_text("""agraph (float[4, N] a, float[4, 3] b) => (float[N, 3] y, float[N, 4] z) {
        t = Transpose(a)  y = Gemm(t, b)  z = Neg(t) }""")
    model, _ = run_passes(text, (FuseGemmTranspose(),))
    assert sorted(op_types(model)) == ["Gemm", "Neg", "Transpose"]
    assert_same(text, model, exact=False)


def test_an_outer_transpose_stays_for_a_gemm_in_a_branch() -> None:
    text = graph_text("""agraph (bool c, float[4, N] a, float[4, 3] b) => (float[N, 3] y) {
        t = Transpose(a)
        y = If(c) <
            then_branch = p () => (float[N, 3] r) { r = Gemm(t, b) },
            else_branch = q () => (float[N, 3] s) { u = Gemm(t, b)  s = Neg(u) }
        > }""")
    model, _ = run_passes(text, (FuseGemmTranspose(),))
    assert "Transpose" in op_types(model)
    assert_same(text, model, exact=False)
