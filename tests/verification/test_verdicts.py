"""Verdicts about pairs of models: what is tried, what differs, and what is said not to be covered, as before."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest

import recorded
from sardonyx import verify
from sardonyx.errors import SardonyxError
from sardonyx.ir import io
from sardonyx.records.run import Accuracy
from sardonyx.verification.reference import Budget, is_constant, is_empty
from sardonyx.verification.subject import interface_changes, random_outputs

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'
ROWS = "g (float[N, 4] x) => (float[N, 4] y) "
PAIRS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "the same": (ROWS + "{ y = Relu(x) }", ROWS + "{ y = Relu(x) }", {}),
    "another function": (ROWS + "{ y = Relu(x) }", ROWS + "{ y = Abs(x) }", {}),
    "one of two outputs": (
        "g (float[N] x) => (float[N] y, float[N] z) { y = Relu(x) z = Neg(x) }",
        "g (float[N] x) => (float[N] y, float[N] z) { y = Relu(x) z = Exp(x) }",
        {},
    ),
    "a tolerance of the user": (
        ROWS + "{ y = Relu(x) }",
        ROWS + "<float k = {1.001}> { a = Relu(x) y = Mul(a, k) }",
        {"rtol": 0.01, "trials": 2},
    ),
    "too small a tolerance": (
        ROWS + "{ y = Relu(x) }",
        ROWS + "<float k = {1.001}> { a = Relu(x) y = Mul(a, k) }",
        {"atol": 1e-5, "trials": 2},
    ),
    "an approximation": (
        ROWS + "{ y = Gelu(x) }",
        ROWS + '{ y = Gelu<approximate = "tanh">(x) }',
        {"accuracy": Accuracy.APPROXIMATES, "trials": 3},
    ),
    "exactly": (
        ROWS + "<float k = {3}> { y = Div(x, k) }",
        ROWS + "<float k = {0.33333334}> { y = Mul(x, k) }",
        {"accuracy": Accuracy.EXACT, "trials": 3},
    ),
    "special numbers": (
        ROWS + "{ y = Abs(x) }",
        ROWS + "{ a = Neg(x) y = Max(x, a) }",
        {"accuracy": Accuracy.EXACT, "trials": 1},
    ),
    "half precision": (
        "g (float16[N, 4] x) => (float16[N, 4] y) { y = Softsign(x) }",
        "g (float16[N, 4] x) => (float16[N, 4] y) <float16 one = {1}> { a = Abs(x) b = Add(a, one) y = Div(x, b) }",
        {"trials": 3},
    ),
    "a weight in half precision": (
        "g (float16[N, 4] x) => (float16[N, 4] y) <float16[4] w = {100, 200, 300, 400}> { y = Mul(x, w) }",
        "g (float16[N, 4] x) => (float16[N, 4] y) <float16[4] w = {100, 200, 302, 400}> { y = Mul(x, w) }",
        {"trials": 3},
    ),
    "indices": (
        "g (float[N, 4] x) => (int64[N] y) { y = ArgMax<axis = 1, keepdims = 0>(x) }",
        "g (float[N, 4] x) => (int64[N] y) { n = Neg(x) y = ArgMin<axis = 1, keepdims = 0>(n) }",
        {"trials": 3},
    ),
    "other indices": (
        "g (float[N, 4] x) => (int64[N] y) { y = ArgMax<axis = 1, keepdims = 0>(x) }",
        "g (float[N, 4] x) => (int64[N] y) { y = ArgMin<axis = 1, keepdims = 0>(x) }",
        {"trials": 3},
    ),
    "ids": (
        "g (int64[B, S] input_ids) => (float[B, S, 2] y) <float[3, 2] t = {1, 2, 3, 4, 5, 6}> { y = Gather(t, "
        "input_ids) }",
        "g (int64[B, S] input_ids) => (float[B, S, 2] y) <float[3, 2] t = {1, 2, 3, 4, 5, 7}> { y = Gather(t, "
        "input_ids) }",
        {},
    ),
    "a mask": (
        "g (float[B, S, S] scores, int64[B, S] attention_mask) => (float[B, S, S] y) <int64 k = {1}, float f = "
        "{-3e38}, int64[1] a = {1}> { c = Cast<to = 1>(attention_mask) i = Cast<to = 9>(c) n = Not(i) u = "
        "Unsqueeze(n, a) w = Where(u, f, scores) y = Softmax(w) }",
        "g (float[B, S, S] scores, int64[B, S] attention_mask) => (float[B, S, S] y) { y = Softmax(scores) }",
        {},
    ),
    "random": (
        "g (float[N] x) => (float[N] y, float[N] z) { y = RandomNormalLike(x) z = Neg(x) }",
        "g (float[N] x) => (float[N] y, float[N] z) { y = RandomUniformLike(x) z = Neg(x) }",
        {"trials": 2},
    ),
    "only random": (
        "g (float[N] x) => (float[N] y) { y = RandomNormalLike(x) }",
        "g (float[N] x) => (float[N] y) { y = RandomNormalLike(x) }",
        {},
    ),
    "empty": (
        "g (float[N, 4] x) => (float[A, 4] y) <int64[1] a = {0}> { y = Slice(x, a, a) }",
        "g (float[N, 4] x) => (float[A, 4] y) <int64[1] a = {0}> { y = Slice(x, a, a) }",
        {"trials": 2},
    ),
    "a constant result": (
        ROWS + "<float z = {0}> { y = Mul(x, z) }",
        ROWS + "<float z = {0}> { y = Mul(x, z) }",
        {"trials": 2},
    ),
    "a loop": (
        "g (float[4] x, int64 n) => (float[4] y) <bool t = {1}> { y = Loop<body = b (int64 i, bool c, float[4] "
        "s) => (bool d, float[4] r) { d = Identity(c) r = Add(s, x) }>(n, t, x) }",
        "g (float[4] x, int64 n) => (float[4] y) { c = Cast<to = 1>(n) p = Mul(x, c) y = Add(x, p) }",
        {"trials": 4},
    ),
    "a branch": (
        "g (float[4] x, int64 k) => (float[4] y) <int64 s = {77}> { c = Equal(k, s) y = If(c)<then_branch = a "
        "() => (float[4] p) { p = Neg(x) }, else_branch = b () => (float[4] q) { q = Abs(x) }> }",
        "g (float[4] x, int64 k) => (float[4] y) { y = Abs(x) }",
        {"trials": 3},
    ),
    "what no input reaches": (
        "g (float[4] x) => (float[4] y) <float k = {9999}> { c = Greater(x, k) f = Cast<to = 1>(c) y = Add(x, f) }",
        "g (float[4] x) => (float[4] y) { y = Identity(x) }",
        {},
    ),
    "a dropped input": (
        "g (float[N] x, float[N] z) => (float[N] y) { y = Add(x, z) }",
        "g (float[N] x) => (float[N] y) { y = Neg(x) }",
        {},
    ),
    "another type": (
        "g (float[N] x) => (float[N] y) { y = Neg(x) }",
        "g (float[N] x) => (double[N] y) { y = Cast<to = 11>(x) }",
        {},
    ),
    "another size": (
        "g (float[3] x) => (float[3] y) { y = Neg(x) }",
        "g (float[N] x) => (float[N] y) { y = Neg(x) }",
        {},
    ),
    "what does not run": (
        ROWS + "{ y = Relu(x) }",
        ROWS + "<int64[2] s = {5, 4}> { a = Relu(x) y = Reshape(a, s) }",
        {"trials": 2},
    ),
    "what does not load": (ROWS + "{ y = Relu(x) }", ROWS + "{ y = Nothing(x) }", {"trials": 2}),
    "a source that does not load": (ROWS + "{ y = Nothing(x) }", ROWS + "{ y = Relu(x) }", {"trials": 2}),
    "a size that must fit": (
        "g (float[N, M] x) => (float[A, 6] y) <int64[2] s = {-1, 6}> { y = Reshape(x, s) }",
        "g (float[N, M] x) => (float[A, 6] y) <int64[2] s = {-1, 6}> { a = Relu(x) y = Reshape(a, s) }",
        {},
    ),
    "inputs of the user": (
        ROWS + "{ y = Relu(x) }",
        ROWS + "{ y = Abs(x) }",
        {"inputs": {"x": np.ones((2, 4), np.float32)}, "trials": 0},
    ),
    "inputs that lack one": (
        "g (float[N] x, float[N] z) => (float[N] y) { y = Add(x, z) }",
        "g (float[N] x, float[N] z) => (float[N] y) { y = Add(x, z) }",
        {"inputs": {"x": np.ones(3, np.float32)}},
    ),
    "inputs of another rank": (
        ROWS + "{ y = Relu(x) }",
        ROWS + "{ y = Relu(x) }",
        {"inputs": {"x": np.ones(4, np.float32)}},
    ),
    "no seeds": (ROWS + "{ y = Relu(x) }", ROWS + "{ y = Relu(x) }", {"seeds": ()}),
    "other seeds": (ROWS + "{ y = Relu(x) }", ROWS + "{ y = Relu(x) }", {"seeds": (7,)}),
    "texts": (
        "g (string[N] x) => (string[N] y) { y = Identity(x) }",
        "g (string[N] x) => (string[N] y) { y = Identity(x) }",
        {"trials": 2},
    ),
    "a sequence": (
        "g (float[N] x) => (seq(float[A]) y) { y = SequenceConstruct(x, x) }",
        "g (float[N] x) => (seq(float[A]) y) { y = SequenceConstruct(x) }",
        {"trials": 2},
    ),
    "a second runtime": (
        ROWS + "{ y = Relu(x) }",
        ROWS + "{ y = Abs(x) }",
        {"runtimes": ("ort", "reference"), "trials": 2},
    ),
    "complex": (
        "g (float[1, N, 1] x) => (float[1, N, 2] y) <int64 a = {1}> { y = DFT(x, , a) }",
        "g (float[1, N, 1] x) => (float[1, N, 2] y) <int64 a = {1}> { n = Neg(x) y = DFT(n, , a) }",
        {"trials": 2},
    ),
    "an optional part": (
        "g (float[N] x) => (float[N] y) { o = Optional(x) y = OptionalGetElement(o) }",
        "g (float[N] x) => (float[N] y) { y = Identity(x) }",
        {"trials": 2},
    ),
    "overflow": (
        ROWS + "<float k = {1e38}> { a = Mul(x, k) b = Mul(a, k) y = Div(b, k) }",
        ROWS + "<float k = {1e38}> { y = Mul(x, k) }",
        {"trials": 3},
    ),
    "a step": (
        "g (int64[batch, sequence] ids, float[batch, past, 2] old) => (float[batch, total, 2] new) <float[3, 2] "
        "t = {1, 2, 3, 4, 5, 6}> { e = Gather(t, ids) new = Concat<axis = 1>(old, e) }",
        "g (int64[batch, sequence] ids, float[batch, past, 2] old) => (float[batch, total, 2] new) <float[3, 2] "
        "t = {1, 2, 3, 4, 5, 6}> { e = Gather(t, ids) new = Concat<axis = 1>(e, old) }",
        {},
    ),
}


def without_numbers(text: str) -> str:
    return re.sub(r"\d+\.\d+(e[+-]?\d+)?|\d+e[+-]?\d+", "#", text)


@pytest.mark.parametrize("name", PAIRS)
def test_the_verdict_is_that_of_before(name: str) -> None:
    before, after, options = PAIRS[name]
    models = [onnx.parser.parse_model(HEADER + text) for text in (before, after)]
    try:
        verdict = verify(*models, threads=1, **options)
    except SardonyxError as error:
        recorded.check("verdicts", {name: without_numbers(f"{error.message} ({error.hint})")})
        return
    trials = [f"{trial.style} {trial.seed} {dict(trial.dims)} {trial.passed}" for trial in verdict.trials]
    outputs = [f"{each.name} {each.dtype} {each.passed} {list(each.where)}" for each in verdict.outputs]
    texts = [*verdict.failures, "notes:", *verdict.notes, "gaps:", *verdict.not_covered]
    requested = None if verdict.requested is None else verdict.requested.passed
    told = [
        verdict.passed,
        without_numbers(verdict.reference),
        requested,
        trials,
        outputs,
        list(map(without_numbers, texts)),
    ]
    recorded.check("verdicts", {name: told})


@pytest.mark.parametrize("name", PAIRS)
def test_interfaces_are_compared_as_before(name: str) -> None:
    before, after = (io.from_proto(onnx.parser.parse_model(HEADER + text)) for text in PAIRS[name][:2])
    told = [interface_changes(before, after), sorted(random_outputs(before)), sorted(random_outputs(after))]
    recorded.check("interfaces", {name: told})


def test_trials_fit_the_budget_as_before() -> None:
    found: dict[str, str] = {}
    for seed in range(60):
        choose = Random(seed)
        budget = Budget(choose.choice((1.0, 20.0)), weights=choose.choice((0, 1 << 20, 1 << 29)))
        answers = ""
        for _ in range(12):
            elements = choose.choice((0, 1, 10, 10, 1000, 100_000))
            work = choose.choice((0, 1 << 20, 1 << 33, 1 << 36))
            answers += "y" if budget.fits(elements, work) else "n"
            if choose.random() < 0.7:
                budget.count(
                    elements, choose.choice((0, 1 << 20, 1 << 29, 1 << 31)), choose.choice((0, 1 << 10, 1 << 27)), work
                )
        found[f"{seed}"] = answers
    recorded.check("budgets", found)


@pytest.mark.parametrize(
    ("values", "empty", "constant"),
    [
        ([np.zeros(0)], True, False),
        ([np.zeros(0), np.zeros(3)], False, True),
        ([np.zeros(1)], False, False),
        ([np.zeros(1), np.zeros(1)], False, True),
        ([np.zeros(2), np.ones(1)], False, False),
        ([np.array([np.nan, np.nan])], False, True),
        ([np.array([np.nan, 1.0])], False, False),
        ([np.array([1, 1])], False, True),
        ([np.array([True, True])], False, True),
        ([np.array([True, False])], False, False),
        ([np.array(["a", "a"])], False, False),
        ([[np.zeros(2)]], False, False),
        ([None], False, False),
    ],
)
def test_outputs_that_tell_little_are_noticed(values: list[Any], empty: bool, constant: bool) -> None:
    assert is_empty(values) == empty
    assert is_constant(values) == constant
