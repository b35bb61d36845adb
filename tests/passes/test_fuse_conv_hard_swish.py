"""A hard swish is fused into its convolution on the ort target, as one operator or as two."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.ort.fuse_conv_add import FuseConvAdd
from sardonyx.passes.ort.fuse_conv_hard_swish import FuseConvHardSwish
from sardonyx.passes.ort.fuse_conv_relu import FuseConvRelu

FUSE = [FuseConvAdd(), FuseConvHardSwish(), FuseConvRelu()]
SIXTH = "<alpha = 0.16666667, beta = 0.5>"


def text(body: str, *, kind: str = "float") -> str:
    constants = f"<{kind}[2, 2, 1, 1] w = {{3, -2, 1, 4}}, {kind}[2] b = {{0.5, -1}}>"
    return graph_text(f"agraph ({kind}[N, 2, 3, 3] x) => ({kind}[N, 2, 3, 3] y) {constants} {{ {body} }}")


FUSED = {
    "one operator": text("a = Conv(x, w, b)  y = HardSwish(a)"),
    "two operators": text(f"a = Conv(x, w, b)  g = HardSigmoid {SIXTH} (a)  y = Mul(a, g)"),
    "gate first": text(f"a = Conv(x, w)  g = HardSigmoid {SIXTH} (a)  y = Mul(g, a)"),
    "after a sum": text("a = Conv(x, w)  s = Add(a, x)  y = HardSwish(s)"),
}


@pytest.mark.parametrize("case", FUSED)
def test_it_fuses(case: str) -> None:
    model, _ = run_passes(FUSED[case], FUSE, target="ort")
    assert op_types(model) == ["FusedConv"]
    assert_same(FUSED[case], model, exact=False)


def test_the_portable_target_only_reports_it() -> None:
    model, log = run_passes(FUSED["two operators"], [FuseConvHardSwish()])
    assert op_types(model) == ["Conv", "HardSigmoid", "Mul"]
    assert reasons(log) == ["needs the ort target's FusedConv"]


LEFT = {
    "another slope": text("a = Conv(x, w)  g = HardSigmoid <alpha = 0.2, beta = 0.5> (a)  y = Mul(a, g)"),
    "another offset": text("a = Conv(x, w)  g = HardSigmoid <alpha = 0.16666667, beta = 0.4> (a)  y = Mul(a, g)"),
    "another value": text(f"a = Conv(x, w)  g = HardSigmoid {SIXTH} (a)  y = Mul(x, g)"),
    "its square": text(f"a = Conv(x, w)  g = HardSigmoid {SIXTH} (a)  y = Mul(g, g)"),
    "double precision": text(f"a = Conv(x, w)  g = HardSigmoid {SIXTH} (a)  y = Mul(a, g)", kind="double"),
}


@pytest.mark.parametrize("case", LEFT)
def test_other_functions_stay(case: str) -> None:
    model, log = run_passes(LEFT[case], [FuseConvHardSwish()], target="ort")
    assert op_types(model) == ["Conv", "HardSigmoid", "Mul"]
    assert not log.events
