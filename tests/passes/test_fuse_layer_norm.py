"""Layer normalisation is recognised in every form; similar patterns are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from passes.normalisations import NormalisationForm, constant, forms
from passes.util import assert_same, constant_of, graph_text, op_types, reasons, run_passes
from sardonyx.passes.cleanup.eliminate_identity import EliminateIdentity
from sardonyx.passes.norms.fuse_layer_norm import FuseLayerNorm
from sardonyx.passes.norms.fuse_rms_norm import FuseRmsNorm

PASSES = (FuseLayerNorm(),)
CONSTANTS = "float two = {2}, float eps = {0.001}, float[4] gamma = {1, 2, 3, -4}, float[4] beta = {4, 3, 2, 1}"


def model(body: str, *, x: str = "float[N, S, 4] x", y: str = "float[N, S, 4] y", more: str = "") -> str:
    """A graph at opset 17 with the usual constants."""
    return graph_text(f"agraph ({x}) => ({y}) <{CONSTANTS}{more}> {{ {body} }}", 17)


def mean(axes: str = "-1", more: str = "") -> str:
    """A mean at opset 17."""
    return f"ReduceMean <axes = [{axes}]{more}>"


def half(body: str) -> str:
    """A graph at opset 17 with a scale and a bias in half precision."""
    gamma, beta = constant("float16", "gamma", "[4]", 1, 2, 3, -4), constant("float16", "beta", "[4]", 4, 3, 2, 1)
    return graph_text(body.replace("GAMMA", gamma).replace("BETA", beta), 17)


@pytest.mark.slow
@settings(max_examples=100)
@given(form=forms(about_mean=True, opsets=(17, 18, 23)))
def test_every_form_is_one_operator(form: NormalisationForm) -> None:
    text = form.text()
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization", "Relu"], form
    assert_same(text, after, exact=False)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("order", range(4))
def test_a_difference_multiplied_out(order: int, scaled: bool) -> None:
    """x * r + (beta - mean * r), as Keras writes it, and x * r - mean * r + beta."""
    kind = "float"
    numbers = {"gamma": (1, 2, 3, -4), "beta": (4, 3, 2, 1), "eps": (0.01,)}
    constants = ", ".join(constant(kind, name, f"[{len(row)}]", *row) for name, row in numbers.items())
    ends = (
        "t = Sub(beta, b)  z = Add(a, t)",
        "t = Sub(beta, b)  z = Add(t, a)",
        "t = Sub(a, b)  z = Add(beta, t)",
        "t = Sub(a, b)  z = Relu(t)",
    )
    text = graph_text(
        f"""agraph ({kind}[N, S, 4] x) => ({kind}[N, S, 4] y) <{constants}> {{
        m = {mean()} (x)  c = Sub(x, m)  s = Mul(c, c)  v = {mean()} (s)  e = Add(v, eps)  d = Sqrt(e)
        i = Reciprocal(d)  r = {"Mul(i, gamma)" if scaled else "Identity(i)"}  a = Mul(x, r)  b = Mul(r, m)
        {ends[order]}  y = Neg(z) }}""",
        17,
    )
    after, _ = run_passes(text, (EliminateIdentity(), *PASSES))
    assert op_types(after) == ["LayerNormalization", *(["Relu"] if order == 3 else []), "Neg"]
    assert_same(text, after, exact=False, rtol=2e-5 if kind == "float" else 2e-2)


def test_a_difference_multiplied_out_the_wrong_way_is_refused() -> None:
    text = model(f"""m = {mean()} (x)  c = Sub(x, m)  s = Mul(c, c)  v = {mean()} (s)  e = Add(v, eps)  d = Sqrt(e)
        r = Reciprocal(d)  a = Mul(x, r)  b = Mul(r, m)  t = Sub(b, beta)  y = Add(a, t)""")
    after, log = run_passes(text, PASSES)
    assert "LayerNormalization" not in op_types(after)
    assert any("read elsewhere" in each for each in reasons(log))


@pytest.mark.parametrize("kind", ["mean", "viewed", "dropped", "sum"])
def test_every_form_of_a_mean(kind: str) -> None:
    text = NormalisationForm(mean=kind).text()
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization", "Relu"]
    assert_same(text, after, exact=False)


@pytest.mark.parametrize(("wrong", "reason"), [("Mul(v0, two)", "is scaled"), ("Reshape(v0, to)", "drops its axes")])
def test_means_that_are_changed_are_refused(wrong: str, reason: str) -> None:
    text = model(
        f"m = {mean()} (x)  c = Sub(x, m)  s = Mul(c, c)  v0 = {mean()} (s)  v = {wrong}  e = Add(v, eps)  d = Sqrt(e)"
        " y = Div(c, d)",
        x="float[4, 4, 4] x",
        y="float[4, 4, 4] y",
        more=", int64[3] to = {4, 1, 4}",
    )
    after, log = run_passes(text, PASSES)
    assert "LayerNormalization" not in op_types(after)
    assert any(reason in each for each in reasons(log)), reasons(log)


def test_operands_have_the_types_and_shapes_of_the_operator() -> None:
    after, _ = run_passes(NormalisationForm(scale_shape="ranked", bias_shape="one").text(), PASSES)
    node = next(iter(after.graph))
    scale, bias = (constant_of(node.inputs[place]) for place in (1, 2))
    np.testing.assert_array_equal(scale, np.array([0.5, 2, -3, 1], np.float32))
    np.testing.assert_array_equal(bias, np.full(4, 1.5, np.float32))
    assert node.attributes["epsilon"].as_float() == pytest.approx(0.001)


def test_without_a_scale_ones_are_stored() -> None:
    after, _ = run_passes(NormalisationForm(scale="none", bias_shape=None).text(), PASSES)
    node = next(iter(after.graph))
    np.testing.assert_array_equal(constant_of(node.inputs[1]), np.ones(4, np.float32))
    assert len(node.inputs) == 2


@pytest.mark.parametrize("axes", ["-2, -1", "1, 2", "2, 1"])
def test_several_last_axes(axes: str) -> None:
    text = model(
        f"""m = {mean(axes)} (x)  c = Sub(x, m)  s = Mul(c, c)  v = {mean(axes)} (s)  e = Add(v, eps)
        d = Sqrt(e)  n = Div(c, d)  g = Mul(n, w)  y = Add(g, beta)""",
        x="float[N, 3, 4] x",
        y="float[N, 3, 4] y",
        more=", float[3, 1] w = {1, 2, 3}",
    )
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization"]
    assert next(iter(after.graph)).attributes["axis"].as_int() == -2
    assert_same(text, after, exact=False)


def test_a_computed_scale_is_used_if_it_fits() -> None:
    body = f"""w = Exp(q)  m = {mean()} (x)  c = Sub(x, m)  s = Mul(c, c)  v = {mean()} (s)  e = Add(v, eps)
        d = Sqrt(e)  n = Div(c, d)  y = Mul(w, n)"""
    for shape, left in (("[4]", []), ("[S, 4]", ["Mul"]), ("[1, 1, 4]", ["Mul"]), ("", ["Mul"])):
        text = model(body, x=f"float[N, S, 4] x, float{shape} q")
        after, _ = run_passes(text, PASSES)
        assert op_types(after) == ["Exp", "LayerNormalization", *left]
        assert_same(text, after, exact=False)


def test_a_residual_after_it_is_not_a_bias() -> None:
    text = model(f"""m = {mean()} (x)  c = Sub(x, m)  s = Mul(c, c)  v = {mean()} (s)  e = Add(v, eps)
        d = Sqrt(e)  n = Div(c, d)  g = Mul(n, gamma)  y = Add(x, g)""")
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization", "Add"]
    assert_same(text, after, exact=False)


def test_a_constant_with_more_axes_is_not_fused() -> None:
    text = model(
        f"""m = {mean()} (x)  c = Sub(x, m)  s = Mul(c, c)  v = {mean()} (s)  e = Add(v, eps)
        d = Sqrt(e)  n = Div(c, d)  y = Mul(n, w)""",
        y="float[1, N, S, 4] y",
        more=", float[1, 1, 1, 4] w = {1, 2, 3, 4}",
    )
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization", "Mul"]
    assert_same(text, after, exact=False)


@pytest.mark.parametrize("wide", ["float", "double"])
@pytest.mark.parametrize("twice", [False, True])
def test_half_precision_with_the_cast_after_the_mean(twice: bool, wide: str) -> None:
    """As exported by torch: centred in half, squared and divided in a wider type, back to half for the scale."""
    text = """agraph (float16[N, S, 4] x) => (float16[N, S, 4] y) <
            float two = {2}, float eps = {0.001}, GAMMA, BETA> {
            m = ReduceMean <axes = [-1]> (x)  h = Sub(x, m)  c = Cast <to = 1> (h)  TWICE
            s = Pow(c, two)  v = ReduceMean <axes = [-1]> (s)  e = Add(v, eps)  d = Sqrt(e)
            f = Div(CC, d)  n = Cast <to = 10> (f)  g = Mul(n, gamma)  y = Add(g, beta) }"""
    if wide == "double":
        text = text.replace("to = 1>", "to = 11>").replace("float two", "double two").replace("float eps", "double eps")
    text = half(
        text.replace("TWICE", "c2 = Cast <to = KIND> (h)" if twice else "").replace("CC", "c2" if twice else "c")
    )
    text = text.replace("KIND", "1" if wide == "float" else "11")
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization"]
    assert_same(text, after, exact=False, rtol=4e-3)


def test_half_precision_with_the_cast_before_the_mean() -> None:
    text = half(
        """agraph (float16[N, S, 4] x) => (float16[N, S, 4] y)
            <float eps = {0.001}, GAMMA> {
            w = Cast <to = 1> (x)  m = ReduceMean <axes = [-1]> (w)  c = Sub(w, m)  s = Mul(c, c)
            v = ReduceMean <axes = [-1]> (s)  e = Add(v, eps)  d = Sqrt(e)
            f = Div(c, d)  n = Cast <to = 10> (f)  y = Mul(n, gamma) }"""
    )
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization"]
    assert_same(text, after, exact=False, rtol=2e-3)


def test_a_scale_in_float_stays_between_the_casts() -> None:
    text = half(
        """agraph (float16[N, S, 4] x) => (float16[N, S, 4] y)
            <float eps = {0.001}, float[4] gamma = {1, 2, 3, -4}> {
            w = Cast <to = 1> (x)  m = ReduceMean <axes = [-1]> (w)  c = Sub(w, m)  s = Mul(c, c)
            v = ReduceMean <axes = [-1]> (s)  e = Add(v, eps)  d = Sqrt(e)
            n = Div(c, d)  g = Mul(n, gamma)  y = Cast <to = 10> (g) }"""
    )
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["Cast", "LayerNormalization", "Cast"]
    assert_same(text, after, exact=False, rtol=2e-3)


def test_brain_floats() -> None:
    after, _ = run_passes(NormalisationForm(scale_shape="ranked", bias_shape=None).text("bfloat16"), PASSES)
    assert op_types(after) == ["LayerNormalization", "Relu"]
    scale = next(iter(after.graph)).inputs[1]
    assert scale is not None
    assert scale.const_value is not None
    assert scale.const_value.dtype.name == "BFLOAT16"
    np.testing.assert_array_equal(constant_of(scale).astype(np.float32), np.array([0.5, 2, -3, 1], np.float32))


def test_squares_in_half_precision_are_refused() -> None:
    after, log = run_passes(NormalisationForm().text("float16"), PASSES)
    assert "LayerNormalization" not in op_types(after)
    assert any("overflows from 256 on" in each for each in reasons(log))


BODY = "m = {m} (x)  c = Sub(x, m)  s = Mul(c, c)  v = {v} (s)  e = Add(v, eps)  d = Sqrt(e)  n = Div(c, d)"
REFUSALS = [
    (BODY.format(m=mean("1"), v=mean("1")), "not over the last axes"),
    (BODY.format(m=mean(), v=mean("-2, -1")), "different axes"),
    (BODY.format(m=mean("-2, -1"), v=mean()), "different axes"),
    (BODY.format(m=mean(), v=mean()).replace("Mul(c, c)", "Mul(c, c)  q = Neg(c)"), "read elsewhere"),
    (BODY.format(m=mean(), v=mean()).replace("Sqrt(e)", "Sqrt(e)  q = Neg(d)"), "read elsewhere"),
    (BODY.format(m=mean(), v=mean()).replace("Div(c, d)", "Div(c, d)  q = Neg(m)"), "read elsewhere"),
    (
        f"m = {mean()} (x)  c = Sub(x, m)  s = Mul(c, c)  v = {mean()} (s)  e = Sqrt(v) d = Add(e, eps) n = Div(c, d)",
        "epsilon is outside",
    ),
    (BODY.format(m=mean(), v=mean()).replace("Div(c, d)", "Div(d, c)"), "nothing is divided"),
    (BODY.format(m=mean(), v=mean()).replace("Div(c, d)", "Div(x, d)"), "not the one that is squared"),
]


@pytest.mark.parametrize(("body", "reason"), REFUSALS)
def test_near_misses_are_refused(body: str, reason: str) -> None:
    more = "  z = Identity(q)" if "q =" in body else "  z = Identity(x)"
    text = model(f"{body}  y = Mul(n, gamma) {more}", y="float[N, S, 4] y, float[A, B, C] z")
    after, log = run_passes(text, PASSES)
    assert "LayerNormalization" not in op_types(after)
    assert any(reason in each for each in reasons(log)), reasons(log)


TWICE = "m = M (x)  c = Sub(x, m)  s = Mul(c, c)  v = M (s)  e = Add(v, eps)  d = Sqrt(e)  {second}  n = Div(k, d)"
OUT = "m = M (x)  c = Sub(x, m)  s = Mul(c, c)  v = M (s)  e = Add(v, eps)  d = Sqrt(e)  r = Reciprocal(d)  {rest}"
CENTRED_OTHERWISE = [
    TWICE.format(second=f"o = {mean('-2, -1')} (x)  k = Sub(x, o)"),  # over other axes
    TWICE.format(second="o = M (z)  k = Sub(z, o)"),  # another value
    TWICE.format(second="o = M (x)  k = Sub(z, o)"),
    TWICE.format(second="o = M (x)  k = Sub(o, x)"),
    OUT.format(rest=f"o = {mean('-2, -1')} (x)  a = Mul(x, r)  b = Mul(o, r)  n = Sub(a, b)"),
    OUT.format(rest="a = Mul(z, r)  b = Mul(m, r)  n = Sub(a, b)"),
    OUT.format(rest="a = Mul(x, r)  b = Mul(m, r)  n = Sub(b, a)"),
    OUT.format(rest="a = Mul(x, r)  b = Mul(m, r)  n = Add(a, b)"),
    OUT.format(rest="a = Mul(x, r)  b = Mul(m, r)  n = Mul(a, b)"),
    OUT.format(rest="a = Mul(x, r)  b = Add(m, r)  n = Sub(a, b)"),
    OUT.format(rest="a = Mul(x, r)  b = Mul(m, r)  t = Sub(beta, b)  n = Add(z, t)"),
    OUT.format(rest="a = Mul(x, r)  b = Mul(m, r)  t = Sub(beta, b)  n = Mul(a, t)"),
    OUT.format(rest="a = Mul(x, r)  b = Mul(m, r)  t = Sub(b, b)  n = Add(a, t)"),
    OUT.format(rest="a = Mul(x, r)  b = Mul(m, r)  p = Sub(a, b)  n = Mul(p, r)"),
]


@pytest.mark.parametrize("body", CENTRED_OTHERWISE)
def test_a_numerator_that_is_not_the_value_squared_is_refused(body: str) -> None:
    """The value of an operator would be another one, so the equal forms beside these must not match too widely."""
    text = model(f"{body.replace('M (', f'{mean()} (')}  y = Mul(n, gamma)", x="float[N, S, 4] x, float[N, S, 4] z")
    assert "LayerNormalization" not in op_types(run_passes(text, (*PASSES, FuseRmsNorm()))[0])


def test_a_mean_that_drops_its_axis_is_refused() -> None:
    drop = mean("-1", ", keepdims = 0")
    text = model(
        f"m = {drop} (x)  c = Sub(x, m)  s = Mul(c, c)  v = {drop} (s)  e = Add(v, eps)  d = Sqrt(e)  y = Div(c, d)",
        x="float[4, 4] x",
        y="float[4, 4] y",
    )
    after, log = run_passes(text, PASSES)
    assert "LayerNormalization" not in op_types(after)
    assert any("drops its axes" in each for each in reasons(log))


def test_the_mean_of_another_value_is_refused() -> None:
    text = model(
        f"m = {mean()} (x)  c = Sub(z, m)  s = Mul(c, c)  v = {mean()} (s) e = Add(v, eps) d = Sqrt(e) y = Div(c, d)",
        x="float[N, S, 4] x, float[N, S, 4] z",
    )
    assert "LayerNormalization" not in op_types(run_passes(text, (*PASSES, FuseRmsNorm()))[0])


def test_an_epsilon_that_adds_an_axis_stays() -> None:
    text = model(
        f"m = {mean()} (x)  c = Sub(x, m)  s = Mul(c, c)  v = {mean()} (s)  e = Add(v, far) d = Sqrt(e) y = Div(c, d)",
        y="float[1, N, S, 4] y",
        more=", float[1, 1, 1, 1] far = {0.001}",
    )
    assert "LayerNormalization" not in op_types(run_passes(text, PASSES)[0])


def test_doubles_are_refused() -> None:
    after, log = run_passes(NormalisationForm().text("double"), PASSES)
    assert "LayerNormalization" not in op_types(after)
    assert any("DOUBLE" in each for each in reasons(log))


def test_an_unknown_size_without_a_scale_is_refused() -> None:
    text = model(
        f"m = {mean()} (x)  c = Sub(x, m)  s = Mul(c, c)  v = {mean()} (s) e = Add(v, eps) d = Sqrt(e) y = Div(c, d)",
        x="float[N, S, K] x",
        y="float[N, S, K] y",
    )
    after, log = run_passes(text, PASSES)
    assert "LayerNormalization" not in op_types(after)
    assert any("is unknown" in each for each in reasons(log))


def test_a_scale_that_widens_an_axis_is_not_fused() -> None:
    """x has one element on that axis, and a scale of four elements broadcasts it to four."""
    text = model(
        f"""m = {mean()} (x)  c = Sub(x, m)  s = Mul(c, c)  v = {mean()} (s)  e = Add(v, eps)  d = Sqrt(e)
        n = Div(c, d)  y = Mul(n, gamma)""",
        x="float[N, S, 1] x",
    )
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization", "Mul"]
    assert_same(text, after, exact=False)


def test_older_opsets_are_raised_or_refused_with_the_needed_opset() -> None:
    text = NormalisationForm(opset=13).text()
    after, log = run_passes(text, PASSES)
    assert op_types(after)[0] == "LayerNormalization" or any("opset 17" in each for each in reasons(log))
    assert_same(text, after, exact=False)


def test_a_norm_without_epsilon_stays() -> None:
    """For equal numbers the operator has a variance of 0 and divides 0 by it; the source has rounding errors."""
    body = f"m = {mean()} (x)  d = Sub (x, m)  q = Pow (d, two)  v = {mean()} (q)  s = Sqrt (v)  y = Div (d, s)"
    _, log = run_passes(model(body), PASSES)
    assert reasons(log) == ["it has no epsilon"]
