"""A bias before a fused residual norm is fused into it, on either side and for every rank."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, run_passes
from sardonyx.passes.ort.fuse_skip_bias import FuseSkipBias

ABSORB = [FuseSkipBias()]
CONSTANTS = (
    "<float[4] g = {1, -2, 3, 0.5}, float[4] h = {0.5, 1, -1, 2},"
    " float[4] b = {3, -4, 5, 6}, float[1, 1, 4] c = {1, 2, -3, 4}>"
)


def text(body: str) -> str:
    head = f"agraph (float[N, S, 4] x, float[N, S, 4] skip) => (float[N, S, 4] y) {CONSTANTS}"
    model = graph_text(head + " {" + body + "}")
    return model.replace('"" : 18', '"" : 18, "com.microsoft" : 1')


ABSORBED = {
    "on the input": text("a = Add(x, b)  y = com.microsoft.SkipLayerNormalization(a, skip, g, h)"),
    "on the skip": text("a = Add(c, skip)  y = com.microsoft.SkipLayerNormalization(x, a, g, h)"),
    "no shift": text("a = Add(c, x)  y = com.microsoft.SkipLayerNormalization <epsilon = 0.1> (a, skip, g)"),
    "simplified": text(
        "a = Add(x, c)  y = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.1> (a, skip, g)"
    ),
}


@pytest.mark.parametrize("case", ABSORBED)
def test_it_fuses(case: str) -> None:
    model, _ = run_passes(ABSORBED[case], ABSORB, target="ort")
    assert len(op_types(model)) == 1
    assert_same(ABSORBED[case], model, exact=False)


def test_only_one_bias_has_a_place() -> None:
    source = text("a = Add(x, b)  e = Add(skip, c)  y = com.microsoft.SkipLayerNormalization(a, e, g, h)")
    model, _ = run_passes(source, ABSORB, target="ort")
    assert op_types(model) == ["Add", "SkipLayerNormalization"]
    assert_same(source, model, exact=False)
