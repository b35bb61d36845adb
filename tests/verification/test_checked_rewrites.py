"""What the check of single rewrites says about right and wrong ones: the same as before."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import msgspec
import numpy as np
import onnx
import pytest

import recorded
from passes.near_models import near_models
from sardonyx import runtime
from sardonyx.errors import ModelError
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.ir.rules import Builder, Match, Replacement
from sardonyx.passes import ALL, Pass
from sardonyx.records.run import Accuracy
from sardonyx.verification.rewrite_check import Findings, LocalChecks
from verification.test_rewrite_check import first, number, planted

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'
EXACT, REASSOCIATES, APPROXIMATES = Accuracy.EXACT, Accuracy.REASSOCIATES, Accuracy.APPROXIMATES


def told(findings: Findings) -> object:
    """The record of the checks; of texts about values only the words."""
    record = msgspec.to_builtins(findings.record()) or {}
    record["passes"] = {name: {k: n for k, n in each.items() if n} for name, each in record.get("passes", {}).items()}
    failing = [re.sub(r"-?\d[\d.e+-]*|nan|inf", "#", each.reason) for each in findings.failing]
    return [{name: each for name, each in record.items() if each and name != "rounding_units"}, failing]


def run(model: onnx.ModelProto, one: Pass) -> Findings:
    target = "ort" if type(one).__module__.startswith("sardonyx.passes.ort.") else "portable"
    checks = LocalChecks()
    facts = Facts(io.from_proto(model), target=target, evaluate=runtime.evaluate)
    Rewriter(facts, [one], observe=checks.observe).run()
    return checks.findings


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_claims_about_examples_and_their_neighbours_are_those_of_before(one: Pass) -> None:
    model = onnx.parser.parse_model(one.example.before)
    others = Random(0).sample([*near_models(model, values=1)], 2)
    found = {f"{one.name}: example": told(run(model, one))}
    for change, other in others:
        try:
            found[f"{one.name}: {change}"] = told(run(other, one))
        except ModelError:
            found[f"{one.name}: {change}"] = "invalid"
    recorded.check("claims", found)


Made = Callable[[Match, Builder], Replacement]
FLOATS = "g (float[N, 4] x) => (float[N, 4] y) "
REWRITES: dict[str, tuple[str, str, Made, Accuracy]] = {
    "a double negation": (
        FLOATS + "{ a = Neg(x) y = Neg(a) }",
        "Neg",
        lambda m, op: op.Mul(first(m), op.constant(number(-1))),
        EXACT,
    ),
    "twice": (FLOATS + "{ y = Elu(x) }", "Elu", lambda m, op: op.Elu(op.Elu(first(m))), REASSOCIATES),
    "a shape": (
        FLOATS + "{ y = Abs(x) }",
        "Abs",
        lambda m, op: op.Abs(op.Unsqueeze(first(m), op.constant(np.array([0])))),
        EXACT,
    ),
    "a type": (
        "g (float[N] x) => (float16[N] y) { y = Cast<to = 10>(x) }",
        "Cast",
        lambda m, op: op.Identity(first(m)),
        EXACT,
    ),
    "an order": (
        "g (float[N, 4] x) => (float[4, N] y) { y = Transpose(x) }",
        "Transpose",
        lambda m, op: op.Reshape(first(m), op.constant(np.array([4, -1]))),
        EXACT,
    ),
    "integers": (
        "g (int64[N] x) => (int64[N] y) { y = Abs(x) }",
        "Abs",
        lambda m, op: op.Max(first(m), op.Neg(first(m))),
        EXACT,
    ),
    "integers that overflow": (
        "g (int32[N] x) => (int32[N] y) <int32 k = {2}> { y = Mul(x, k) }",
        "Mul",
        lambda m, op: op.Cast(op.Mul(op.Cast(first(m), to=1), op.constant(number(2))), to=6),
        EXACT,
    ),
    "flags": (
        "g (bool[N] x, bool[N] z) => (bool[N] y) { y = And(x, z) }",
        "And",
        lambda m, op: op.Or(first(m), first(m)),
        EXACT,
    ),
    "the same flags": (
        "g (bool[N] x, bool[N] z) => (bool[N] y) { y = And(x, z) }",
        "And",
        lambda m, op: op.Not(op.Or(op.Not(first(m)), op.Not(m.root.inputs[1]))),
        EXACT,
    ),
    "texts": (
        "g (string[N] x) => (string[N] y) { y = Identity(x) }",
        "Identity",
        lambda m, op: op.Concat(
            op.Slice(first(m), op.constant(np.array([0])), op.constant(np.array([1]))),
            op.Slice(first(m), op.constant(np.array([1])), op.constant(np.array([99]))),
            axis=0,
        ),
        EXACT,
    ),
    "texts in another order": (
        "g (string[N] x) => (string[N] y) { y = Identity(x) }",
        "Identity",
        lambda m, op: op.Slice(
            first(m),
            op.constant(np.array([-1])),
            op.constant(np.array([-99])),
            op.constant(np.array([0])),
            op.constant(np.array([-1])),
        ),
        EXACT,
    ),
    "random": (
        "g (float[N] x) => (float[N] y) { y = RandomNormalLike(x) }",
        "RandomNormalLike",
        lambda m, op: op.RandomUniformLike(first(m)),
        EXACT,
    ),
    "no kernel": (
        "g (float[N] x) => (float[N] y) { y = Relu(x) }",
        "Relu",
        lambda m, op: op.ThresholdedRelu(first(m), alpha=0.0),
        EXACT,
    ),
    "what does not run": (
        FLOATS + "{ y = Softplus(x) }",
        "Softplus",
        lambda m, op: op.Reshape(first(m), op.constant(np.array([5, -1]))),
        REASSOCIATES,
    ),
    "an approximation": (
        FLOATS + "{ y = Gelu(x) }",
        "Gelu",
        lambda m, op: op.Gelu(first(m), approximate="tanh"),
        APPROXIMATES,
    ),
    "an approximation that is none": (
        FLOATS + "{ y = Gelu(x) }",
        "Gelu",
        lambda m, op: op.Relu(first(m)),
        APPROXIMATES,
    ),
    "an approximation that is exact": (
        FLOATS + "{ y = Gelu(x) }",
        "Gelu",
        lambda m, op: op.Gelu(first(m), approximate="tanh"),
        REASSOCIATES,
    ),
    "another order of sums": (
        FLOATS + "{ a = Add(x, x) y = Sub(a, x) }",
        "Sub",
        lambda m, op: op.Identity(m.root.inputs[1]),
        REASSOCIATES,
    ),
    "the same order of sums": (
        FLOATS + "{ a = Add(x, x) y = Sub(a, x) }",
        "Sub",
        lambda m, op: op.Identity(m.root.inputs[1]),
        EXACT,
    ),
    "masked rows": (
        "g (float[N, S] s, float[N, S] m) => (float[N, S] y) { t = Add(s, m) y = Softmax(t) }",
        "Softmax",
        lambda m, op: op.Div(op.Exp(first(m)), op.ReduceSum(op.Exp(first(m)), op.constant(np.array([-1])))),
        REASSOCIATES,
    ),
    "half precision": (
        "g (float16[N, 4] x) => (float16[N, 4] y) { y = Softsign(x) }",
        "Softsign",
        lambda m, op: op.Div(first(m), op.Add(op.Abs(first(m)), op.constant(np.array(1, np.float16)))),
        REASSOCIATES,
    ),
    "double precision": (
        "g (double[N, 4] x) => (double[N, 4] y) { y = Sqrt(x) }",
        "Sqrt",
        lambda m, op: op.Pow(first(m), op.constant(np.array(0.5))),
        REASSOCIATES,
    ),
    "a choice": (
        "g (bool[N] c, float[N] x, float[N] z) => (float[N] y) { y = Where(c, x, z) }",
        "Where",
        lambda m, op: op.Where(op.Not(first(m)), m.root.inputs[2], m.root.inputs[1]),
        EXACT,
    ),
    "the wrong choice": (
        "g (bool[N] c, float[N] x, float[N] z) => (float[N] y) { y = Where(c, x, z) }",
        "Where",
        lambda m, op: op.Where(first(m), m.root.inputs[2], m.root.inputs[1]),
        EXACT,
    ),
    "a size": (FLOATS + "{ s = Shape(x) y = Expand(x, s) }", "Expand", lambda m, op: op.Identity(first(m)), EXACT),
    "a size from elsewhere": (
        "g (float[N, 4] x, int64[2] s) => (float[A, B] y) { y = Expand(x, s) }",
        "Expand",
        lambda m, op: op.Identity(first(m)),
        EXACT,
    ),
    "an index": (
        "g (float[N, 4] x, int64[K] i) => (float[K, 4] y) { y = Gather(x, i) }",
        "Gather",
        lambda m, op: op.Gather(first(m), op.Abs(m.root.inputs[1])),
        EXACT,
    ),
    "the highest": (
        "g (float[N, 4] x) => (int64[N, 1] y) { y = ArgMax<axis = 1>(x) }",
        "ArgMax",
        lambda m, op: op.ArgMin(op.Neg(first(m)), axis=1),
        EXACT,
    ),
    "the lowest": (
        "g (float[N, 4] x) => (int64[N, 1] y) { y = ArgMax<axis = 1>(x) }",
        "ArgMax",
        lambda m, op: op.ArgMin(first(m), axis=1),
        EXACT,
    ),
    "clipped": (
        FLOATS + "<float l = {0}, float h = {6}> { y = Clip(x, l, h) }",
        "Clip",
        lambda m, op: op.Min(op.Max(first(m), m.root.inputs[1]), m.root.inputs[2]),
        EXACT,
    ),
    "clipped at other bounds": (
        FLOATS + "<float l = {0}, float h = {6}> { y = Clip(x, l, h) }",
        "Clip",
        lambda m, op: op.Min(op.Max(first(m), m.root.inputs[1]), op.constant(number(6.0001))),
        EXACT,
    ),
    "a norm": (
        FLOATS + "<float[4] w = {1, 1, 1, 1}> { y = LayerNormalization(x, w) }",
        "LayerNormalization",
        lambda m, op: op.MeanVarianceNormalization(first(m), axes=[1]),
        REASSOCIATES,
    ),
    "a matrix": (
        "g (float[N, 4] x) => (float[N, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { y = MatMul(x, w) }",
        "MatMul",
        lambda m, op: op.Gemm(first(m), m.root.inputs[1]),
        REASSOCIATES,
    ),
    "another matrix": (
        FLOATS + "<float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}> { y = MatMul(x, w) }",
        "MatMul",
        lambda m, op: op.Gemm(first(m), m.root.inputs[1], transB=1),
        REASSOCIATES,
    ),
    "a parameter": (
        "g (float[N] x, float[N] z) => (float[N] y) { y = Pow(x, z) }",
        "Pow",
        lambda m, op: op.Exp(op.Mul(m.root.inputs[1], op.Log(first(m)))),
        REASSOCIATES,
    ),
    "overflow": (
        FLOATS + "{ y = Softplus(x) }",
        "Softplus",
        lambda m, op: op.Log(op.Add(op.Exp(first(m)), op.constant(number(1)))),
        REASSOCIATES,
    ),
    "squares": (
        FLOATS + "<float two = {2}> { y = Pow(x, two) }",
        "Pow",
        lambda m, op: op.Mul(first(m), first(m)),
        EXACT,
    ),
    "an empty result": (
        "g (float[N, 4] x) => (float[A, 4] y) <int64[1] a = {0}, int64[1] b = {0}> { y = Slice(x, a, b) }",
        "Slice",
        lambda m, op: op.Slice(op.Neg(first(m)), m.root.inputs[1], m.root.inputs[2]),
        EXACT,
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_what_is_said_about_a_rewrite_is_what_was_said_before(name: str) -> None:
    text, root, build, accuracy = REWRITES[name]
    recorded.check(
        "rewrites", {name: told(run(onnx.parser.parse_model(HEADER + text), planted(root, build, accuracy)))}
    )
