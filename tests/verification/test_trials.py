"""What the trials cover: sizes the graph requires, both sides of its constants, masks, small variances, state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.inputs.generator import Inputs, TrialPlan
from sardonyx.inputs.roles import Role
from sardonyx.inputs.values import Style, hides_whole_row
from sardonyx.ir import io
from sardonyx.runtime import Session
from sardonyx.runtime.library import Feeds, Value
from sardonyx.verification import verify
from verification.text_models import array, text_model

SEEDS = (0, 1, 2, 3)


def inputs_of(body: str, opset: int = 18, /, **weights: np.ndarray) -> Inputs:
    return Inputs(io.from_proto(text_model(body, opset, **weights)))


def sizes(inputs: Inputs, name: str) -> list[int]:
    return [inputs.generate(plan).dims[name] for plan in inputs.plans(SEEDS)]


def base(inputs: Inputs) -> list[TrialPlan]:
    return [plan for plan in inputs.plans(SEEDS) if not plan.sizes]


# Sizes that the graph requires


@pytest.mark.slow
@settings(max_examples=20)
@given(
    width=st.integers(1, 600),
    stride=st.integers(1, 200),
    dilation=st.integers(1, 3),
    layers=st.integers(1, 3),
)
def test_windows_over_a_dynamic_axis_fit(width: int, stride: int, dilation: int, layers: int) -> None:
    steps = " ".join(
        f"c{i + 1} = MaxPool <kernel_shape = [{max(width >> 4 * i, 1)}], strides = [{max(stride >> 3 * i, 1)}],"
        f" dilations = [{dilation}]> (c{i})"
        for i in range(layers)
    )
    proto = text_model(f"g (float[b, 1, n] c0) => (float[b, 1, m] c{layers}) {{ {steps} }}", 12)
    inputs, engine = Inputs(io.from_proto(proto)), Session(proto)
    lengths = set[int]()
    for plan in base(inputs):
        draw = inputs.generate(plan)
        assert array(engine.run(draw.feeds)[0]).size
        lengths.add(draw.dims["n"])
    assert len(lengths) > 1


@settings(max_examples=10)
@given(heads=st.sampled_from([3, 5, 7, 12, 48]), block=st.sampled_from([1, 4, 9]))
def test_sizes_are_divisible_for_reshapes(heads: int, block: int) -> None:
    shape = np.array([0, -1, heads, block], np.int64)
    proto = text_model("g (float[b, n] x) => (float[b, r, h, k] y) { y = Reshape (x, s) }", s=shape)
    inputs, engine = Inputs(io.from_proto(proto)), Session(proto)
    for plan in base(inputs):
        draw = inputs.generate(plan)
        assert draw.dims["n"] % (heads * block) == 0
        engine.run(draw.feeds)


def test_a_dim_of_minus_one_is_dynamic() -> None:
    proto = text_model("g (float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    inputs = Inputs(io.from_proto(proto))
    assert inputs.dynamic == ["x[0]"]
    assert {0, 1, 2} <= set(sizes(inputs, "x[0]"))


def test_operands_of_a_sum_get_the_same_size() -> None:
    inputs = inputs_of(
        "g (float[b, old, 4] c, float[b, new, 4] x, float[q, all, 4] m) => (float[b, all, 4] y)"
        "{ k = Concat <axis = 1> (c, x) y = Add (k, m) }"
    )
    for plan in inputs.plans(SEEDS):
        dims = inputs.generate(plan).dims
        assert dims["all"] == dims["old"] + dims["new"]
        assert dims["q"] == dims["b"]


def test_each_dim_is_empty_alone_and_with_the_others_and_is_one() -> None:
    inputs = inputs_of("g (float[b, n, m] x) => (float[b, n, m] y) { y = Relu (x) }")
    seen = [tuple(inputs.generate(plan).dims.values()) for plan in inputs.plans(SEEDS)]
    zeros = [tuple(size == 0 for size in dims) for dims in seen]
    for alone in ((True, False, False), (False, True, False), (False, False, True), (True, True, True)):
        assert alone in zeros
    assert (1, 1, 1) in seen


# Lengths and values on both sides of the graph's constants

POSITIONS = "s = Shape (x) i = Gather (s, one) r = Range (zero, i, one)"
NUMBERS = {"one": np.array(1), "zero": np.array(0)}


@pytest.mark.parametrize(
    ("route", "needed"),
    [
        ("a = Less (r, c) y = Cast <to = 1> (a)", 78),
        ("a = Cast <to = 1> (r) k = Cast <to = 1> (c) y = Min (a, k)", 78),
        ("d = Sub (i, c) e = Max (d, zero) y = Cast <to = 1> (e)", 78),
        ("d = Div (r, c) y = Cast <to = 1> (d)", 78),
        ("y = Gather (table, r)", 77),
        ("o = Unsqueeze (i, ax) z = Unsqueeze (zero, ax) y = Slice (table, z, o)", 77),
    ],
)
def test_lengths_exceed_what_they_are_compared_with(route: str, needed: int) -> None:
    inputs = inputs_of(
        f"g (float[b, n] x) => (float[k] y) {{ {POSITIONS} {route} }}",
        c=np.array(75 if "Sub" in route else 77),
        table=np.arange(77, dtype=np.float32),
        ax=np.array([0]),
        **NUMBERS,
    )
    longest = max(sizes(inputs, "n"))
    assert longest >= needed
    assert longest == needed or "table" not in route, "no length is larger than its table"


def test_lengths_exceed_the_diagonal_of_a_trilu() -> None:
    body = "g (float[n, 4] x, float[4, n] z) => (float[n, n] y) { m = MatMul (x, z) y = Trilu <upper = 0> (m, c) }"
    assert max(sizes(inputs_of(body, c=np.array(24)), "n")) > 25


def test_a_length_that_is_too_long_to_try_is_noted() -> None:
    body = f"g (float[b, n, 1000] x) => (float[k] y) {{ {POSITIONS} a = Less (r, c) y = Cast <to = 1> (a) }}"
    inputs = inputs_of(body, c=np.array(50_000), **NUMBERS)
    draws = [inputs.generate(plan) for plan in inputs.plans(SEEDS)]
    assert max(array(draw.feeds["x"]).size for draw in draws) <= 1_000_000
    longest = max(draw.dims["n"] for draw in draws)
    assert f"the dimension 'n' was tried up to {longest}; the graph compares it with 50000" in inputs.coverage(draws)


UNDONE = {
    "y = Clip (x, , c)": 300.0,
    "a = Mul (x, two) b = Sub (a, c) y = Clip (b, zero, c)": 300.0,
    "a = Neg (x) b = Exp (a) d = Greater (b, c) y = Where (d, x, two)": -np.log(300.0),
    "a = Sqrt (x) d = Greater (c, a) y = Where (d, x, two)": 90_000.0,
    "a = Transpose <perm = [1, 0]> (x) b = ReduceMax <keepdims = 0> (a) d = Less (b, c) y = Where (d, x, two)": 300.0,
    "y = If (yes) <then_branch = t () => (float[b, n] u) {u = Min (x, c)},"
    " else_branch = e () => (float[b, n] v) {v = Identity (x)}>": 300.0,
}


@pytest.mark.parametrize("route", UNDONE)
def test_values_lie_on_both_sides_of_a_threshold(route: str) -> None:
    inputs = inputs_of(
        f"g (float[b, n] x) => (float[b, n] y) {{ {route} }}",
        c=np.array(300, np.float32),
        two=np.array(2, np.float32),
        zero=np.array(0, np.float32),
        yes=np.array(True),
    )
    numbers = [threshold.number for threshold in inputs.use("x").thresholds]
    assert any(np.isclose(number, UNDONE[route], rtol=1e-5) for number in numbers)
    values = np.concatenate([array(inputs.generate(plan).feeds["x"]).ravel() for plan in inputs.plans(SEEDS)])
    assert (values > UNDONE[route]).any()
    assert (values < UNDONE[route]).any()


@pytest.mark.parametrize(
    ("declared", "condition"),
    [
        ("float[b, 4]", "m = ReduceSum <keepdims = 0> (x) c = Greater (m, t)"),
        ("float[b, 4]", "m = ReduceMean <keepdims = 0> (x) c = Less (m, low)"),
        ("float", "c = Equal (x, t)"),
    ],
)
def test_a_branch_on_the_input_is_taken_both_ways(declared: str, condition: str) -> None:
    """A difference that occurs only in a rare branch."""
    taken = f"t1 () => ({declared} o) {{o = Mul (x, k)}}"
    other = f"e1 () => ({declared} o2) {{o2 = Neg (x)}}"
    branches = f"y = If (c) <then_branch = {taken}, else_branch = {other}>"
    body = f"g ({declared} x) => ({declared} y) {{ {condition} {branches} }}"
    numbers = {"t": np.array(7e6, np.float32), "low": np.array(-40, np.float32)}
    one, other = (text_model(body, 13, k=np.array(k, np.float32), **numbers) for k in (2, 3))
    assert verify(one, one).passed
    assert not verify(one, other).passed


def test_a_size_that_the_graph_asks_for_is_tried() -> None:
    body = "g (float[b, n] x) => (bool y) { s = Shape (x) i = Gather (s, one) y = Equal (i, c) }"
    assert 21 in sizes(inputs_of(body, c=np.array(21), one=np.array(1)), "n")


def test_loop_counts_exceed_what_they_are_compared_with() -> None:
    body = """g (float[n, 2] x) => (float[k, 2] y) {
        s = Shape (x)  i = Gather (s, zero)
        z, y = Loop (i, yes, first) <body = loop (int64 i2, bool go, float[2] v) => (bool on, float[2] u, float[2] w) {
            on = Identity (go)  c = Less (i2, limit)  u = Where (c, v, two)  w = Neg (u) }> }"""
    inputs = inputs_of(
        body,
        zero=np.array(0),
        yes=np.array(True),
        first=np.zeros(2, np.float32),
        limit=np.array(40),
        two=np.full(2, 2, np.float32),
    )
    assert max(sizes(inputs, "n")) > 40


def test_strings_that_the_graph_compares_with_are_generated() -> None:
    inputs = inputs_of("g (string[n] x) => (bool[n] y) { y = Equal (x, known) }", 19, known=np.array(["blue"], object))
    words = {word for plan in inputs.plans(SEEDS) for word in array(inputs.generate(plan).feeds["x"]).tolist()}
    assert "blue" in words
    assert len(words) > 1


def test_token_ids_lie_on_both_sides_of_a_threshold() -> None:
    body = "g (int64[b, n] ids) => (float[b, n, 4] y, bool[b, n] z) { y = Gather (table, ids) z = Less (ids, k) }"
    inputs = inputs_of(body, table=np.zeros((50_000, 4), np.float32), k=np.array(5))
    ids = array(inputs.generate(base(inputs)[0]).feeds["ids"])
    assert (ids < 5).any()
    assert (ids >= 5).any()


def test_a_number_that_the_graph_compares_with_is_generated() -> None:
    inputs = inputs_of("g (int64 mode, float[n] x) => (bool y) { y = Equal (mode, seven) }", seven=np.array(7))
    assert 7 in [int(array(inputs.generate(plan).feeds["mode"])) for plan in inputs.plans(SEEDS)]


def test_thresholds_beyond_the_range_of_float16_are_noted() -> None:
    inputs = inputs_of("g (float16[n] x) => (bool[n] y) { f = Cast <to = 1> (x) y = Greater (f, t) }",
                       t=np.array(1e7, np.float32))  # fmt: skip
    draws = [inputs.generate(plan) for plan in inputs.plans(SEEDS)]
    assert all(np.isfinite(array(draw.feeds["x"])).all() for draw in draws)
    (note,) = inputs.coverage(draws)
    assert "to 65504 were tried" in note
    assert "1e+07" in note


def test_an_input_compared_with_a_number_is_not_a_mask() -> None:
    body = "g (int64[n] t, float[n] x) => (float[n] y) { c = Greater (t, k) z = Neg (x) y = Where (c, z, x) }"
    inputs = inputs_of(body, k=np.array(1001))
    assert inputs.use("t").role is Role.DATA
    values = np.concatenate([array(inputs.generate(plan).feeds["t"]) for plan in inputs.plans(SEEDS)])
    assert values.max() > 1001 > values.min()


# Masks

SCORES = "t = Transpose <perm = [0, 1, 3, 2]> (q) s = MatMul (q, t) a = Add (s, m) p = Softmax (a) y = MatMul (p, q)"


@pytest.mark.parametrize("route", [SCORES, "y = Attention (q, q, q, m)"])
@pytest.mark.parametrize("shape", ["b, 1, n, n", "1, 1, n, n", "n, n"])
def test_float_masks_contain_several_fill_values_and_biases(route: str, shape: str) -> None:
    body = f"g (float[b, 2, n, 4] q, float[{shape}] m) => (float[b, 2, n, 4] y) {{ {route} }}"
    inputs = inputs_of(body, 23)
    assert inputs.use("m").role is Role.ADDED_MASK
    masks = {plan: array(inputs.generate(plan).feeds["m"]) for plan in inputs.plans(SEEDS) if not plan.empty}
    values = np.concatenate([mask.ravel() for mask in masks.values()])
    for fill in (0.0, -1e4, np.finfo(np.float32).min, -np.inf):
        assert (values == np.float32(fill)).any()
    assert ((values > 0) & np.isfinite(values)).any(), "biases that raise a score"
    for plan, mask in masks.items():
        if mask.shape[-1] > 1:
            assert hides_whole_row(mask) == plan.hides_row
    hidden = next(mask for plan, mask in masks.items() if plan.hides_row)
    rows = hidden.reshape(-1, hidden.shape[-1])
    for fill in (-1e4, np.finfo(np.float32).min, -np.inf):
        assert (rows == np.float32(fill)).all(axis=-1).any(), f"no row is hidden whole by {fill}"


def test_a_mask_that_never_masks_a_whole_row_is_noted() -> None:
    inputs = inputs_of(f"g (float[b, 2, n, 4] q, float[b, 1, n, n] m) => (float[b, 2, n, 4] y) {{ {SCORES} }}")
    plans = inputs.plans(SEEDS)
    notes = inputs.coverage([inputs.generate(plan) for plan in plans if not plan.hides_row and not plan.sizes])
    assert "no row of the mask 'm' was masked entirely" in notes
    assert not any("masked" in note for note in inputs.coverage([inputs.generate(plan) for plan in plans]))


INVERTED = {
    "where": "h = Where (m, low, zero)",
    "where of a cast": "l = CastLike (low, q) h = Where (m, l, zero)",
    "not": "k = Not (m) h = Where (k, zero, low)",
    "product": "f = Cast <to = 1> (m) h = Mul (f, low)",
    "equal": "i = Cast <to = 7> (m) k = Equal (i, none) h = Where (k, zero, low)",
}
PLAIN = {
    "where": "h = Where (m, zero, low)",
    "not": "k = Not (m) h = Where (k, low, zero)",
    "one minus": "f = Cast <to = 1> (m) k = Sub (one, f) h = Mul (k, low)",
}


@pytest.mark.parametrize(
    ("inverted", "route"),
    [(inverted, route) for inverted, routes in ((True, INVERTED), (False, PLAIN)) for route in routes.values()],
    ids=[*(f"inverted, {name}" for name in INVERTED), *PLAIN],
)
def test_a_mask_hides_whole_rows_only_if_the_plan_asks_for_it(inverted: bool, route: str) -> None:
    inputs = inputs_of(
        f"g (float[b, n, n] q, bool[b, 1, n] m) => (float[b, n, n] y) {{ {route} a = Add (q, h) y = Softmax (a) }}",
        low=np.array(-1e9, np.float32),
        zero=np.array(0, np.float32),
        one=np.array(1, np.float32),
        none=np.array(0),
    )
    assert (inputs.use("m").role, inputs.use("m").inverted) == (Role.MASK, inverted)
    trials = {plan: inputs.generate(plan) for plan in inputs.plans(SEEDS) if not plan.empty}
    for plan, trial in trials.items():
        hidden = array(trial.feeds["m"]) == inverted
        assert hidden.all(axis=-1).any() == plan.hides_row
    assert not any("masked" in note for note in inputs.coverage(list(trials.values())))
    ordinary = [trial for plan, trial in trials.items() if not plan.hides_row]
    assert "no row of the mask 'm' was masked entirely" in inputs.coverage(ordinary)


# Small variances, large numbers


@pytest.mark.parametrize("shape", [(4, 8), (4, 3, 8), (4, 2, 5, 5)])
def test_norms_get_rows_of_small_variance(shape: tuple[int, ...]) -> None:
    dims = ", ".join(map(str, shape))
    body = f"g (float[{dims}] x) => (float[{dims}] y) {{ y = LayerNormalization (x, g) }}"
    inputs = inputs_of(body, g=np.ones(shape[-1], np.float32))
    (plan,) = [plan for plan in inputs.plans(SEEDS) if plan.style is Style.TINY]
    variances = array(inputs.generate(plan).feeds["x"]).var(axis=-1).ravel()
    assert (variances == 0).any()
    assert ((variances > 1e-13) & (variances < 1e-6)).any()


def test_norms_that_get_no_small_variance_are_noted() -> None:
    body = (
        "g (int64[b, n] i) => (float[b, n, 4] y) { x = Gather (t, i) y = LayerNormalization <epsilon = 1e-5> (x, g) }"
    )
    inputs = inputs_of(body, t=np.ones((9, 4), np.float32), g=np.ones(4, np.float32))
    assert any("epsilon" in note for note in inputs.coverage([inputs.generate(plan) for plan in inputs.plans(SEEDS)]))


def test_large_numbers_are_tried_except_in_float16() -> None:
    for kind, expected in (("float", 1e3), ("int64", 2**40), ("int32", 2**25)):
        inputs = inputs_of(f"g ({kind}[64] x) => ({kind}[64] y) {{ y = Neg (x) }}")
        values = np.concatenate([array(inputs.generate(plan).feeds["x"]) for plan in inputs.plans(SEEDS)])
        assert np.abs(values.astype(np.float64)).max() > expected
    half = inputs_of("g (float16[64] x) => (float16[64] y) { y = Neg (x) }")
    assert all(plan.style is not Style.BIG for plan in half.plans(SEEDS))


# State

CACHED = """g (int64[b, s] ids, float[b, p, 4] past, int64[b, s] position_ids, float[b, t] extra)
    => (float[b, s, 4] y, float[b, t, 4] present) {
        e = Gather (table, ids)  f = Gather (places, position_ids)  x = Add (e, f)
        present = Concat <axis = 1> (past, x)  k = Transpose <perm = [0, 2, 1]> (present)  m = MatMul (x, k)
        o = Unsqueeze (extra, one)  n = Add (m, o)  w = Softmax (n)  y = MatMul (w, present) }"""
RECURRENT = """g (float[s, b, 3] x, float[1, b, 5] h) => (float[1, b, 5] hn) {
    y, hn = GRU <hidden_size = 5> (x, W, R, , , h) }"""


def test_past_keys_come_from_a_previous_step_of_the_model() -> None:
    rng = np.random.default_rng(0)
    table, places = (rng.standard_normal((rows, 4)).astype(np.float32) for rows in (10, 64))
    proto = text_model(CACHED, table=table, places=places, one=np.array([1]))
    inputs, engine = Inputs(io.from_proto(proto)), Session(proto)
    assert inputs.has_state
    reachable = (table[:, None] + places).reshape(-1, 4)
    lengths = set[int]()
    for plan in base(inputs):
        draw = inputs.generate(plan, run=engine.run)
        past = array(draw.feeds["past"])
        assert past.shape[1] == draw.dims["p"] > 0
        for row in past.reshape(-1, 4):
            assert np.abs(reachable - row).sum(axis=-1).min() < 1e-5, "a state that the model never makes"
        if plan.style is not Style.WIDE:
            assert array(draw.feeds["position_ids"])[0, 0] == draw.dims["p"], "positions go on"
        assert draw.dims["t"] == draw.dims["p"] + draw.dims["s"]
        engine.run(draw.feeds)
        lengths.add(draw.dims["p"])
    assert len(lengths) > 1
    assert 0 in sizes(inputs, "p")


def test_recurrent_state_comes_from_outputs_of_the_model() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "W": rng.standard_normal((1, 15, 3)).astype(np.float32),
        "R": rng.standard_normal((1, 15, 5)).astype(np.float32),
    }
    proto = text_model(RECURRENT, **weights)
    inputs, engine = Inputs(io.from_proto(proto)), Session(proto)
    plan = base(inputs)[0]
    steps: list[np.ndarray] = []

    def run(feeds: Feeds) -> list[Value]:
        answers = engine.run(feeds)
        steps.append(array(answers[0]))
        return answers

    fed = array(inputs.generate(plan, run=run).feeds["h"])
    np.testing.assert_array_equal(fed, steps[-1])
    assert not np.array_equal(array(inputs.generate(plan).feeds["h"]), fed), "without the model, at random"


def test_an_image_that_a_model_returns_is_not_state() -> None:
    assert not inputs_of("g (float[b, 3, h, w] x) => (float[b, 3, h, w] y) { y = Relu (x) }").has_state


# How many


def test_trials_are_few_and_the_most_informative_come_first(small_model: Callable[[str, str], Path]) -> None:
    plans = Inputs(io.load(small_model("bert", "torchscript"))).plans(SEEDS)
    assert len(plans) <= 14
    assert [plan.style for plan in plans[:4]] == [Style.NORMAL, Style.LARGE, Style.WIDE, Style.POSITIVE]
    assert not any(plan.optional for plan in plans[:4])
    heavy = inputs_of("g (float[1, 3, 224, 224] x) => (float[1, 3, 224, 224] y) { y = Relu (x) }")
    assert len(heavy.plans(SEEDS)) <= 5
