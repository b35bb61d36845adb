"""Root-mean-square normalisation is recognised in every form; similar patterns are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from passes.normalisations import NormalisationForm, constant, forms
from passes.util import assert_same, constant_of, graph_text, op_types, reasons, run_passes
from sardonyx.passes.cleanup.eliminate_identity import EliminateIdentity
from sardonyx.passes.norms.fuse_layer_norm import FuseLayerNorm
from sardonyx.passes.norms.fuse_rms_norm import FuseRmsNorm

PASSES = (EliminateIdentity(), FuseRmsNorm())
CONSTANTS = "float two = {2}, float eps = {0.001}, float[4] gamma = {1, 2, 3, -4}, int64[1] last = {-1}"


def model(body: str, *, x: str = "float[N, S, 4] x", y: str = "float[N, S, 4] y", more: str = "") -> str:
    """A graph at opset 23 with the usual constants."""
    return graph_text(f"agraph ({x}) => ({y}) <{CONSTANTS}{more}> {{ {body} }}", 23)


@pytest.mark.slow
@settings(max_examples=50)
@given(form=forms(about_mean=False, opsets=(23,)))
def test_every_form_is_one_operator(form: NormalisationForm) -> None:
    text = form.text()
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["RMSNormalization", "Relu"], form
    assert_same(text, after, exact=False)


@pytest.mark.parametrize("cast", ["before the scale", "after the scale"])
def test_half_precision_computed_in_float(cast: str) -> None:
    kind = "float16"
    late = cast == "after the scale"
    gamma = constant("float" if late else kind, "gamma", "[4]", 1, 2, 3, -4)
    end = "g = Mul(gamma, n)  y = Cast <to = 10> (g)" if late else "g = Cast <to = 10> (n)  y = Mul(gamma, g)"
    text = graph_text(
        f"""agraph ({kind}[N, S, 4] x) => ({kind}[N, S, 4] y)
            <float eps = {{0.001}}, float two = {{2}}, int64[1] last = {{-1}}, {gamma}> {{
            w = Cast <to = 1> (x)  s = Pow(w, two)  v = ReduceMean(s, last)  e = Add(v, eps)  d = Sqrt(e)
            r = Reciprocal(d)  n = Mul(w, r)  {end} }}""",
        23,
    )
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == (["Cast", "RMSNormalization", "Cast"] if late else ["RMSNormalization"])
    assert_same(text, after, exact=False, rtol=2e-3)


def test_brain_floats_computed_in_float() -> None:
    text = graph_text(
        f"""agraph (bfloat16[N, S, 4] x) => (bfloat16[N, S, 4] y)
            <float eps = {{0.001}}, int64[1] last = {{-1}}, {constant("bfloat16", "gamma", "[4]", 1, 2, 3, -4)}> {{
            w = Cast <to = 1> (x)  s = Mul(w, w)  v = ReduceMean(s, last)  e = Add(v, eps)  d = Sqrt(e)
            n = Div(w, d)  g = Cast <to = 16> (n)  y = Mul(gamma, g) }}""",
        23,
    )
    assert op_types(run_passes(text, PASSES)[0]) == ["RMSNormalization"]


def test_a_cast_that_others_read_stays() -> None:
    """The residual reads the float copy too."""
    text = graph_text(
        f"""agraph (float16[N, S, 4] x) => (float16[N, S, 4] y, float[N, S, 4] z)
            <float eps = {{0.001}}, int64[1] last = {{-1}}, {constant("float16", "gamma", "[4]", 1, 2, 3, -4)}> {{
            w = Cast <to = 1> (x)  s = Mul(w, w)  v = ReduceMean(s, last)  e = Add(v, eps)  d = Sqrt(e)
            n = Div(w, d)  g = Cast <to = 10> (n)  y = Mul(gamma, g)  z = Neg(w) }}""",
        23,
    )
    after, _ = run_passes(text, PASSES)
    assert sorted(op_types(after)) == ["Cast", "Neg", "RMSNormalization"]
    assert_same(text, after, exact=False, rtol=2e-3)


def test_half_precision_with_only_the_root_in_float() -> None:
    text = graph_text(
        f"""agraph (float16[N, S, 4] x) => (float16[N, S, 4] y)
            <float eps = {{0.001}}, int64[1] last = {{-1}}, {constant("float16", "gamma", "[4]", 1, 2, 3, -4)}> {{
            w = Cast <to = 1> (x)  s = Mul(w, w)  v = ReduceMean(s, last)  e = Add(v, eps)  d = Sqrt(e)
            r = Reciprocal(d)  h = Cast <to = 10> (r)  n = Mul(x, h)  y = Mul(gamma, n) }}""",
        23,
    )
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["RMSNormalization"]
    assert_same(text, after, exact=False, rtol=4e-3)


def test_a_rounding_to_half_in_between_is_not_lost() -> None:
    """The value is squared as it was before a round trip through half precision, and divided after it."""
    text = model(
        """h = Cast <to = 10> (x)  w = Cast <to = 1> (h)  s = Mul(x, x)  v = ReduceMean(s, last)  e = Add(v, eps)
        d = Sqrt(e)  n = Div(w, d)  y = Mul(n, gamma)"""
    )
    assert "RMSNormalization" not in op_types(run_passes(text, PASSES)[0])


def test_the_input_is_used_in_half_precision_only_if_the_result_is_cast_back() -> None:
    text = graph_text(
        """agraph (float16[N, S, 4] x) => (float[N, S, 4] y) <float eps = {0.001}, int64[1] last = {-1}> {
            w = Cast <to = 1> (x)  s = Mul(w, w)  v = ReduceMean(s, last)  e = Add(v, eps)  d = Sqrt(e)
            y = Div(w, d) }""",
        23,
    )
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["Cast", "RMSNormalization"]
    np.testing.assert_array_equal(constant_of(list(after.graph)[1].inputs[1]), np.ones(4, np.float32))
    assert_same(text, after, exact=False)


REFUSALS = [
    ("s = Mul(x, x)  v = ReduceMean(s, one)  e = Add(v, eps)  d = Sqrt(e)  y = Div(x, d)", "not over the last axes"),
    ("s = Mul(x, x)  v = ReduceMean(s, last)  d = Sqrt(v)  e = Add(d, eps)  y = Div(x, e)", "epsilon is outside"),
    ("s = Mul(x, x)  v = ReduceMean(s, last)  d = Sqrt(v)  e = Max(d, eps)  y = Div(x, e)", "epsilon is outside"),
    (
        "s = Mul(x, x)  v = ReduceMean(s, last)  e = Add(v, eps)  d = Sqrt(e) t = Neg(x) y = Div(t, d)",
        "not the one that is squared",
    ),
    ("s = Mul(x, x)  v = ReduceMean(s, axes)  e = Add(v, eps)  d = Sqrt(e)  y = Div(x, d)", "are computed"),
    (
        "s = Mul(x, x)  v = ReduceMean <keepdims = 0> (s, last)  e = Add(v, eps)  d = Sqrt(e)  y = Div(x, d)",
        "drops its axes",
    ),
    (
        "s = Mul(x, x) v = ReduceMean(s, last) e = Add(v, eps) d = Sqrt(e) r = Reciprocal(d) t = Neg(r) y = Mul(x, t)",
        "nothing is divided",
    ),
]


@pytest.mark.parametrize(("body", "reason"), REFUSALS)
def test_near_misses_are_refused(body: str, reason: str) -> None:
    text = model(body, x="float[4, 4, 4] x, int64[1] axes", y="float[4, 4, 4] y", more=", int64[1] one = {1}")
    after, log = run_passes(text, PASSES)
    assert "RMSNormalization" not in op_types(after)
    assert any(reason in each for each in reasons(log)), reasons(log)


@pytest.mark.parametrize("inner", ["s", "v", "e", "d", "n"])
def test_intermediate_outputs_are_kept(inner: str) -> None:
    text = model(
        "s = Mul(x, x)  v = ReduceMean(s, last)  e = Add(v, eps)  d = Sqrt(e)  n = Div(x, d)  y = Mul(n, gamma)",
        y=f"float[N, S, 4] y, float[A, B, C] {inner}",
    )
    after, _ = run_passes(text, PASSES)
    assert ("RMSNormalization" in op_types(after)) == (inner == "n")
    assert_same(text, after, exact=False)


def test_a_centred_norm_is_left_to_layer_normalisation() -> None:
    text = NormalisationForm(opset=23).text()
    assert "RMSNormalization" not in op_types(run_passes(text, PASSES)[0])
    assert op_types(run_passes(text, (*PASSES, FuseLayerNorm()))[0]) == ["LayerNormalization", "Relu"]


@pytest.mark.parametrize(
    "body",
    [
        "v = ReduceMean(x, last)  e = Add(v, eps)  d = Sqrt(e)  y = Div(x, d)",
        "s = Pow(x, three)  v = ReduceMean(s, last)  e = Add(v, eps)  d = Sqrt(e)  y = Div(x, d)",
        "s = Mul(x, x)  v = ReduceSum(s, last)  e = Add(v, eps)  d = Sqrt(e)  y = Div(x, d)",
        "s = Mul(x, x)  v = ReduceMean(s, last)  e = Sub(v, eps)  d = Sqrt(e)  y = Div(x, d)",
        "s = Mul(x, x)  v = ReduceMean(s, last)  e = Add(v, gamma)  d = Sqrt(e)  y = Div(x, d)",
    ],
)
def test_other_formulas_are_not_touched(body: str) -> None:
    after, _ = run_passes(model(body, more=", float three = {3}"), PASSES)
    assert "RMSNormalization" not in op_types(after)


def test_doubles_are_refused() -> None:
    after, log = run_passes(NormalisationForm(opset=23, about_mean=False, bias_shape=None).text("double"), PASSES)
    assert "RMSNormalization" not in op_types(after)
    assert any("DOUBLE" in each for each in reasons(log))
