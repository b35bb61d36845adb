"""Residuals and activations are fused into their convolution on the ort target; nothing is broadcast."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.ort.fuse_conv_add import FuseConvAdd
from sardonyx.passes.ort.fuse_conv_relu import FuseConvRelu

FUSE = [FuseConvAdd(), FuseConvRelu()]
SHAPES = "the sum may have different shapes"


def text(body: str, *, z: str = "N, 2, 5, 5", kind: str = "float") -> str:
    weights = "{1, -2, 3, 0.5, 0, 1, 2, -1, 1, 1, 0.5, 2, -3, 1, 0, 1, 2, 1}"
    constants = f"<{kind}[2, 1, 3, 3] w = {weights}, {kind}[2] b = {{0.5, -1}}, {kind}[2, 1, 1] c = {{1, 2}}>"
    return graph_text(
        f"agraph ({kind}[N, 1, 5, 5] x, {kind}[{z}] z) => ({kind}[N, 2, 5, 5] y) {constants} {{ {body} }}"
    )


CONV = "a = Conv <pads = [1, 1, 1, 1]>"
FUSED = {
    "right": text(f"{CONV} (x, w, b)  y = Add(a, z)"),
    "left": text(f"{CONV} (x, w, b)  y = Add(z, a)"),
    "no bias": text(f"{CONV} (x, w)  y = Add(z, a)"),
    "then an activation": text(f"{CONV} (x, w, b)  s = Add(a, z)  y = Relu(s)"),
    "no bias, then an activation": text(f"{CONV} (x, w)  s = Add(a, z)  y = LeakyRelu <alpha = 0.3> (s)"),
}


@pytest.mark.parametrize("case", FUSED)
def test_it_fuses(case: str) -> None:
    model, _ = run_passes(FUSED[case], FUSE, target="ort")
    assert op_types(model) == ["FusedConv"]
    assert_same(FUSED[case], model, exact=False)


def test_one_of_two_added_convolutions_is_fused() -> None:
    source = text(f"{CONV} (x, w, b)  e = Conv <pads = [1, 1, 1, 1]> (x, w)  s = Add(a, e)  y = Relu(s)")
    model, _ = run_passes(source, FUSE, target="ort")
    assert sorted(op_types(model)) == ["Conv", "FusedConv"]
    assert_same(source, model, exact=False)


def test_a_convolution_with_other_uses_leaves_the_fusion_to_the_other() -> None:
    source = text(f"{CONV} (x, w, b)  e = Conv <pads = [1, 1, 1, 1]> (x, w)  s = Add(a, e)  y = Mul(a, s)")
    model, _ = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["Conv", "FusedConv", "Mul"]
    assert_same(source, model, exact=False)


def test_an_activation_is_not_followed_by_a_sum() -> None:
    source = text(f"{CONV} (x, w, b)  r = Relu(a)  y = Add(r, z)")
    model, _ = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["FusedConv", "Add"]
    assert_same(source, model, exact=False)


def test_the_portable_target_only_reports_it() -> None:
    model, log = run_passes(FUSED["right"], FUSE)
    assert op_types(model) == ["Conv", "Add"]
    assert reasons(log) == ["needs the ort target's FusedConv"]


@pytest.mark.parametrize("z", ["N, 2, 1, 1", "1, 2, 5, 5", "M, 2, 5, 5", "5"])
def test_nothing_is_broadcast(z: str) -> None:
    source = text(f"{CONV} (x, w, b)  y = Add(a, z)", z=z)
    model, log = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["Conv", "Add"]
    assert [SHAPES in reason for reason in reasons(log)] == [True]


def test_other_precisions_have_no_kernel() -> None:
    model, log = run_passes(text(f"{CONV} (x, w, b)  y = Add(a, z)", kind="double"), FUSE, target="ort")
    assert op_types(model) == ["Conv", "Add"]
    assert not log.events
