"""Residual sums are fused into the root-mean-square norm after them on the ort target."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.ort.fuse_skip_rms_norm import FuseSkipRmsNorm

FUSE = [FuseSkipRmsNorm()]
NORM = "SkipSimplifiedLayerNormalization"


def text(body: str, *, skip: str = "N, S, 4", outputs: str = "float[N, S, 4] y") -> str:
    constants = "<float[4] g = {1, -2, 3, 0.5}, float[4] b = {3, -4, 5, 6}>"
    head = f"agraph (float[N, S, 4] x, float[{skip}] skip) => ({outputs}) {constants}"
    return graph_text(head + " {" + body + "}", 23).replace("ir_version: 10", "ir_version: 11")


FUSED = {
    "plain": text("s = Add(x, skip)  y = RMSNormalization <epsilon = 0.01> (s, g)"),
    "default epsilon": text("s = Add(skip, x)  y = RMSNormalization <axis = 2> (s, g)"),
    "bias": text("a = Add(x, b)  s = Add(a, skip)  y = RMSNormalization(s, g)"),
    "without a batch": text("s = Add(x, skip)  y = RMSNormalization(s, g)", skip="S, 4"),
    "the sum too": text("s = Add(x, skip)  y = RMSNormalization(s, g)", outputs="float[N, S, 4] y, float[N, S, 4] s"),
}


@pytest.mark.parametrize("case", FUSED)
def test_it_fuses(case: str) -> None:
    model, _ = run_passes(FUSED[case], FUSE, target="ort")
    assert op_types(model) == [NORM]
    assert_same(FUSED[case], model, exact=False)


def test_the_portable_target_only_reports_it() -> None:
    model, log = run_passes(FUSED["plain"], FUSE)
    assert op_types(model) == ["Add", "RMSNormalization"]
    assert reasons(log) == [f"needs the ort target's {NORM}"]


def test_other_axes_stay() -> None:
    source = text("s = Add(x, skip)  y = RMSNormalization <axis = 1> (s, g)").replace("S, 4", "3, 4")
    model, log = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["Add", "RMSNormalization"]
    assert reasons(log) == ["it normalises over more than the last axis"]


def test_a_negative_epsilon_stays_where_a_kernel_takes_it() -> None:
    given = text("s = Add(x, skip)  y = RMSNormalization <epsilon = -0.5> (s, g)")
    model, log = run_passes(given, FUSE, target="ort")
    assert op_types(model) == ["Add", "RMSNormalization"]
    assert reasons(log) == ["the kernel takes no negative epsilon"]
