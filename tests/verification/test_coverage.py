"""Values and lengths at which models differ are tried, and what was not tried is noted."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.inputs.generator import Inputs, TrialInputs
from sardonyx.ir import io
from sardonyx.records.run import Verdict
from sardonyx.verification import verify
from sardonyx.verification.subject import Subject
from verification.text_models import array, text_model

SEEDS = (0, 1, 2, 3)
RNG = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return (0.3 * RNG.standard_normal(shape)).astype(np.float32)


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def trials(body: str, **weights: np.ndarray) -> tuple[Inputs, dict[str, TrialInputs]]:
    """The generator of a model's inputs, and those of every trial by its label."""
    inputs = Inputs(io.from_proto(text_model(body, **weights)))
    return inputs, {plan.label: inputs.generate(plan) for plan in inputs.plans(SEEDS)}


def unchanged(body: str, **weights: np.ndarray) -> Verdict:
    model = text_model(body, **weights)
    verdict = verify(model, model)
    assert verdict.passed
    return verdict


# Rows of tables

LOOKUP = "g (int64[b, n] i) => (float[b, n, 2] y) { y = Gather (t, i) }"


@settings(max_examples=15)
@given(rows=st.integers(1, 70), seed=st.integers(0, 1000))
def test_every_row_of_a_small_table_is_looked_up(rows: int, seed: int) -> None:
    inputs = Inputs(io.from_proto(text_model(LOOKUP, t=np.zeros((rows, 2), np.float32))))
    draws = [inputs.generate(plan) for plan in inputs.plans(range(seed, seed + 4))]
    assert {int(i) for draw in draws for i in array(draw.feeds["i"]).reshape(-1)} == set(range(rows))
    assert inputs.coverage(draws) == []


def test_no_row_is_looked_up_twice_while_others_are_left() -> None:
    inputs, draws = trials(LOOKUP, t=np.zeros((1000, 2), np.float32))
    rows = [array(draw.feeds["i"]).reshape(-1) for draw in draws.values()]
    fresh = np.concatenate([ids[:-2] for ids in rows])  # the last two are both ends of the table
    assert len(np.unique(fresh)) == fresh.size > 70
    looked_up = len(np.unique(np.concatenate(rows)))
    assert inputs.coverage(list(draws.values())) == [f"'i' looked up {looked_up} of 1000 rows of 't'"]


def test_several_tables_share_one_note() -> None:
    body = "g (int64[n] i, int64[n] k) => (float[n] a, float[n] b) { a = Gather (t, i) b = Gather (c, k) }"
    inputs, draws = trials(body, t=np.zeros(200, np.float32), c=np.zeros(300, np.float32))
    (note,) = inputs.coverage(list(draws.values()))
    assert note.startswith("'k' looked up ")
    assert note.endswith(" of 300 rows of 'c' (and 1 more of this kind)")


@pytest.mark.parametrize(
    "route", ["h = OneHot (i, depth, v) y = MatMul (h, t)", "c = Cast <to = 10> (t) y = Gather (c, i)"]
)
def test_rows_are_counted_whatever_looks_them_up(route: str) -> None:
    weights = {"depth": np.array(400), "v": np.array([0, 1], np.float32)} if "OneHot" in route else {}
    inputs, draws = trials(f"g (int64[n] i) => (float[n, 2] y) {{ {route} }}", t=weight(400, 2), **weights)
    (note,) = inputs.coverage(list(draws.values()))
    assert " of 400 rows of " in note


def test_indices_into_another_input_are_not_noted() -> None:
    inputs, draws = trials("g (float[900] x, int64[n] i) => (float[n] y) { y = Gather (x, i) }")
    assert inputs.coverage(list(draws.values())) == []


# Rows of zeros, numbers of one sign


@pytest.mark.parametrize("shape", ["n, 64", "4, 64", "1, 8, 12", "b, n, 8", "1, 3, 9, 9", "b, 3, h, w"])
def test_a_norm_along_each_axis_is_zero_once(shape: str) -> None:
    _, draws = trials(f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Abs (x) }}")
    x = array(draws["wide"].feeds["x"])
    for axis in range(1, x.ndim):
        assert (x == 0).all(axis=axis).any()
    assert not (x == 0).all()


@settings(max_examples=30)
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_rows_of_zeros_leave_most_of_an_input(shape: list[int]) -> None:
    listed = ", ".join(map(str, shape))
    _, draws = trials(f"g (float[{listed}] x) => (float[{listed}] y) {{ y = Abs (x) }}")
    x = array(draws["wide"].feeds["x"])
    zero_rows = (x == 0).all(axis=-1) if x.shape[-1] > 3 else np.zeros(1)  # single zeros occur too
    assert np.mean(zero_rows) <= 1 / 3


def test_nan_for_a_row_of_zeros_in_both_is_equal() -> None:
    head = "g (float[n, 8] x) => (float[n, 8] y) { n0 = ReduceL2 <keepdims = 1> (x, ax)"
    one = text_model(f"{head} y = Div (x, n0) }}", ax=np.array([-1]))
    other = text_model(f"{head} r = Reciprocal (n0) y = Mul (x, r) }}", ax=np.array([-1]))
    assert verify(one, other).passed


