"""Hard sigmoid and hard swish are recognised in every grouping; similar functions are not."""

from __future__ import annotations

import pytest

from passes.normalisations import constant
from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.norms.fuse_hard_sigmoid import FuseHardSigmoid
from sardonyx.passes.norms.fuse_hard_swish import FuseHardSwish

SIGMOID, BOTH = (FuseHardSigmoid(),), (FuseHardSigmoid(), FuseHardSwish())


def model(body: str, *, kind: str = "float", rank: str = "", opset: int = 18) -> str:
    """A graph with the usual numbers."""
    numbers = {"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "six": 6, "sixth": 1 / 6, "half": 0.5}
    constants = ", ".join(
        constant(kind, name, "" if name in ("zero", "six", "one") else rank, number) for name, number in numbers.items()
    )
    return graph_text(f"agraph ({kind}[N, 4] x, {kind}[N, 4] w) => ({kind}[A, B] y) <{constants}> {{ {body} }}", opset)


START = "a = Add(x, three)  b = Clip(a, zero, six)"


@pytest.mark.parametrize("rank", ["", "[1]", "[1, 1]"])
@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"{START}  y = Div(b, six)", ["HardSigmoid"]),
        (f"{START}  y = Mul(sixth, b)", ["HardSigmoid"]),
        ("a = Add(three, x)  b = Clip(a, zero, six)  y = Div(b, six)", ["HardSigmoid"]),
        (f"{START}  c = Mul(b, w)  y = Div(c, six)", ["HardSigmoid", "Mul"]),
        (f"{START}  c = Div(b, six)  y = Mul(c, w)", ["HardSigmoid", "Mul"]),
        ("s = Mul(x, sixth)  a = Add(s, half)  b = Clip(a, zero, one)  y = Neg(b)", ["HardSigmoid", "Neg"]),
        ("s = Div(x, two)  a = Add(s, half)  b = Clip(a, zero, one)  y = Mul(w, b)", ["HardSigmoid", "Mul"]),
        (f"{START}  c = Mul(b, x)  y = Div(c, six)", ["HardSwish"]),
        (f"{START}  c = Mul(x, b)  y = Mul(c, sixth)", ["HardSwish"]),
        (f"{START}  c = Div(b, six)  y = Mul(x, c)", ["HardSwish"]),
        (f"h = Div(x, six)  {START}  y = Mul(h, b)", ["HardSwish"]),
    ],
)
def test_every_grouping(body: str, left: list[str], rank: str) -> None:
    text = model(body, rank=rank)
    after, _ = run_passes(text, BOTH)
    assert op_types(after) == left
    assert_same(text, after, exact=False)


def test_bounds_as_attributes() -> None:
    text = model("a = Add(x, three)  b = Clip <min = 0.0, max = 6.0> (a)  y = Div(b, six)", opset=10)
    after, _ = run_passes(text, SIGMOID)
    assert op_types(after) == ["HardSigmoid"]
    assert_same(text, after, exact=False)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f"{START}  y = Div(b, four)", "not divided by its upper bound"),
        (f"{START}  c = Mul(b, x)  y = Mul(c, six)", "not divided by its upper bound"),
        (f"{START}  c = Div(b, six)  d = Neg(a)  y = Add(c, d)", "read elsewhere"),
    ],
)
def test_near_misses_are_refused(body: str, reason: str) -> None:
    after, log = run_passes(model(body), BOTH)
    assert "Clip" in op_types(after)
    assert any(reason in each for each in reasons(log)), reasons(log)


@pytest.mark.parametrize(
    "body",
    [
        "a = Add(x, three)  b = Clip(a, one, six)  y = Div(b, six)",
        "a = Add(x, three)  b = Clip(a, zero)  y = Div(b, six)",
        "a = Add(x, w)  b = Clip(a, zero, six)  y = Div(b, six)",
        "a = Sub(x, three)  b = Clip(a, zero, six)  y = Div(b, six)",
        f"{START}  c = Mul(b, b)  y = Div(c, six)",
        f"{START}  y = Div(six, b)",
        "y = Clip(x, zero, six)",
    ],
)
def test_other_formulas_are_not_touched(body: str) -> None:
    assert "Clip" in op_types(run_passes(model(body), BOTH)[0])


@pytest.mark.parametrize("kind", ["double", "float16"])
def test_other_types_are_refused(kind: str) -> None:
    after, log = run_passes(model(f"{START}  y = Div(b, six)", kind=kind), BOTH)
    assert "Clip" in op_types(after)
    assert any("no kernel" in each for each in reasons(log))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = HardSigmoid <alpha = 0.2> (x)  y = Mul(a, x)", "another slope"),
        ("a = HardSigmoid <alpha = 0.16666667, beta = 0.4> (x)  y = Mul(a, x)", "another slope"),
        ("a = HardSigmoid <alpha = 0.16666667> (x)  y = Mul(a, w)", ""),
        ("a = HardSigmoid <alpha = 0.16666667> (x)  b = Mul(a, x)  y = Add(a, b)", ""),
    ],
)
def test_other_swishes_stay(body: str, reason: str) -> None:
    after, log = run_passes(model(body), BOTH)
    assert "HardSwish" not in op_types(after)
    assert not reason or any(reason in each for each in reasons(log))
