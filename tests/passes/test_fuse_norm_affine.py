"""A constant scale or shift after a normalisation becomes part of its scale and bias."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.normalisations import constant
from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.norms.fuse_norm_affine import FuseNormAffine

PASSES = (FuseNormAffine(),)
SHAPES = {"[3]": (1, 2, -3), "[1, 3]": (0.5, 2, 4), "": (1.5,), "[1, 1]": (-2,)}


def model(body: str, *, inputs: str = "", outputs: str = "", axis: str = "-1", kind: str = "float") -> str:
    """A normalisation of `x` by `NORM(x, ...)`, with constants of several shapes."""
    constants = [constant(kind, f"c{place}", shape, *row) for place, (shape, row) in enumerate(SHAPES.items())]
    constants += [constant(kind, "ones", "[3]", 1, 1, 1), constant(kind, "row", "[3]", 3, 1, -2)]
    body = body.replace("NORM", f"LayerNormalization <axis = {axis}> ").replace("RMS", "RMSNormalization")
    return graph_text(
        f"agraph ({kind}[N, 3] x{inputs}) => ({kind}[A, B] y{outputs}) <{', '.join(constants)}> {{ {body} }}", 23
    )


steps = st.tuples(st.sampled_from(["Mul(V, C)", "Mul(C, V)", "Add(V, C)", "Add(C, V)"]), st.integers(0, 3))


@pytest.mark.slow
@settings(max_examples=50)
@given(
    following=st.lists(steps, min_size=1, max_size=4), start=st.sampled_from(["ones", "row", "ones, row", "row, row"])
)
def test_any_number_of_constants_is_fused(following: list[tuple[str, int]], start: str) -> None:
    lines, last = [f"v0 = NORM(x, {start})"], "v0"
    for place, (step, which) in enumerate(following, 1):
        lines.append(f"v{place} = " + step.replace("C", f"c{which}").replace("V", last))
        last = f"v{place}"
    text = model(" ".join([*lines, f"y = Neg({last})"]))
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization", "Neg"]
    assert_same(text, after, exact=False)


def test_root_mean_square_has_no_bias() -> None:
    text = model("a = RMS(x, row)  b = Mul(a, c0)  y = Add(b, c0)")
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["RMSNormalization", "Add"]
    assert_same(text, after, exact=False)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = NORM(x, ones)  y = Mul(a, q)", []),
        ("a = NORM(x, row)  y = Add(a, q)", []),
        ("a = NORM(x, ones)  b = Mul(a, q)  y = Add(b, c0)", []),
        ("a = NORM(x, row)  y = Mul(a, q)", ["Mul"]),
        ("a = NORM(x, row, c0)  y = Add(a, q)", ["Add"]),
        ("a = NORM(x, ones, c0)  y = Mul(q, a)", ["Mul"]),
    ],
)
def test_computed_operands_are_fused_if_the_norm_has_none(body: str, left: list[str]) -> None:
    text = model(body, inputs=", float[3] q")
    after, log = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization", *left]
    assert_same(text, after, exact=False)
    assert bool(left) == any("not both constant" in each for each in reasons(log))


@pytest.mark.parametrize("body", ["a = NORM(x, ones)  y = Mul(a, x)", "a = NORM(x, ones)  y = Add(x, a)"])
def test_a_residual_stays(body: str) -> None:
    after, _ = run_passes(model(body), PASSES)
    assert len(op_types(after)) == 2


@pytest.mark.parametrize("axis", ["0", "-2"])
def test_other_axes(axis: str) -> None:
    """For a norm over both axes the scale must have both."""
    text = model("a = NORM(z, g)  y = Mul(a, c0)", inputs=", float[2, 3] z, float[2, 3] g", axis=axis)
    assert op_types(run_passes(text, PASSES)[0]) == ["LayerNormalization", "Mul"]
    text = model("a = NORM(z, s)  y = Add(a, c0)", inputs=", float[2, 3] z, float[2, 3] s", axis=axis)
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization"]
    assert_same(text, after, exact=False)


def test_a_value_that_others_read_is_kept() -> None:
    text = model("a = NORM(x, ones)  y = Mul(a, c0)", outputs=", float[C, D] a")
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization", "Mul"]


def test_statistics_that_are_read_stay() -> None:
    text = model("a, m = NORM(x, ones)  y = Mul(a, c0)", outputs=", float[C, D] m")
    after, log = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization", "Mul"]
    assert "statistics of the normalisation are read" in reasons(log)


def test_half_precision() -> None:
    text = model("a = NORM(x, ones)  b = Mul(a, c1)  y = Add(b, c2)", kind="float16")
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["LayerNormalization"]
    assert_same(text, after, exact=False, rtol=4e-3)