def test_a_single_row_that_is_never_zero_is_noted() -> None:
    body = "g (float[1, 8] x) => (float[1, 8] y) { m = ReduceMean (x, ax) y = Sub (x, m) }"
    inputs, draws = trials(body, ax=np.array([-1]))
    assert inputs.coverage(list(draws.values())) == ["no row of zeros was tried for 'x', which the graph normalizes"]


def test_large_numbers_have_one_sign_in_some_items() -> None:
    _, draws = trials("g (float[b, n] x) => (float[b, n] y) { y = Tanh (x) }")
    mixed, positive, negative = array(draws["big"].feeds["x"])
    assert mixed.min() < 0 < mixed.max()
    assert positive.min() >= 10
    assert negative.max() <= -10


# Integer masks

SCORES = (
    "g (float[b, s, 4] q, {kind}[b, s] m) => (float[b, s, 4] y) {{ kt = Transpose <perm = [0, 2, 1]> (q)"
    " c = MatMul (q, kt) {test} u = Unsqueeze (k, a1) w = Where (u, zero, low) a = Add (c, w) p = Softmax (a)"
    " y = MatMul (p, q) }}"
)
FILLS = {"zero": number(0), "low": number(-1e9), "a1": np.array([1])}


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("test", ["k = Cast <to = 9> (m)", "f = Cast <to = 1> (m) k = Greater (f, zero)"])
def test_a_mask_that_is_only_tested_holds_other_numbers(kind: str, test: str) -> None:
    _, draws = trials(SCORES.format(kind=kind, test=test), **FILLS)
    seen = {int(n) for n in array(draws["wide"].feeds["m"]).reshape(-1)}
    assert seen == ({0, 1, 2, 3} if kind == "uint8" else {-1, 0, 1, 2, 3})
    assert (array(draws["wide"].feeds["m"]) == 1).any(axis=-1).all(), "every row keeps a position"
    assert {int(n) for n in array(draws["normal"].feeds["m"]).reshape(-1)} == {0, 1}


def test_a_mask_that_is_counted_holds_zeros_and_ones() -> None:
    body = SCORES.format(kind="int64", test="k = Cast <to = 9> (m) l = ReduceSum (m)").replace("y)", "y, int64[1,1] l)")
    _, draws = trials(body, **FILLS)
    assert {int(n) for draw in draws.values() for n in array(draw.feeds["m"]).reshape(-1)} == {0, 1}


# Windows and remainders


