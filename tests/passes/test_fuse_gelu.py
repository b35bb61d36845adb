"""The Gaussian error linear unit is recognised in every grouping; similar functions are not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.normalisations import constant
from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.norms.fuse_gelu import FuseGelu

PASSES = (FuseGelu(),)
ROOT, TANH, CUBIC = math.sqrt(2), math.sqrt(2 / math.pi), 0.044715

ERF = {
    "divided": "a = Div(x, root)  f = Erf(a)",
    "multiplied": "a = Mul(x, inverse)  f = Erf(a)",
    "multiplied, flipped": "a = Mul(inverse, x)  f = Erf(a)",
}
CUBE = {
    "Pow": "c = Pow(x, three)",
    "square times": "s = Mul(x, x)  c = Mul(s, x)",
    "times square": "s = Pow(x, two)  c = Mul(x, s)",
}
TANHS = {
    **{f"{name} cube": f"{cube}  k = Mul(c, cubic)  t = Add(x, k)  a = Mul(t, tanh)" for name, cube in CUBE.items()},
    "flipped": "c = Pow(x, three)  k = Mul(cubic, c)  t = Add(k, x)  a = Mul(tanh, t)",
    "nested": "u = Mul(tanh, x)  q = Mul(cubic, x)  s = Mul(q, x)  t = Add(one, s)  a = Mul(u, t)",
    "spread": "u = Mul(tanh, x)  c = Pow(x, three)  k = Mul(c, both)  a = Add(u, k)",
    "divided": "c = Pow(x, three)  k = Div(c, over)  t = Add(x, k)  a = Mul(tanh, t)",
}
PRODUCTS = {
    "half last": "p = Add(f, one)  g = Mul(x, p)  z = Mul(g, half)",
    "halved last": "p = Add(one, f)  g = Mul(p, x)  z = Div(g, two)",
    "half first": "h = Mul(half, x)  p = Add(f, one)  z = Mul(h, p)",
    "halved first": "h = Div(x, two)  p = Add(f, one)  z = Mul(p, h)",
    "half of the sum": "p = Add(f, one)  h = Mul(p, half)  z = Mul(x, h)",
    "half of both": "h = Mul(f, half)  p = Add(h, half)  z = Mul(x, p)",
    "quarters": "p = Add(f, one)  h = Div(p, two)  i = Div(x, two)  j = Mul(h, i)  z = Mul(j, two)",
}


def model(body: str, *, kind: str = "float", rank: str = "", y: str = "", opset: int = 20, **changed: float) -> str:
    """A graph with all constants, some of which may have other values."""
    numbers = {"root": ROOT, "inverse": 1 / ROOT, "tanh": TANH, "cubic": CUBIC, "both": TANH * CUBIC, "over": 1 / CUBIC}
    numbers |= {"one": 1, "two": 2, "three": 3, "half": 0.5} | changed
    constants = ", ".join(constant(kind, name, rank, number) for name, number in numbers.items())
    results = f"{kind}[A, B] y{y}"
    return graph_text(f"agraph ({kind}[N, 5] x) => ({results}) <{constants}> {{ {body} y = Neg(z) }}", opset)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    argument=st.sampled_from([*ERF.values(), *(f"{text}  f = Tanh(a)" for text in TANHS.values())]),
    product=st.sampled_from(list(PRODUCTS.values())),
    rank=st.sampled_from(["", "[1]", "[1, 1]"]),
)
def test_every_grouping_is_one_operator(argument: str, product: str, rank: str) -> None:
    text = model(f"{argument}  {product}", rank=rank)
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["Gelu", "Neg"]
    approximate = next(iter(after.graph)).attributes.get_string("approximate", "none")
    assert approximate == ("tanh" if "Tanh" in argument else "none")
    assert_same(text, after, exact=False)


@pytest.mark.parametrize("name", [*ERF, *TANHS])
def test_half_precision(name: str) -> None:
    argument = ERF[name] if name in ERF and name != "divided" else f"{TANHS.get(name, TANHS['Pow cube'])}  f = Tanh(a)"
    text = model(f"{argument}  {PRODUCTS['half last']}", kind="float16")
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["Cast", "Gelu", "Cast", "Neg"]
    assert_same(text, after, exact=False, rtol=4e-3)


@pytest.mark.parametrize(
    "changed",
    [{"root": 1.41}, {"root": 1.41422}, {"half": 0.499}, {"half": 1.0}, {"half": -0.5}],
)
def test_other_constants_are_refused_by_erf(changed: dict[str, Any]) -> None:
    after, log = run_passes(model(f"{ERF['divided']}  {PRODUCTS['half last']}", **changed), PASSES)
    assert "Gelu" not in op_types(after)
    assert any("another function" in each for each in reasons(log))


@pytest.mark.parametrize("changed", [{"tanh": 0.8}, {"cubic": 0.0447}, {"cubic": -CUBIC}])
def test_other_constants_are_refused_by_tanh(changed: dict[str, Any]) -> None:
    text = model(f"{TANHS['Pow cube']}  f = Tanh(a)  {PRODUCTS['half first']}", **changed)
    after, log = run_passes(text, PASSES)
    assert "Gelu" not in op_types(after)
    assert any("another function" in each for each in reasons(log))


@pytest.mark.parametrize(
    "body",
    [
        "a = Div(x, root)  f = Erf(a)  p = Add(f, half)  g = Mul(x, p)  z = Mul(g, half)",  # not 1
        "a = Div(x, root)  f = Erf(a)  p = Sub(f, one)  g = Mul(x, p)  z = Mul(g, half)",
        "a = Div(root, x)  f = Erf(a)  p = Add(f, one)  g = Mul(x, p)  z = Mul(g, half)",
        "n = Exp(x)  a = Div(n, root)  f = Erf(a)  p = Add(f, one)  g = Mul(x, p)  z = Mul(g, half)",  # another x
        "a = Div(x, root)  f = Erf(a)  p = Add(f, one)  g = Div(x, p)  z = Mul(g, half)",
        "a = Div(x, root)  f = Tanh(a)  p = Add(f, one)  g = Mul(x, p)  z = Mul(g, half)",
        "c = Pow(x, three)  k = Mul(c, cubic)  t = Add(x, k)  a = Mul(t, tanh)  f = Erf(a)  p = Add(f, one)"
        " g = Mul(x, p)  z = Mul(g, half)",
        "c = Pow(x, two)  k = Mul(c, cubic)  t = Add(x, k)  a = Mul(t, tanh)  f = Tanh(a)  p = Add(f, one)"
        " g = Mul(x, p)  z = Mul(g, half)",
    ],
)
def test_other_formulas_are_not_touched(body: str) -> None:
    assert "Gelu" not in op_types(run_passes(model(body), PASSES)[0])


@pytest.mark.parametrize("inner", ["a", "f", "p"])
def test_intermediate_outputs_are_kept(inner: str) -> None:
    text = model(f"{ERF['divided']}  {PRODUCTS['half last']}", y=f", float[C, D] {inner}")
    after, _ = run_passes(text, PASSES)
    assert "Gelu" not in op_types(after)
    assert_same(text, after, exact=False)


def test_a_constant_that_adds_an_axis_stays() -> None:
    text = model(f"{ERF['divided']}  {PRODUCTS['half last']}", rank="[1, 1, 1]").replace(
        "float[A, B] y", "float[A, B, C] y"
    )
    assert "Gelu" not in op_types(run_passes(text, PASSES)[0])


def test_x_that_is_itself_scaled_is_found() -> None:
    """The input was multiplied with a number that is not part of the formula."""
    text = model("w = Mul(x, two)  a = Div(w, root)  f = Erf(a)  h = Mul(w, half)  p = Add(f, one)  z = Mul(h, p)")
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["Mul", "Gelu", "Neg"]
    assert_same(text, after, exact=False)


@pytest.mark.parametrize("kind", ["double", "bfloat16"])
def test_types_without_a_kernel_are_refused(kind: str) -> None:
    text = model(f"{TANHS['Pow cube']}  f = Tanh(a)  {PRODUCTS['half last']}", kind=kind)
    after, log = run_passes(text, PASSES)
    assert "Gelu" not in op_types(after)
    assert any(kind.upper() in each for each in reasons(log))
