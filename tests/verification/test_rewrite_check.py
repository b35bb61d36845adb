"""Checks of single rewrites: incorrect ones are found in every kind of error, correct ones are accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx import runtime, verify
from sardonyx.errors import OutputError, UsageError
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.ir.rules import Builder, Match, Replacement
from sardonyx.passes import ALL, Example, NodePass, Pass
from sardonyx.records.run import Accuracy, RewriteChecks, RewriteClaims
from sardonyx.reporting.document import View
from sardonyx.reporting.page import render_page
from sardonyx.reporting.run import rollback_sentence, run_document
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import claims_cell, claims_line, rewrite_lines
from sardonyx.reporting.writers import terminal
from sardonyx.verbs.optimize.options import OptimizeOptions
from sardonyx.verbs.optimize.pipeline import optimize
from sardonyx.verification.rewrite_check import Findings, LocalChecks, State

HEADER = '<ir_version: 10, opset_import: ["" : 18]>'
Build = Callable[[Match, Builder], Replacement]


def planted(root: str, build: Build, accuracy: Accuracy = Accuracy.EXACT) -> NodePass:
    """A pass that replaces every node of one operator by the result of `build`."""

    class Planted(NodePass):
        """The pass under test."""

        name = "planted"
        roots = (root,)
        example = Example(before="", after="", near_miss="")

        def match(self, node: ir.Node, graph: Facts) -> Match | None:
            return None if node.name else Match((node,))  # nodes that were replaced before have names

        def rewrite(self, match: Match, op: Builder) -> Replacement:
            return build(match, op)

    Planted.accuracy = accuracy
    return Planted()


def checked(text: str, one: Pass) -> Findings:
    """The checks of the rewrites of one pass."""
    checks = LocalChecks()
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
    **{
        f"a single condition that is {state}": (
            "g (bool[1] c, float[N] x, float[N] z) => (float[N] y) { y = Where(c, x, z) }",
            "Where", lambda m, op, place=place: op.Identity(m.root.inputs[place]), Accuracy.REASSOCIATES,
        )
        for place, state in ((2, True), (1, False))
    },
    "a fully masked row": (
        "g (float[N, S, S] s, float[N, S, S] m) => (float[N, S, S] y) { t = Add(s, m) y = Softmax(t) }",
        "Softmax",
        lambda m, op: op.Softmax(op.Max(first(m), op.constant(number(-1e30)))), Accuracy.REASSOCIATES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_rewrite_is_found_to_be_wrong_for(name: str) -> None:
    text, root, build, accuracy = WRONG[name]
    result = checked(text, planted(root, build, accuracy))
    assert [each.pass_name for each in result.failing] == ["planted"]
    assert result.failing[0].reason


@pytest.mark.parametrize("overflows", [False, True])
def test_what_double_precision_does_not_show_is_rounding_unless_it_overflows(overflows: bool) -> None:
    """Exact arithmetic knows no LpNormalization, so both sides are run."""

    def build(match: Match, op: Builder) -> ir.Value:
        far = op.constant(number(3e38 if overflows else 1e6))
        there = op.Mul(first(match), far) if overflows else op.Add(first(match), far)
        return op.LpNormalization(op.Div(there, far) if overflows else op.Sub(there, far))

    text = "g (float[N, 4] x) => (float[N, 4] y) { y = LpNormalization(x) }"
    result = checked(text, planted("LpNormalization", build, Accuracy.REASSOCIATES))
    assert bool(result.failing) == overflows


def test_a_wrong_rewrite_in_a_branch_that_is_never_taken_is_undone_and_reported() -> None:
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


def test_a_wrong_rewrite_is_written_as_two_models_that_differ(tmp_path: Path) -> None:
    """Two of the same structure are written once, and a right one is not written."""
    text = """g (float[N, 3] x) => (float[N, 3] y, float[N, 3] z) <float two = {2}> {
        a = Tanh(x) b = Mul(a, two) y = Sin(b) c = Sin(a) d = Neg(c) z = Identity(d) }"""
    wrong = planted("Sin", lambda match, op: op.Cos(first(match)))
    model = onnx.parser.parse_model(HEADER + text)
    options = OptimizeOptions(reproducer=str(tmp_path / "wrong"))
    run = optimize(model, passes=[wrong], only=[wrong.name, "eliminate-identity"], options=options)
    assert [undone.root for undone in run.rolled_back] == ["y", "c"]
    assert {undone.reproducer for undone in run.rolled_back} == {str(tmp_path / "wrong" / "planted")}
    assert all(f"(reproducer in {undone.reproducer})" in rollback_sentence(undone) for undone in run.rolled_back)
    (folder,) = (tmp_path / "wrong").iterdir()
    before, after = folder / "before.onnx", folder / "after.onnx"
    for path, operator in ((before, "Sin"), (after, "Cos")):
        onnx.checker.check_model(path, full_check=True)
        assert [node.op_type for node in onnx.load(path).graph.node] == [operator, "Identity"]
    verdict = verify(before, after, inputs=folder / "inputs.npz")
    assert [trial.passed for trial in verdict.trials if trial.seed is None] == [False]
    with pytest.raises(OutputError, match="is not empty"):
        optimize(model, options=options)
    run = optimize(model, options=OptimizeOptions(reproducer=str(tmp_path / "none")))
    assert not run.rolled_back
    assert not (tmp_path / "none").exists()
    with pytest.raises(UsageError, match="only verification"):
        optimize(model, verify="off", options=options)


def test_a_rewrite_that_relies_on_its_surroundings_is_accepted() -> None:
    """x is never negative, and indices are increasing. Neither is known at the border of the rewrite."""
    text = "g (float[N] x) => (float[N] y) { a = Exp(x) b = Sqrt(a) y = Abs(b) }"
    result = checked(text, planted("Abs", lambda match, op: op.Identity(first(match))))
    assert not result.failing
    assert result.states[State.HOLDS] == result.rewrites > 0
    (gather,) = (each for each in ALL if each.name == "eliminate-full-gather")
    result = checked(gather.example.before.split(">", 1)[1], gather)
    assert not result.failing
    assert result.states[State.HOLDS] == result.rewrites > 0


def test_surroundings_that_guarantee_nothing_do_not_excuse_a_wrong_rewrite() -> None:
    """The border moves up past Neg and stops at the product, whose result can be any number."""
    text = "g (float[N, 4] x, float[4, 4] w) => (float[N, 4] y) { p = MatMul(x, w) n = Neg(p) y = Abs(n) }"
    result = checked(text, planted("Abs", lambda match, op: op.Min(op.Abs(first(match)), op.constant(number(1e30)))))
    assert result.failing


def test_facts_of_the_shape_inference_are_checked() -> None:
    """A rewrite that relies on a wrong size is correct at the border, because the border has that size."""
    text = "g (float[N, 3] x, float[2] u) => (int64[2] y) { s = Shape(x) t = Cast <to = 7> (u) y = Neg(t) z = Neg(s) }"
    model = io.from_proto(onnx.parser.parse_model(HEADER + text))
    shape, cast = (node.outputs[0] for node in model.graph if node.op_type in ("Shape", "Cast"))
    facts, checks = Facts(model), LocalChecks()
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
    result = checked(text, planted("Neg", lambda match, op: op.Mul(first(match), op.constant(number(-1)))))
    assert result.rewrites == 12
    assert len(result.shapes) == len(checks) == 1


def test_rewrites_that_cannot_run_alone_are_counted() -> None:
    text = "g (float[N] x) => (float[N] y) { r = RandomNormalLike(x) y = Abs(r) }"
    result = checked(text, planted("RandomNormalLike", lambda match, op: op.Neg(first(match))))
    assert not result.failing
    assert result.states[State.IMPOSSIBLE] == 1


def test_an_error_in_a_check_is_counted_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing about the rewrite, and does not end the run."""

    def fail(_check: object) -> None:
        raise KeyError("gone")

    monkeypatch.setattr("sardonyx.verification.rewrite_check.decide", fail)
    text = "g (float[N] x) => (float[N] y) { a = Identity(x) y = Exp(a) }"
    run = optimize(onnx.parser.parse_model(HEADER + text))
    assert run.after.nodes == 1
    assert run.verdict is not None
    assert run.verdict.rewrites == RewriteChecks(
        1,
        failed=1,
        distinct=1,
        error="eliminate-identity: KeyError: 'gone'",
        passes={"eliminate-identity": RewriteClaims(1, failed=1)},
    )
    assert rewrite_lines(run.verdict) == [
        "1 rewrite: 1 not checked because of an error",
        "first error of a check: eliminate-identity: KeyError: 'gone'",
    ]


