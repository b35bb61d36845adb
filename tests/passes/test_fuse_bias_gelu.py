"""The bias before a Gelu is fused into it on the ort target, for both forms of the activation."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.ort.fuse_bias_gelu import FuseBiasGelu

FUSE = [FuseBiasGelu()]


def text(body: str, *, x: str = "N, S, 4", kind: str = "float") -> str:
    constants = f"<{kind}[4] b = {{3, -4, 0.5, 1}}, {kind}[1, 4] c = {{1, 2, -3, 0.5}}, {kind}[1] d = {{2}}>"
    return graph_text(f"agraph ({kind}[{x}] x) => ({kind}[{x}] y) {constants} {{ {body} }}", 20)


FUSED = {
    "erf": (text("a = Add(x, b)  y = Gelu(a)"), "BiasGelu"),
    "erf by name": (text("a = Add(b, x)  y = Gelu <approximate = \"none\"> (a)"), "BiasGelu"),
    "tanh": (text("a = Add(x, b)  y = Gelu <approximate = \"tanh\"> (a)"), "FastGelu"),
    "a bias with two axes": (text("a = Add(c, x)  y = Gelu(a)"), "BiasGelu"),
    "matrices": (text("a = Add(x, c)  y = Gelu <approximate = \"tanh\"> (a)", x="N, 4"), "FastGelu"),
    "four axes": (text("a = Add(x, b)  y = Gelu(a)", x="N, H, W, 4"), "BiasGelu"),
}  # fmt: skip


@pytest.mark.parametrize("case", FUSED)
def test_it_fuses(case: str) -> None:
    source, operator = FUSED[case]
    model, _ = run_passes(source, FUSE, target="ort")
    assert op_types(model) == [operator]
    assert_same(source, model, exact=False)


@pytest.mark.parametrize("case", FUSED)
def test_the_portable_target_only_reports_it(case: str) -> None:
    source, operator = FUSED[case]
    model, log = run_passes(source, FUSE)
    assert op_types(model) == ["Add", "Gelu"]
    assert reasons(log) == [f"needs the ort target's {operator}"]


LEFT = {
    "one number": text("a = Add(x, d)  y = Gelu(a)"),
    "a length that may differ": text("a = Add(x, b)  y = Gelu(a)", x="N, S, T"),
    "double precision": text("a = Add(x, b)  y = Gelu(a)", kind="double"),
}


@pytest.mark.parametrize("case", LEFT)
def test_patterns_the_kernel_does_not_support_stay(case: str) -> None:
    model, log = run_passes(LEFT[case], FUSE, target="ort")
    assert op_types(model) == ["Add", "Gelu"]
    assert not log.events


def test_the_vector_may_be_what_varies() -> None:
    source = text("a = Add(x, c)  y = Gelu(a)", x="4").replace("=> (float[4] y)", "=> (float[1, 4] y)")
    model, _ = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["BiasGelu"]
    assert_same(source, model, exact=False)


def test_a_bias_that_enlarges_the_result_stays() -> None:
    source = graph_text(
        "agraph (float[N, S, 4] x) => (float[1, N, S, 4] y) <float[1, 1, 1, 4] b = {3, -4, 0.5, 1}>"
        "{ a = Add(x, b)  y = Gelu(a) }",
        20,
    )
    model, log = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["Add", "Gelu"]
    assert not log.events
