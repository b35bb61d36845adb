"""On the ort target a product reads a shared weight untransposed."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.ort.fuse_matmul_transpose import FuseMatMulTranspose

FUSE = [FuseMatMulTranspose()]


def text(body: str, *, x: str = "N, S, 2", y: str = "N, S, 3", kind: str = "float") -> str:
    constants = f"<{kind}[3, 2] w = {{1, 2, -3, 4, 0.5, -6}}>"
    return graph_text(f"agraph ({kind}[{x}] x) => ({kind}[{y}] y) {constants} {{ {body} }}")


FUSED = {
    "batches": text("t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t)"),
    "by default": text("t = Transpose(w)  y = MatMul(x, t)"),
    "matrices": text("t = Transpose(w)  y = MatMul(x, t)", x="N, 2", y="N, 3"),
}


@pytest.mark.parametrize("case", FUSED)
def test_it_fuses(case: str) -> None:
    model, _ = run_passes(FUSED[case], FUSE, target="ort")
    assert op_types(model) == ["FusedMatMul"]
    assert_same(FUSED[case], model, exact=False)


def test_every_product_reads_the_weight_itself() -> None:
    source = text("t = Transpose(w)  a = MatMul(x, t)  e = Neg(x)  b = MatMul(e, t)  y = Mul(a, b)")
    model, _ = run_passes(source, FUSE, target="ort")
    assert sorted(op_types(model)) == ["FusedMatMul", "FusedMatMul", "Mul", "Neg"]
    assert_same(source, model, exact=False)


def test_the_portable_target_only_reports_it() -> None:
    model, log = run_passes(FUSED["batches"], FUSE)
    assert op_types(model) == ["Transpose", "MatMul"]
    assert reasons(log) == ["needs the ort target's FusedMatMul"]


LEFT = {
    "vectors": text("t = Transpose(w)  y = MatMul(x, t)", x="2", y="3"),
    "double precision": text("t = Transpose(w)  y = MatMul(x, t)", kind="double"),
    "the left side": text("t = Transpose(w)  y = MatMul(t, x)", x="3, N", y="2, N"),
}


@pytest.mark.parametrize("case", LEFT)
def test_other_patterns_stay(case: str) -> None:
    model, log = run_passes(LEFT[case], FUSE, target="ort")
    assert op_types(model) == ["Transpose", "MatMul"]
    assert not log.events
