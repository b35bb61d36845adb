"""Rewrites checked where they happen: wrong ones are found wherever they are wrong, right ones are left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx import runtime
from sardonyx.ir import io
from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.ir.rules import Match, Replacement
from sardonyx.optimizer.pipeline import optimize
from sardonyx.passes import ALL, Example, NodePass, Pass
from sardonyx.records.run import Accuracy, RewriteChecks
from sardonyx.verification.rewrite_check import Findings, LocalChecks, State

HEADER = '<ir_version: 10, opset_import: ["" : 18]>'
Build = Callable[[Match, Builder], Replacement]


def planted(root: str, build: Build, accuracy: Accuracy = Accuracy.EXACT) -> NodePass:
    """A pass that replaces every node of one operator by what `build` makes."""

    class Planted(NodePass):
        """Whatever the test says."""

        name = "planted"
        roots = (root,)
        example = Example(before="", after="", near_miss="")

        def match(self, node: ir.Node, graph: Facts) -> Match | None:
            return None if node.name else Match((node,))  # new nodes have names, those of the text do not

        def rewrite(self, match: Match, op: Builder) -> Replacement:
            return build(match, op)

    Planted.accuracy = accuracy
    return Planted()


def checked(text: str, one: Pass, seconds: float = 60.0) -> Findings:
    """What is found out about the rewrites of one pass."""
    checks = LocalChecks(seconds)
    facts = Facts(io.from_proto(onnx.parser.parse_model(HEADER + text)), evaluate=runtime.evaluate)
    Rewriter(facts, [one], observe=checks.observe).run()
    return checks.findings


def first(match: Match) -> ir.Value:
    value = match.root.inputs[0]
    assert value is not None
    return value


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


WRONG: dict[str, tuple[str, str, Build, Accuracy]] = {
    "the sign of zero": (
        "g (float[N] x) => (float[N] y) { y = Abs(x) }",
        "Abs", lambda m, op: op.Max(first(m), op.Neg(first(m))), Accuracy.EXACT,
    ),
    "infinities": (
        "g (float[N] x) => (float[N] y) { y = Identity(x) }",
        "Identity", lambda m, op: op.Clip(first(m), op.constant(number(-3.4028235e38))), Accuracy.EXACT,
    ),
    "ties": (
        "g (float[N] x) => (float[N] y) { y = Round(x) }",
        "Round", lambda m, op: op.Floor(op.Add(first(m), op.constant(number(0.5)))), Accuracy.EXACT,
    ),
    "an empty dimension": (
        "g (float[N, 3] x) => (int64[2] y) { y = Shape(x) }",
        "Shape", lambda m, op: op.Max(op.Shape(first(m)), op.constant(np.array(1))), Accuracy.EXACT,
    ),
    "a factor of one per cent": (
        "g (float[N] x) => (float[N] y) { y = Softsign(x) }",
        "Softsign", lambda m, op: op.Mul(op.Softsign(first(m)), op.constant(number(1.01))), Accuracy.REASSOCIATES,
    ),
    "values beyond a bound": (
        "g (float[N] x) => (float[N] y) { y = Elu(x) }",
        "Elu", lambda m, op: op.Elu(op.Min(first(m), op.constant(number(20)))), Accuracy.REASSOCIATES,
    ),
    "a row of which everything is hidden": (
        "g (float[N, S, S] s, float[N, S, S] m) => (float[N, S, S] y) { t = Add(s, m) y = Softmax(t) }",
        "Softmax",
        lambda m, op: op.Softmax(op.Max(first(m), op.constant(number(-1e30)))), Accuracy.REASSOCIATES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_rewrite_is_found_that_is_wrong_about(name: str) -> None:
    text, root, build, accuracy = WRONG[name]
    found = checked(text, planted(root, build, accuracy))
    assert [each.pass_name for each in found.failing] == ["planted"]
    assert found.failing[0].reason


def test_a_wrong_rewrite_in_a_branch_that_nothing_enters_is_undone_and_named() -> None:
    text = """
        g (float[N] x, int64 key) => (float[N] y) <int64 secret = {123456789}> {
            c = Equal(key, secret)
            y = If (c) <then_branch = taken () => (float[N] a) { s = Sin(x) a = Cos(s) },
                        else_branch = other () => (float[N] b) { b = Tan(x) }>
        }"""
    wrong = planted("Cos", lambda match, op: op.Sin(first(match)))
    run = optimize(onnx.parser.parse_model(HEADER + text), passes=[wrong], only=[wrong.name])
    (undone,) = run.rolled_back
    assert (undone.pass_name, undone.root) == ("planted", "a")
    assert "elements differ" in undone.reason
    assert run.verdict is not None
    assert run.verdict.passed
    assert not run.events


def test_a_rewrite_that_relies_on_its_surroundings_is_left_alone() -> None:
    """x is never negative here, and indices count up: neither is known at the border itself."""
    text = "g (float[N] x) => (float[N] y) { a = Exp(x) b = Sqrt(a) y = Abs(b) }"
    found = checked(text, planted("Abs", lambda match, op: op.Identity(first(match))))
    assert not found.failing
    assert found.states[State.HOLDS] == found.rewrites > 0
    (gather,) = (each for each in ALL if each.name == "eliminate-full-gather")
    found = checked(gather.example.before.split(">", 1)[1], gather)
    assert not found.failing
    assert found.states[State.HOLDS] == found.rewrites > 0


def test_the_surroundings_do_not_excuse_what_they_do_not_explain() -> None:
    """The border moves up past Neg, and no farther than the product: any number can come out of that."""
    text = "g (float[N, 4] x, float[4, 4] w) => (float[N, 4] y) { p = MatMul(x, w) n = Neg(p) y = Abs(n) }"
    found = checked(text, planted("Abs", lambda match, op: op.Min(op.Abs(first(match)), op.constant(number(1e30)))))
    assert found.failing


def test_what_the_shape_inference_says_is_computed() -> None:
    """A rewrite that relies on a wrong fact about sizes holds at the border, which is generated by that fact."""
    text = "g (float[N, 3] x, float[2] u) => (int64[2] y) { s = Shape(x) t = Cast <to = 7> (u) y = Neg(t) z = Neg(s) }"
    model = io.from_proto(onnx.parser.parse_model(HEADER + text))
    shape, cast = (node.outputs[0] for node in model.graph if node.op_type in ("Shape", "Cast"))
    facts, checks = Facts(model), LocalChecks(60.0)
    facts.infer()
    assert facts.contents(shape)
    facts.carry_over(shape, cast)
    one = planted("Neg", lambda match, op: op.Neg(shape))
    Rewriter(facts, [one], limit=1, observe=checks.observe).run()
    assert [each.root for each in checks.findings.failing] == ["y"]


def test_equal_rewrites_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.verification import rewrite_check

    checks: list[rewrite_check.Check] = []
    outcome = rewrite_check.Check.outcome
    monkeypatch.setattr(rewrite_check.Check, "outcome", lambda check: checks.append(check) or outcome(check))
    nodes = " ".join(f"a{i} = Tanh(x{i}) b{i} = Neg(a{i}) x{i + 1} = Sin(b{i})" for i in range(12))
    text = f"g (float[N] x0) => (float[N] x12) {{ {nodes} }}"
    found = checked(text, planted("Neg", lambda match, op: op.Mul(first(match), op.constant(number(-1)))))
    assert found.rewrites == 12
    assert len(found.shapes) == len(checks) == 1


def test_what_there_is_no_time_for_is_counted() -> None:
    text = "g (float[N] x) => (float[N] y) { y = Abs(x) }"
    found = checked(text, planted("Abs", lambda match, op: op.Neg(first(match))), seconds=-1.0)
    assert not found.failing
    assert found.states[State.LEFT_OUT] == 1


def test_what_cannot_be_run_by_itself_is_counted() -> None:
    text = "g (float[N] x) => (float[N] y) { r = RandomNormalLike(x) y = Abs(r) }"
    found = checked(text, planted("RandomNormalLike", lambda match, op: op.Neg(first(match))))
    assert not found.failing
    assert found.states[State.IMPOSSIBLE] == 1


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_no_pass_fails_on_its_own_example(one: Pass) -> None:
    target = "ort" if type(one).__module__.startswith("sardonyx.passes.ort.") else "portable"
    checks = LocalChecks(60.0)
    model = io.from_proto(onnx.parser.parse_model(one.example.before))
    Rewriter(Facts(model, target=target, evaluate=runtime.evaluate), [one], observe=checks.observe).run()
    assert not checks.findings.failing
    assert checks.findings.states[State.HOLDS] == checks.findings.rewrites


def test_the_verdict_says_how_many_rewrites_were_checked() -> None:
    run = optimize(onnx.parser.parse_model(HEADER + "g (float[N] x) => (float[N] y) { a = Identity(x) y = Exp(a) }"))
    assert run.verdict is not None
    assert run.verdict.rewrites == RewriteChecks(rewrites=1, distinct=1, matching=1, not_runnable=0, left_out=0)
