"""Sizes of the trials: within the limit on elements, as the operators require, and no arithmetic in plain names."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sardonyx
from sardonyx.errors import RuntimeFailure, VerificationFailed
from sardonyx.inputs.generator import Inputs
from sardonyx.inputs.sizes import MOST_INPUT_ELEMENTS, MOST_VALUE_ELEMENTS, MOST_WORK
from sardonyx.ir import io
from sardonyx.records.run import Verdict
from sardonyx.verification import verify
from verification.text_models import text_model

SEEDS = (0, 1, 2, 3)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def signed(body: str, **weights: np.ndarray) -> onnx.ModelProto:
    """A model from text, with `___` for " + " and `__` for "-" in dims: onnx 1.20 does not parse names in quotes."""
    proto = text_model(body, **weights)
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = dim.dim_param.replace("___", " + ").replace("__", "-")
    return proto


def verified(body: str, **weights: np.ndarray) -> Verdict:
    verdict = verify(signed(body, **weights), signed(body, **weights), threads=1)
    assert verdict.passed, verdict.failures
    return verdict


def shapes(body: str, **weights: np.ndarray) -> list[list[tuple[int, ...]]]:
    """The shapes of the inputs in every trial, in the first way."""
    inputs = Inputs(io.from_proto(text_model(body, **weights)))
    return [inputs.shapes(plan) for plan in inputs.plans(SEEDS)]


# Limits


@given(st.lists(st.one_of(st.sampled_from("abcdefghijkl"), st.integers(1, 300)), min_size=1, max_size=12))
def test_inputs_are_as_small_as_the_limit_or_as_their_static_dims_allow(dims: list[int | str]) -> None:
    """One dimension of 2 must be possible as well, so that the limit is doubled where all sizes of 1 exceed it."""
    text = ", ".join(map(str, dims))
    least = math.prod(dim for dim in dims if isinstance(dim, int))
    if least > 1 << 23:
        return
    inputs = Inputs(io.from_proto(text_model(f"g (float[{text}] x) => (float[{text}] y) {{ y = Relu (x) }}")))
    for plan in inputs.plans(SEEDS):
        assert inputs.cost(plan) <= max(MOST_INPUT_ELEMENTS, 2 * least)


def test_a_value_computed_from_small_inputs_is_limited_too() -> None:
    """The outer product of all elements: 2·7·10·13 · 4·16·19·22 elements at the usual sizes."""
    body = """g (float[a, b, c, d] x, float[e, f, g, h] y) => (float[n, m] z)
        <int64[2] column = {-1, 1}, int64[2] row = {1, -1}>
        { u = Reshape (x, column) v = Reshape (y, row) z = Mul (u, v) }"""
    for first, second in shapes(body):
        assert math.prod(first) * math.prod(second) <= MOST_VALUE_ELEMENTS


def test_many_dynamic_dims_are_tried_at_several_small_sizes_and_the_verdict_says_so() -> None:
    dims = ", ".join("abcdefghi")
    verdict = verified(f"g (float[{dims}] x) => (float[{dims}] y) {{ y = Softmax <axis = 6> (x) }}")
    filled = [trial.dims for trial in verdict.trials if 0 not in trial.dims.values()]
    assert all(len({dims[name] for dims in filled}) > 1 for name in "abcdefghi")
    assert len(set(filled[0].values())) > 1
    assert any(note.startswith("only small sizes were tried (a ≤ ") for note in verdict.not_covered)


def test_usual_sizes_are_not_reduced() -> None:
    verdict = verified("g (float[n, s, 64] x) => (float[n, s, 64] y) { y = Relu (x) }")
    assert max(trial.dims["s"] for trial in verdict.trials) == 16
    assert not verdict.not_covered


def test_wide_static_dims_leave_room_for_one_dim_of_two() -> None:
    body = "g (float[n, c, 1024, 4096] x) => (float[n, c, 1024, 4096] y) { y = Relu (x) }"
    first, *others = (one for one, *_ in shapes(body))
    assert first[:2] == (1, 2)
    assert (2, 1) in {shape[:2] for shape in others}


def test_an_input_that_does_not_fit_in_memory_is_refused_in_one_line() -> None:
    model = text_model(f"g (float[{2**62}, {2**62}] x) => (float[{2**62}, {2**62}] y) {{ y = Relu (x) }}")
    with pytest.raises(RuntimeFailure, match=r"2\.1e\+37 elements"):
        verify(model, model, threads=1)


def test_a_batch_of_none_does_not_make_an_input_small() -> None:
    model = text_model(f"g (float[b, {2**63 - 1}] x) => (float[b, {2**63 - 1}] y) {{ y = Relu (x) }}")
    with pytest.raises(RuntimeFailure, match=r"an input of \S+ elements is larger than any in a trial"):
        verify(model, model, threads=1)


def test_a_value_that_does_not_fit_in_memory_is_refused_in_one_line() -> None:
    model = text_model("g (float[65536, 1] x, float[65536] y) => (float z) { a = Mul (x, y) z = ReduceMax (a) }")
    with pytest.raises(RuntimeFailure, match=r"a value of \S+ elements is larger than any in a trial"):
        verify(model, model, threads=1)


@pytest.mark.parametrize(
    ("body", "work"),
    [
        ("float[b, 5, 7] x, float[b, 7, 9] w) => (float[b, 5, 9] y) { y = MatMul (x, w)", 5 * 7 * 9),
        ("float[7, b] x, float[7, 9] w) => (float[b, 9] y) { y = Gemm <transA = 1> (x, w)", 7 * 9),
        ("float[b, 6, 8] x, float[4, 3, 3] w) => (float[b, 4, 6] y) { y = Conv <group = 2> (x, w)", 4 * 6 * 3 * 3),
        ("float[b, 6, 8] x, float[6, 4, 3] w) => (float[b, 4, 10] y) { y = ConvTranspose (x, w)", 6 * 8 * 4 * 3),
        ('float[b, 5, 7] x, float[7, 9] w) => (float[b, 9] y) { y = Einsum <equation = "bij,jk->bk"> (x, w)', 315),
        ("float[b, 2, 5, 8] x, float[b, 2, 6, 8] w) => (float[b, 2, 5, 8] y) { y = Attention (x, w, w)", 960),
        ("float[b, 5] x, float[5] w) => (float[b, 5] y) { y = Add (x, w)", 5),
    ],
)  # fmt: skip
def test_the_work_of_a_trial_is_the_number_of_its_multiplications(body: str, work: int) -> None:
    inputs = Inputs(io.from_proto(text_model(f"g ({body} }}", 23)))
    for plan in inputs.plans(SEEDS):
        assert inputs.work(plan) == work * inputs.generate(plan).dims["b"]


def test_the_body_of_a_scan_is_work_in_every_step() -> None:
    """1,024 steps that compute 100 elements each, beside 1,024 rows of 100 elements."""
    model = text_model("""g (float[1024, 100] x) => (float[1024, 100] y) {
        y = Scan <num_scan_inputs = 1, body = body (float[100] row) => (float[100] out) { out = Abs (row) }> (x) }""")
    inputs = Inputs(io.from_proto(model))
    assert {inputs.work(plan) for plan in inputs.plans(SEEDS)} == {2 * 1024 * 100}


def test_a_run_that_is_too_much_for_the_reference_evaluator_is_refused() -> None:
    model = text_model("g (float[2048, 2048] x) => (float[2048, 2048] y) { y = MatMul (x, x) }")
    with pytest.raises(RuntimeFailure, match=r"a run of 8\.6e\+09 operations is larger than any in a trial"):
        verify(model, model, runtimes=("reference",))


def test_sizes_are_chosen_under_a_limit_on_work() -> None:
    """A kernel of 2²⁶ weights; the usual sizes have 1,820 positions of 64 elements."""
    body = f"""g (float[n, 64, d, h, w] x, float[64, 64, 25, 25, 25] k) => (float[n, 64, d, h, w] y)
        {{ y = Conv <pads = {[12] * 6}> (x, k) }}"""
    inputs = Inputs(io.from_proto(text_model(body)))
    assert all(inputs.work(plan) <= MOST_WORK for plan in inputs.plans(SEEDS))


def test_long_lengths_beside_wide_static_dims_end() -> None:
    """The graph compares s with 5000; no length beyond it fits."""
    body = """g (float[s, 2000, 1000] x) => (float[s, 2000, 1000] y)
        <int64[1] top = {5000}, int64[1] bottom = {0}> { y = Slice (x, bottom, top, bottom) }"""
    assert all(math.prod(one) <= 1 << 22 for one, *_ in shapes(body))


# Requirements of operators


@pytest.mark.parametrize(
    ("body", "weights", "dim", "size"),
    [
        ("float[b, c, l] x) => (float[b, c, l] y) { y = InstanceNormalization (x, w, w)", (1,), "c", 1),
        ("float[b, c, l] x) => (float[b, c, l] y) { y = BatchNormalization (x, w, w, w, w)", (24,), "c", 24),
        ("float[b, c, l] x) => (float[b, 4, k] y) { y = Conv <group = 2, pads = [1, 1]> (x, w)", (4, 20, 3), "c", 40),
        ("float[b, c, l] x) => (float[b, 4, k] y) { y = ConvTranspose (x, w)", (50, 4, 3), "c", 50),
        ("float[b, c] x) => (float[b, 4] y) { y = Gemm <transB = 1> (x, w)", (4, 80), "c", 80),
        ("float[b, c] x) => (float[c, 4] y) { y = Gemm <transA = 1> (x, w)", (80, 4), "b", 80),
        ("float[b, c, l] x) => (float[b, c, 4] y) { y = MatMul (x, w)", (33, 4), "l", 33),
        ("float[b, c, l] x) => (float[b, c, l] y) { y = LayerNormalization (x, w)", (33,), "l", 33),
        ("float[b, c, l] x) => (float[b, c, l] y) { y = PRelu (x, w)", (33, 1), "c", 33),
        ("float[b, c, l] x) => (float[b, l] y) <int64[1] a = {1}> { y = Squeeze (x, a)", (1,), "c", 1),
        ("float[b, c] x) => (float[b, p] y) <int64[2] a = {9, 41}> { y, z = Split <axis = 1> (x, a)", (1,), "c", 50),
        ("float[b, c, l] x) => (float[b, c, 4] y) { y = Einsum <equation = \"bcl,ld->bcd\"> (x, w)", (33, 4), "l", 33),
        ("float[t, b, c] x) => (float[t, 1, b, 3] y) { y = GRU <hidden_size = 3> (x, w, r)", (1, 9, 21), "c", 21),
    ],
)  # fmt: skip
def test_a_dim_that_a_parameter_fixes_has_that_size(body: str, weights: tuple[int, ...], dim: str, size: int) -> None:
    model = io.from_proto(text_model(f"g ({body} }}", w=random(*weights), r=random(1, 9, 3)))
    inputs = Inputs(model)
    ordinary = [plan for plan in inputs.plans(SEEDS) if not plan.optional]
    assert {inputs.generate(plan).dims[dim] for plan in ordinary} == {size}


def test_a_size_beyond_the_limit_is_chosen_if_nothing_smaller_is_accepted() -> None:
    """A product needs 3,072 rows of 3,072 elements; the other dimensions are then small."""
    body = "g (float[a, b, 3072] x, float[c, d, 3072] y) => (float[a, b, 3072] z) { z = MatMul (x, y) }"
    first = shapes(body)[0]
    assert first[1] == (1, 3072, 3072)
    assert first[0][0] == 1
    assert first[0][1] <= 4


def test_only_the_dim_that_needs_it_is_larger_beyond_the_limit() -> None:
    """Two groups of two channels: the batch is 1 or 2, not 3 or 4 as beside narrow inputs."""
    body = "g (float[a, b, 1024, 4096] x) => (float[a, 6, 1024, 4096] y) { y = Conv <group = 2> (x, w) }"
    chosen = [first for (first,) in shapes(body, w=random(6, 2, 1, 1))]
    assert {first[1] for first in chosen if math.prod(first)} == {4}
    assert {first[0] for first in chosen} == {0, 1, 2}


def test_a_channel_that_a_norm_fixes_is_verified() -> None:
    body = "g (float[b, c, l] x) => (float[b, c, l] y) { y = InstanceNormalization (x, w, w) }"
    assert len(verified(body, w=random(1)).trials) > 5


def test_a_sum_of_dims_with_factors_is_solved() -> None:
    body = """g (float[b, t] m, float[b, p] x, float[b, s] y) => (float[b, t] z)
        { c = Concat <axis = 1> (x, y, y) z = Add (m, c) }"""
    assert all(dims["t"] == dims["p"] + 2 * dims["s"] for dims in (trial.dims for trial in verified(body).trials))


# Names


def test_names_with_a_hyphen_are_names() -> None:
    a = "g (float[batch__size, seq__len] x) => (float[batch__size, seq__len] y) <float k = {2}> { y = Mul (x, k) }"
    assert not verify(signed(a), signed(a.replace("{2}", "{3}")), threads=1).passed
    assert {trial.dims["seq-len"] for trial in verified(a).trials} > {7, 16}


def test_a_formula_of_other_dims_chooses_sizes_and_is_broken_once() -> None:
    """A model that takes the name for a fact, and pads by it, differs only where the formula does not hold."""
    header = "g (float[b, past___seq] m, float[b, past] x, float[b, seq] y) => (float[b, n] z)"
    a = header + " { z = Concat <axis = 1> (m, x, y) }"
    sizes = [trial.dims for trial in verified(a).trials]
    broken = [dims for dims in sizes if "past + seq" in dims]
    assert len(broken) == 1
    assert len(sizes) > 8
    assert broken[0]["past + seq"] != broken[0]["past"] + broken[0]["seq"]
    fact = (
        header
        + """ <int64[1] axis = {1}, int64[1] zero = {0}> { c = Concat <axis = 1> (x, y)
        s = Shape <start = 1, end = 2> (c) k = Slice (m, zero, s, axis) z = Concat <axis = 1> (k, x, y) }"""
    )
    verdict = verify(signed(a), signed(fact), threads=1)
    assert [trial.dims.get("past + seq") for trial in verdict.trials if not trial.passed] == [broken[0]["past + seq"]]


def test_a_formula_that_the_model_contradicts_is_not_kept() -> None:
    body = """g (float[b, p___s] m, float[b, p] x, float[b, s] y) => (float[b, n] z)
        { c = Concat <axis = 1> (x, y, y) z = Add (m, c) }"""
    dims = [trial.dims for trial in verified(body).trials]
    assert all(each["p + s"] == each["p"] + 2 * each["s"] for each in dims)


# Empty outputs


def test_outputs_that_are_empty_in_every_trial_are_not_verified() -> None:
    body = "g (float[n] x) => (float[m] y) { k = Less (x, x) y = Compress <axis = 0> (x, k) }"
    model = text_model(body)
    with pytest.raises(VerificationFailed, match="not verified: all outputs were empty in every trial") as caught:
        verify(model, model, threads=1)
    assert caught.value.exit_code == 3
    assert caught.value.hint
    with pytest.raises(VerificationFailed, match="not verified"):
        sardonyx.optimize(model)


def test_an_output_that_is_empty_for_every_input_is_compared_by_its_shape() -> None:
    body = "g (float[n, 4] x) => (float[n, 0] y) <int64[1] a = {1}, int64[1] s = {4}> { y = Slice (x, s, s, a) }"
    assert verified(body).trials
