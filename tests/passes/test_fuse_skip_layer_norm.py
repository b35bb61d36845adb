"""Residual sums are fused into the norm after them on the ort target, for exactly the supported shapes."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.ort.fuse_skip_layer_norm import FuseSkipLayerNorm

FUSE = [FuseSkipLayerNorm()]
NORM = "SkipLayerNormalization"
CONSTANTS = "<float[4] g = {1, -2, 3, 0.5}, float[4] h = {0.5, 1, -1, 2}, float[4] b = {3, -4, 5, 6}>"


def text(body: str, *, x: str = "N, S, 4", skip: str = "N, S, 4", y: str = "N, S, 4", extra: str = "") -> str:
    head = f"agraph (float[{x}] x, float[{skip}] skip) => (float[{y}] y{extra}) {CONSTANTS}"
    return graph_text(head + " {" + body + "}")


FUSED = {
    "plain": text("s = Add(x, skip)  y = LayerNormalization(s, g, h)"),
    "skip first": text("s = Add(skip, x)  y = LayerNormalization <axis = 2> (s, g, h)"),
    "no shift": text("s = Add(x, skip)  y = LayerNormalization <epsilon = 0.1> (s, g)"),
    "matrices": text("s = Add(x, skip)  y = LayerNormalization(s, g, h)", x="N, 4", skip="N, 4", y="N, 4"),
    "one skip for the batch": text("s = Add(x, skip)  y = LayerNormalization(s, g, h)", skip="1, S, 4"),
    "no batch on the left": text("s = Add(skip, x)  y = LayerNormalization(s, g, h)", skip="S, 4"),
    "bias on x": text("a = Add(b, x)  s = Add(a, skip)  y = LayerNormalization(s, g, h)"),
    "bias on skip": text("a = Add(skip, b)  s = Add(x, a)  y = LayerNormalization(s, g, h)"),
    "bias without shift": text("a = Add(skip, b)  s = Add(x, a)  y = LayerNormalization(s, g)"),
    "bias last": text("a = Add(x, skip)  s = Add(a, b)  y = LayerNormalization(s, g, h)"),
    "the batch on the right": text("s = Add(x, skip)  y = LayerNormalization(s, g, h)", x="1, S, 4"),
    "doubled": text("s = Add(x, x)  y = LayerNormalization(s, g, h)"),
}


@pytest.mark.parametrize("case", FUSED)
def test_it_fuses(case: str) -> None:
    model, _ = run_passes(FUSED[case], FUSE, target="ort")
    assert op_types(model) == [NORM]
    assert_same(FUSED[case], model, exact=False)


@pytest.mark.parametrize("case", FUSED)
def test_the_portable_target_only_reports_it(case: str) -> None:
    model, log = run_passes(FUSED[case], FUSE)
    assert NORM not in op_types(model)
    assert reasons(log) == [f"needs the ort target's {NORM}"]


def test_the_sum_is_an_output_of_the_norm_before_its_other_consumers() -> None:
    source = text("s = Add(x, skip)  e = Neg(s)  n = LayerNormalization(s, g, h)  y = Add(e, n)")
    model, _ = run_passes(source, FUSE, target="ort")
    assert op_types(model) == [NORM, "Neg", "Add"]
    assert_same(source, model, exact=False)


def test_the_sum_may_be_an_output() -> None:
    source = text("s = Add(x, skip)  y = LayerNormalization(s, g, h)", extra=", float[N, S, 4] s")
    model, _ = run_passes(source, FUSE, target="ort")
    assert op_types(model) == [NORM]
    assert_same(source, model, exact=False)


def test_a_bias_that_others_read_stays() -> None:
    source = text("a = Add(x, b)  s = Add(a, skip)  n = LayerNormalization(s, g, h)  y = Mul(n, a)")
    model, _ = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["Add", NORM, "Mul"]
    assert_same(source, model, exact=False)


REFUSED = {
    "a skip for every sequence": (
        text("s = Add(x, skip)  y = LayerNormalization(s, g, h)", skip="N, 1, 4"),
        "the summands may have different shapes",
    ),
    "lengths that may differ": (
        text("s = Add(x, skip)  y = LayerNormalization(s, g, h)", skip="N, T, 4", y="N, Z, 4"),
        "the summands may have different shapes",
    ),
    "two axes": (
        text("s = Add(x, skip)  y = LayerNormalization <axis = 1> (s, g, h)", x="N, 3, 4", skip="N, 3, 4"),
        "it normalises over more than the last axis",
    ),
    "four axes": (
        text("s = Add(x, skip)  y = LayerNormalization(s, g)", x="N, H, S, 4", skip="N, H, S, 4", y="N, H, S, 4"),
        "the kernel takes only matrices or a batch of matrices",
    ),
    "a bias alone": (text("s = Add(x, b)  y = LayerNormalization(s, g, h)"), None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_shapes_the_kernel_does_not_support_stay(case: str) -> None:
    source, reason = REFUSED[case]
    model, log = run_passes(source, FUSE, target="ort")
    assert NORM not in op_types(model)
    assert reasons(log) == ([] if reason is None else [reason])


def test_a_scale_that_is_not_a_vector_is_reported() -> None:
    source = graph_text(
        "agraph (float[N, S, 4] x, float[N, S, 4] skip) => (float[N, S, 4] y) <float[1] g = {2}>"
        "{ s = Add(x, skip)  y = LayerNormalization(s, g) }"
    )
    model, log = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["Add", "LayerNormalization"]
    assert reasons(log) == ["the scale is not a vector as long as the last axis"]


def test_statistics_that_are_read_keep_the_norm() -> None:
    source = graph_text(
        "agraph (float[N, S, 4] x, float[N, S, 4] skip, float[4] g) => (float[N, S, 4] y, float[N, S, 1] m)"
        "{ s = Add(x, skip)  y, m = LayerNormalization(s, g) }"
    )
    model, log = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["Add", "LayerNormalization"]
    assert not log.events


def test_other_precisions_stay() -> None:
    source = graph_text(
        "agraph (double[N, S, 4] x, double[N, S, 4] skip, double[4] g) => (double[N, S, 4] y)"
        "{ s = Add(x, skip)  y = LayerNormalization(s, g) }"
    )
    model, _ = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["Add", "LayerNormalization"]


def test_a_computed_scale_stays_before_the_norm() -> None:
    source = graph_text(
        "agraph (float[N, S, 4] x, float[N, S, 4] skip, float[4] g) => (float[N, S, 4] y)"
        "{ s = Add(x, skip)  e = Exp(g)  y = LayerNormalization(s, e) }"
    )
    model, _ = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["Exp", NORM]
    assert_same(source, model, exact=False)
    twice = source.replace("(float[N, S, 4] y)", "(float[N, S, 4] y, float[N, S, 4] s)")
    model, log = run_passes(twice, FUSE, target="ort")
    assert NORM not in op_types(model)
    assert reasons(log) == ["the sum is also used elsewhere, maybe before the scale is computed"]


def test_a_negative_epsilon_stays() -> None:
    """The kernel does not even load with one."""
    text = graph_text("""agraph (float[N, S, 2] x, float[N, S, 2] skip) => (float[N, S, 2] y)
        <float[2] scale = {2, 3}> {
        s = Add(x, skip)  y = LayerNormalization <epsilon = -0.5> (s, scale) }""")
    model, log = run_passes(text, (FuseSkipLayerNorm(),), target="ort")
    assert op_types(model) == ["Add", "LayerNormalization"]
    assert reasons(log) == ["the kernel takes no negative epsilon"]
