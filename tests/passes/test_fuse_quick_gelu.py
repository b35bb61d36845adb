"""Values times their own gates become one operator on the ort target."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.ort.fuse_quick_gelu import FuseQuickGelu

FUSE = [FuseQuickGelu()]


def text(body: str, *, shape: str = "N, 4", kind: str = "float") -> str:
    constants = (
        f"<{kind} a = {{1.702}}, {kind}[1] b = {{-0.5}}, {kind}[1, 1, 1] c = {{2}}, {kind}[4] v = {{1, 2, 3, 4}}>"
    )
    return graph_text(f"agraph ({kind}[{shape}] x) => ({kind}[{shape}] y) {constants} {{ {body} }}")


FUSED = {
    "plain": text("s = Sigmoid(x)  y = Mul(x, s)"),
    "gate first": text("s = Sigmoid(x)  y = Mul(s, x)"),
    "scaled": text("m = Mul(x, a)  s = Sigmoid(m)  y = Mul(x, s)"),
    "scale first": text("m = Mul(b, x)  s = Sigmoid(m)  y = Mul(s, x)"),
    "pictures": text("s = Sigmoid(x)  y = Mul(s, x)", shape="N, 2, H, 3"),
}


@pytest.mark.parametrize("case", FUSED)
def test_it_fuses(case: str) -> None:
    model, _ = run_passes(FUSED[case], FUSE, target="ort")
    assert op_types(model) == ["QuickGelu"]
    assert_same(FUSED[case], model, exact=False)


def test_the_portable_target_only_reports_it() -> None:
    model, log = run_passes(FUSED["scaled"], FUSE)
    assert op_types(model) == ["Mul", "Sigmoid", "Mul"]
    assert reasons(log) == ["needs the ort target's QuickGelu"]


LEFT = {
    "another value": text("e = Neg(x)  s = Sigmoid(e)  y = Mul(x, s)"),
    "a scale of its own for each": text("m = Mul(x, v)  s = Sigmoid(m)  y = Mul(x, s)"),
    "double precision": text("s = Sigmoid(x)  y = Mul(x, s)", kind="double"),
    "its square": text("s = Sigmoid(x)  y = Mul(s, s)"),
}


@pytest.mark.parametrize("case", LEFT)
def test_other_functions_stay(case: str) -> None:
    model, log = run_passes(LEFT[case], FUSE, target="ort")
    assert "QuickGelu" not in op_types(model)
    assert not log.events


def test_a_scale_that_enlarges_the_result_stays() -> None:
    source = text("m = Mul(x, c)  s = Sigmoid(m)  y = Mul(x, s)").replace("=> (float[N, 4] y)", "=> (float[1, N, 4] y)")
    model, _ = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["Mul", "Sigmoid", "Mul"]


def test_a_scaled_value_that_others_read_stays() -> None:
    source = text("m = Mul(x, a)  s = Sigmoid(m)  p = Mul(x, s)  y = Add(p, m)")
    model, _ = run_passes(source, FUSE, target="ort")
    assert sorted(op_types(model)) == ["Add", "Mul", "QuickGelu"]
    assert_same(source, model, exact=False)