def test_a_rewrite_beside_a_parameter_of_a_function_is_checked_below_it() -> None:
    text = """g (float[N] x) => (float[N] y) { y = my.f <axis = 0> (x) }
        <domain: "my", opset_import: ["" : 18]> f <axis> (x) => (y) {
            a = Softmax <axis: int = @axis> (x)  b = Abs(a)  y = Neg(b) }"""
    header = HEADER.replace("18]", '18, "my" : 1]')
    checks = LocalChecks()
    facts = Facts(io.from_proto(onnx.parser.parse_model(header + text)))
    one = planted("Abs", lambda match, op: op.Neg(first(match)))
    Rewriter(facts, [one], observe=checks.observe).run()
    assert [each.pass_name for each in checks.findings.failing] == ["planted"]
    checks.begin()
    two = planted("Neg", lambda match, op: op.Softmax(first(match), axis=0))
    Rewriter(facts, [two], observe=checks.observe).run()
    assert checks.findings.states[State.ERROR] == 0


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_no_pass_fails_on_its_own_example(one: Pass) -> None:
    target = "ort" if type(one).__module__.startswith("sardonyx.passes.ort.") else "portable"
    checks = LocalChecks()
    model = io.from_proto(onnx.parser.parse_model(one.example.before))
    Rewriter(Facts(model, target=target, evaluate=runtime.evaluate), [one], observe=checks.observe).run()
    assert not checks.findings.failing
    assert checks.findings.states[State.HOLDS] == checks.findings.rewrites