@settings(max_examples=15)
@given(width=st.integers(2, 300), dilation=st.integers(1, 4), halvings=st.integers(0, 4))
def test_windows_fit_at_some_length(width: int, dilation: int, halvings: int) -> None:
    steps = " ".join(f"x{i + 1} = MaxPool <kernel_shape = [2], strides = [2]> (x{i})" for i in range(halvings))
    reach = (width - 1) * dilation
    pool = f"MaxPool <kernel_shape = [{width}], dilations = [{dilation}], pads = [{width // 2}, {width // 2}]>"
    if reach + 1 <= 2 * (width // 2):
        return  # the runtime accepts no padding as wide as the window
    body = f"g (float[b, 1, n] x0) => (float[b, 1, m] y) {{ {steps} y = {pool} (x{halvings}) }}"
    inputs, draws = trials(body)
    assert max(draw.dims["n"] for draw in draws.values()) >= (reach + 1) << halvings
    assert inputs.coverage(list(draws.values())) == []


def test_a_window_that_fits_anyway_adds_no_trial() -> None:
    _, plain = trials("g (float[b, 1, n] x) => (float[b, 1, n] y) { y = Abs (x) }")
    body = "g (float[b, 1, n] x) => (float[b, 1, m] y) { y = Conv <pads = [7, 7]> (x, w) }"
    assert list(trials(body, w=weight(1, 1, 15))[1]) == list(plain)


def test_windows_that_are_too_wide_to_try_are_noted() -> None:
    convs = [f"Conv <dilations = [{step}], pads = [{step}, {step}]>" for step in (50_000, 60_000)]
    body = f"g (float[b, 2, n] x) => (float[b, 2, m] y) {{ c = {convs[0]} (x, w) y = {convs[1]} (c, w) }}"
    inputs = Inputs(io.from_proto(text_model(body, w=weight(2, 2, 3))))
    draws = [inputs.generate(plan) for plan in inputs.plans(SEEDS)[:4]]
    longest = max(draw.dims["n"] for draw in draws)
    assert inputs.coverage(draws) == [
        f"the window of Conv 'y' spans 120001; its axis was tried up to {longest} (and 1 more of this kind)"
    ]


def test_a_length_is_a_multiple_of_the_number_that_a_remainder_is_taken_of() -> None:
    body = "g (float[b, n] x) => (int64[1] y) { s = Shape <start = 1> (x) y = Mod (s, k) }"
    _, draws = trials(body, k=np.array([1024]))
    assert 1024 in {draw.dims["n"] for draw in draws.values()}


# Comparisons anywhere

PRODUCT = "g (float[n, 8] x) => (float[n, 8] y) { h = MatMul (x, w) a = Tanh (h) "


@pytest.mark.parametrize(
    ("rest", "note"),
    [
        ("c = Greater (a, two) y = Where (c, x, a)", "Greater 'c' with 2 was false in all trials"),
        ("c = Less (a, two) y = Where (c, x, a)", "Less 'c' with 2 was true in all trials"),
        ("c = Greater (a, half) y = Where (c, x, a)", None),
        ("y = Clip (a, half, two)", "no value of Clip 'y' was above 2"),
        ("y = Clip (a, , half)", None),
        ("y = Max (low, a)", "no value of Max 'y' was below -2"),
        ("y = Min (a, half)", None),
        ("b = Max (low, a) y = Min (b, two)", "no value of Max 'b' was below -2 (and 1 more of this kind)"),
        ("s = Shape (a) c = Greater (s, i) k = Cast <to = 1> (c) r = ReduceMax (k) y = Add (a, r)", None),
        (
            "d = Cast <to = 11> (h) q = Mul (d, d) r = Cast <to = 1> (q) y = Add (a, r)",
            "no value of Cast 'd' was above 1.8e+19, whose square overflows in float32",
        ),
        ("d = Cast <to = 11> (h) q = Mul (d, i2) r = Cast <to = 1> (q) y = Add (a, r)", None),
    ],
)
def test_comparisons_with_one_result_are_noted(rest: str, note: str | None) -> None:
    constants = {"two": number(2), "half": number(0.5), "low": number(-2), "i": np.array(1000), "i2": np.array(2.0)}
    used = {name: value for name, value in constants.items() if re.search(rf"\b{name}\b", rest)}
    verdict = unchanged(f"{PRODUCT}{rest} }}", w=weight(8, 8), **used)
    assert verdict.not_covered == ((note,) if note else ())
    assert any(0 in trial.dims.values() for trial in verdict.trials), "an empty batch is still accepted"


def test_further_outputs_are_left_out() -> None:
    model = io.from_proto(text_model("g (float[n] x) => (float[n] y, float[n] z) { y = Abs (x) z = Neg (x) }"))
    with Subject(model).session(outputs=1) as session:
        (result,) = session.run({"x": np.array([-1], np.float32)})
        assert array(result) == 1
        assert [[float(array(value)[0]) for value in run] for run in session.further] == [[1.0]]


# Pairs of models that differ

TABLE = weight(60, 2)
NORM = "g (float[{0}] x) => (float[{0}] y) {{ n0 = ReduceL2 <keepdims = 1> (x, ax) {1} }}"
STRIDED = " ".join(f"c{i + 1} = Conv <strides = [2], pads = [1, 1]> (c{i}, k)" for i in range(3))
DEEP = f"g (float[b, 1, t] c0) => (float[b, 1, u] y) {{ {STRIDED} y = Conv <pads = [4, 4]> (c3, w) }}"
WIDE_TAPS, TAPS = weight(1, 1, 9), weight(1, 1, 3)
GRU = {"w": weight(1, 24, 4), "r": weight(1, 24, 8)}
GATED = (
    "g (float[s, b, 4] x) => (float[s, 1, b, 8] y)"
    "{ h, last = GRU <hidden_size = 8> (x, w, r) c = Greater (h, t) d = Neg (h) y = Where (c, d, h) }"
)
PAIRS = {
    "a row of a small table": (
        (LOOKUP, {"t": TABLE}),
        (LOOKUP, {"t": TABLE * np.where(np.arange(60) == 33, 2, 1).astype(np.float32)[:, None]}),
    ),
    "the guard of a norm over channels": (
        (NORM.format("1, 8, 12", "m = Max (n0, e) y = Div (x, m)"), {"ax": np.array([1]), "e": number(1e-12)}),
        (NORM.format("1, 8, 12", "y = Div (x, n0)"), {"ax": np.array([1])}),
    ),
    "a tap behind strides": (
        (DEEP, {"k": TAPS, "w": WIDE_TAPS}),
        (DEEP, {"k": TAPS, "w": WIDE_TAPS * np.array([3, *[1] * 8], np.float32)}),
    ),
    "a threshold behind a recurrence": ((GATED, {**GRU, "t": number(0.999)}), (GATED, {**GRU, "t": number(1.5)})),
    "a mask above 1": (
        (SCORES.format(kind="int64", test="k = Greater (m, c1)"), {**FILLS, "c1": np.array(1)}),
        (SCORES.format(kind="int64", test="k = Equal (m, c2)"), {**FILLS, "c2": np.array(2)}),
    ),
    "a mask that is not zero": (
        (SCORES.format(kind="int64", test="k = Greater (m, c0)"), {**FILLS, "c0": np.array(0)}),
        (SCORES.format(kind="int64", test="k = Cast <to = 9> (m)"), FILLS),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_models_that_differ_rarely_are_told_apart(name: str) -> None:
    (one, first), (other, second) = PAIRS[name]
    assert not verify(text_model(one, **first), text_model(other, **second)).passed