def test_the_verdict_counts_the_checked_rewrites() -> None:
    run = optimize(onnx.parser.parse_model(HEADER + "g (float[N] x) => (float[N] y) { a = Identity(x) y = Exp(a) }"))
    assert run.verdict is not None
    assert run.verdict.rewrites == RewriteChecks(
        1,
        all_values=1,
        for_every_size=1,
        distinct=1,
        passes={"eliminate-identity": RewriteClaims(1, all_values=1, for_every_size=1)},
    )


def test_claims_are_counted_by_pass_and_told_in_one_line() -> None:
    text = """g (float[N, 4] x) => (float[N, 4] y)
        <float[4] w = {1, 2, 3, 4}, float[4] v = {3, 2, 5, 7}> {
        a = Identity(x) b = Exp(a) d = Abs(b) s = Sqrt(v) u = Mul(w, s) y = Mul(d, u) }"""
    absolute = planted("Abs", lambda match, op: op.Identity(first(match)))  # of numbers that are not negative
    run = optimize(onnx.parser.parse_model(HEADER + text), passes=[absolute])
    assert run.verdict is not None
    checks = run.verdict.rewrites
    assert checks is not None
    assert checks.passes["planted"] == RewriteClaims(1, orders_tried=1)
    assert checks.passes["eliminate-identity"].all_values == checks.passes["eliminate-identity"].rewrites > 0
    assert checks.passes["fold-constants"].rounded == checks.rounded > 0
    for count in RewriteClaims.__struct_fields__:
        assert getattr(checks, count) == sum(getattr(one, count) for one in checks.passes.values())
    sizes = f" ({checks.for_every_size} of them for every size)" if checks.for_every_size else ""
    line = f"{checks.rewrites} rewrites: {checks.all_values} equal for all values{sizes}, 1 for the orders tried"
    assert rewrite_lines(run.verdict) == [line]
    sized = RewriteClaims(9, all_values=5, for_every_size=2, orders_tried=3, by_trials=1)
    assert claims_line(sized) == (
        "9 rewrites: 5 equal for all values (2 of them for every size), 3 for the orders tried, 1 by trials only"
    )
    assert claims_cell(run.verdict, "planted") == "orders tried"
    assert claims_cell(run.verdict, "fuse-gelu") == "·"
    assert line in terminal.write(run_document(run, View()))
    assert render_page([RunBundle("model", run)]).count(line) == 3  # in the summary, the passes, and the verification


def test_a_proven_rewrite_that_overflows_is_undone_and_the_operator_named() -> None:
    """2¹²⁶ · x / 2¹²⁶ = x for real numbers, and infinite in single precision for x = 8."""

    def scaled(match: Match, op: Builder) -> Replacement:
        return op.Sin(op.Mul(op.Mul(first(match), op.constant(number(2.0**126))), op.constant(number(2.0**-126))))

    model = onnx.parser.parse_model(HEADER + "g (float[N] x) => (float[N] y) { y = Sin(x) }")
    one = planted("Sin", scaled, Accuracy.REASSOCIATES)
    run = optimize(model, passes=[one], only=[one.name], inputs={"x": np.array([8, 1], np.float32)})
    (undone,) = run.rolled_back
    assert undone.reason.startswith("equal in exact arithmetic, but not as onnxruntime")
    assert "computes Mul, Sin" in undone.reason


def test_a_proven_rewrite_may_be_as_far_as_the_source_is_for_inputs_that_differ_by_rounding() -> None:
    """3 x - 2 x = x: where Sin is steep, the source is exact by chance, and inexact one unit beside it."""

    def longer(match: Match, op: Builder) -> Replacement:
        x = first(match)
        return op.Sin(op.Sub(op.Mul(x, op.constant(number(3.0))), op.Mul(x, op.constant(number(2.0)))))

    model = onnx.parser.parse_model(HEADER + "g (float[N] x) => (float[N] y) { y = Sin(x) }")
    one = planted("Sin", longer, Accuracy.REASSOCIATES)
    x = np.random.default_rng(0).uniform(1e5, 1.3e5, 64).astype(np.float32)
    run = optimize(model, passes=[one], only=[one.name], inputs={"x": x})
    assert not run.rolled_back
    assert run.verdict is not None
    assert any("for inputs that differ by rounding" in note for note in run.verdict.notes)


def test_a_proven_rewrite_may_be_nearer_to_the_exact_value_than_its_source() -> None:
    """x + 1e8 − 1e8 = x: the source loses the digits that the result keeps."""
    text = """g (float[N] x) => (float[N] y) <float big = {1e8}> { a = Add(x, big) b = Sub(a, big) y = Sin(b) }"""

    class Nearer(type(planted("Sub", lambda match, op: first(match)))):
        name = "nearer"
        accuracy = Accuracy.REASSOCIATES

        def match(self, node: ir.Node, graph: Facts) -> Match | None:
            add = node.inputs[0].producer() if node.inputs[0] is not None else None
            return None if add is None else Match((add, node))

        def rewrite(self, match: Match, op: Builder) -> Replacement:
            return op.Identity(match.nodes[0].inputs[0])

    one = Nearer()
    run = optimize(onnx.parser.parse_model(HEADER + text), passes=[one], only=[one.name])
    assert not run.rolled_back
    assert run.verdict is not None
    assert run.verdict.passed
    assert any("as close to double precision" in note for note in run.verdict.notes)
    assert all(output.passed for output in run.verdict.outputs)


def test_trials_about_values_are_left_out_if_every_rewrite_is_equal_for_all_values() -> None:
    text = "g (float[N] x) => (float[N] y) <float c = {3}> { a = Less(x, c) y = Where(a, x, c) }"
    same = planted("Where", lambda match, op: op.Where(*match.root.inputs))
    run = optimize(onnx.parser.parse_model(HEADER + text), passes=[same], only=[same.name])
    assert run.verdict is not None
    assert run.verdict.rewrites is not None
    assert run.verdict.rewrites.all_values == run.verdict.rewrites.rewrites == 1
    styles = {trial.style for trial in run.verdict.trials}
    assert {"normal", "wide"} <= styles
    assert not {"large", "positive", "compared"} & styles
    assert not run.verdict.not_covered


def test_sizes_that_are_rounded_from_floats_are_computed() -> None:
    """Vision models pad to a multiple of the patch: ceil(height / 4) · 4."""
    text = """g (float[N, 10] x, float[N, 12] z) => (float[a, b] y)
        <float four = {4}, int64 patch = {4}, int64[1] n = {-1}, int64 one = {1}, int64[1] zero = {0}> {
        s = Shape(x) h = Gather <axis = 0> (s, one) f = Cast <to = 1> (h) d = Div(f, four) u = Ceil(d)
        i = Cast <to = 7> (u) m = Mul(i, patch) q = Unsqueeze(m, zero) t = Concat <axis = 0> (n, q) y = Reshape(z, t)
    }"""
    (fold,) = (each for each in ALL if each.name == "fold-shapes")
    result = checked(text, fold)
    assert result.rewrites > 0
    assert not result.failing


def test_values_that_are_empty_at_small_sizes_are_compared_at_larger_ones() -> None:
    """A sound of a few samples has no window of 128."""
    text = """g (float[1, 1, N] x) => (float[1, 1, M] y) {
        w = AveragePool <kernel_shape = [128], strides = [128]> (x) y = Neg(w)
    }"""
    right = planted("Neg", lambda match, op: op.Neg(match.root.inputs[0]))
    wrong = planted("Neg", lambda match, op: op.Abs(match.root.inputs[0]))
    assert checked(text, right).proven_for_all_values
    assert checked(text, wrong).failing


def test_empty_constants_are_equal() -> None:
    text = "g (float[N] x) => (float[M] y) { a = Constant <value = float[0] {}> () y = Concat <axis = 0> (x, a) }"
    (lift,) = (each for each in ALL if each.name == "lift-constants")
    result = checked(text, lift)
    assert result.rewrites > 0
    assert result.proven_for_all_values
