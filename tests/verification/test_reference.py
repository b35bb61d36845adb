"""Which inputs become trials, what the budget leaves out, what no trial reached, and further runtimes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from onnx import parser

from sardonyx.errors import RuntimeFailure, UsageError, VerificationFailed
from sardonyx.inputs.generator import Inputs, Run, TrialInputs, TrialPlan
from sardonyx.ir import io
from sardonyx.records.run import Verdict
from sardonyx.runtime import Feeds, Value
from sardonyx.runtime.remote import RemoteSession
from sardonyx.runtime.sessions import Runtime
from sardonyx.verification import Oracle, verify
from sardonyx.verification.compare import ExampleInputs
from sardonyx.verification.coverage import Bodies
from sardonyx.verification.reference import SECONDS, Budget
from sardonyx.verification.subject import Subject
from verification.text_models import text_model

MB = 1 << 20


def same(
    a: str,
    b: str,
    *,
    inputs: ExampleInputs = None,
    seconds: float = SECONDS,
    runtimes: Sequence[str] = ("ort",),
) -> Verdict:
    return verify(text_model(a), text_model(b), threads=1, inputs=inputs, seconds=seconds, runtimes=runtimes)


@pytest.mark.slow
def test_an_input_that_crashes_the_runtime_is_not_a_trial() -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((1, 12, width)).astype(np.float32) for name, width in (("w", 2), ("r", 3))}
    body = "g (float[s, n, 2] x) => (float[s, 1, n, 3] y) { y, h, c = LSTM <hidden_size = 3> (x, w, r) }"
    lstm = text_model(body, **weights)
    verdict = verify(lstm, lstm, threads=1)
    assert verdict.passed
    assert all(trial.dims["n"] > 0 for trial in verdict.trials)
    wrong = text_model(body, w=weights["w"] * np.float32(1.01), r=weights["r"])
    assert not verify(lstm, wrong, threads=1).passed


@pytest.mark.parametrize("output", ["h", "c"])
def test_an_input_for_which_a_kernel_leaves_memory_unwritten_is_not_a_trial(output: str) -> None:
    """An LSTM over an empty sequence returns memory that it did not write: what the run before left there."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((1, 64, width)).astype(np.float32) for name, width in (("w", 2), ("r", 16))}
    body = f"g (float[s, 2, 2] x) => (float[1, 2, 16] {output}) {{ y, h, c = LSTM <hidden_size = 16> (x, w, r) }}"
    for seed in range(3):
        verdict = verify(text_model(body, **weights), text_model(body, **weights), seeds=(seed,), threads=1)
        assert verdict.passed, verdict.failures
        assert any("s = 0: not compared there" in note for note in verdict.not_covered) == (output == "c")


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of all inputs that are generated, accepted or not."""
    shapes: list[tuple[int, ...]] = []

    def generate(inputs: Inputs, plan: TrialPlan, way: int = 0, run: Run | None = None) -> TrialInputs:
        result = original(inputs, plan, way, run)
        shapes.extend(value.shape for value in result.feeds.values() if isinstance(value, np.ndarray))
        return result

    original = Inputs.generate
    monkeypatch.setattr(Inputs, "generate", generate)
    return shapes


@pytest.mark.medium
def test_inputs_with_several_long_sides_are_not_tried(tried: list[tuple[int, ...]]) -> None:
    """Only empty inputs are accepted, since 8 elements do not fill rows of 9; the last tried would need gigabytes."""
    body = """g (float[2, n, m] x) => (float[] y)
        <int64[4] heads = {0, 0, 2, 4}, int64[3] rows = {0, 0, 9}>
        { h = Reshape (x, heads) y = Reshape (h, rows) }"""
    with pytest.raises(VerificationFailed, match="no element was compared"):
        same(body, body)
    assert 10**5 < max(map(math.prod, tried)) <= 1 << 22


def test_long_sides_are_not_tried_after_others_were_accepted(tried: list[tuple[int, ...]]) -> None:
    """Trials that want another size than 3 find none; a product of 16,000 rows with itself would need gigabytes."""
    body = """g (float[2, s, 4] x, float[2, 3, d] z) => (float[2, 3, e] y)
        { t = Transpose <perm = [0, 2, 1]> (x) p = MatMul (x, t) y = Add (p, z) }"""
    assert same(body, body).passed
    assert max(size for shape in tried for size in shape) <= 256


def test_a_candidate_that_crashes_the_runtime_fails() -> None:
    split = """g (float[n, 4] x) => (float[n, 4] y) { s = Shape (x) z = Sub (s, s) r = Add (s, z) %s }"""
    plain = split % "y = Reshape (x, r)"
    verdict = same(plain, split % "q = Div (s, z) y = Reshape (x, q)")
    assert not verdict.passed
    assert any("the other model does not" in line for line in verdict.failures)


@pytest.mark.slow
def test_a_model_that_loops_without_end_on_some_inputs_is_verified_on_the_others() -> None:
    """The loop ends once a sum that starts at the largest element is at least 0: never, if that is negative."""
    loop = """g (float[n] x) => (float y) { big = ReduceMax <keepdims = 0> (x) zero = Constant <value = float {0}> ()
        yes = Constant <value = bool {1}> () y = Loop (, yes, big) <body = b (int64 i, bool c, float v) =>
        (bool on, float w) { w = Add (v, v) on = Less (w, zero) }> }"""
    model = text_model(loop)
    feeds = {"x": np.array([3.0], np.float32)}
    verdict = verify(model, model, inputs=feeds, seconds=0.5, threads=1)
    assert verdict.passed
    assert not same(loop, loop.replace("w = Add", "w = Sub"), inputs=feeds, seconds=0.5).passed


@pytest.mark.slow
def test_a_trial_that_does_not_end_in_time_says_nothing() -> None:
    """A run may also be stopped because the machine is busy."""
    text = "g (float[n] x) => (float[n] y) { y = Identity (x) }"
    loop = """g (float[n] x) => (float[n] y) { zero = Constant <value = float {0}> () s = ReduceSum <keepdims = 0> (x)
        on = Less (s, zero) y = Loop (, on, x) <body = b (int64 i, bool c, float[n] v) =>
        (bool again, float[n] w) { w = Identity (v) again = Identity (c) }> }"""
    feeds = [{"x": np.array([sign], np.float32)} for sign in (3, -3)]
    oracle = Oracle(text_model(text), inputs=feeds, trials=0, seconds=0.2)
    verdict = oracle.check(text_model(loop))
    assert verdict.passed
    assert len(verdict.trials) == 1
    assert "1 of 2 trials of the other model did not end in time" in verdict.not_covered
    verdict = Oracle(text_model(text), inputs=feeds[1:], trials=0, seconds=0.2).check(text_model(loop))
    assert not verdict.passed


def test_branches_that_no_trial_took_are_listed() -> None:
    branch = """g (float[n] x) => (float[n] y) {
        s = ReduceSum <keepdims = 0> (x) big = Constant <value = float {1e30}> ()
        c = Greater (s, big) y = If (c) <
            then_branch = t () => (float[n] u) { u = %s (x) },
            else_branch = e () => (float[n] v) { v = Neg (x) }> }"""
    verdict = same(branch % "Abs", branch % "Relu")
    if verdict.passed:
        assert any("the then branch of If 'y' never ran" in gap for gap in verdict.not_covered)
    assert not any("else branch" in gap for gap in verdict.not_covered)
    assert set(verdict.not_covered) <= set(verdict.notes)


def test_nested_bodies_are_found() -> None:
    nested = """g (float[n] x, int64 k) => (float[n] y) { yes = Constant <value = bool {1}> ()
        y = Loop (k, yes, x) <body = b (int64 i, bool c, float[n] v) => (bool c2, float[n] w) {
            c2 = Identity (c) two = Constant <value = int64 {2}> () late = Greater (i, two)
            w = If (late) <then_branch = t () => (float[n] p) { p = Neg (v) },
                           else_branch = e () => (float[n] q) { q = Abs (v) }> }> }"""
    bodies = Bodies(io.from_proto(text_model(nested)))
    assert bodies.marked is not None
    for trips, missing in ((0, 3), (2, 1), (5, 0)):
        with Subject(bodies.marked).session(threads=1, profile=True) as session:
            session.run({"x": np.ones(2, np.float32), "k": np.array(trips)})
            assert len(bodies.never_entered(session.executed())) == missing
    assert Bodies(io.from_proto(text_model("g (float[n] x) => (float[n] y) { y = Abs (x) }"))).marked is None


def test_a_branch_that_only_a_later_trial_takes_is_no_gap() -> None:
    text = """g (float[n] x) => (float[n] y) { n = Shape (x)
        c = ReduceMax <keepdims = 0> (n) f = Constant <value = int64 {0}> () e = Equal (c, f)
        y = If (e) <then_branch = t () => (float[n] u) { u = Abs (x) },
                    else_branch = e () => (float[n] v) { v = Neg (x) }> }"""
    verdict = same(text, text)
    assert {trial.dims["n"] for trial in verdict.trials} > {0}
    assert not any("never ran" in gap for gap in verdict.not_covered)


def test_a_single_trial_counts_the_branch_that_it_took() -> None:
    text = """g (float[n] x) => (float[n] y) { big = Constant <value = float {1e30}> ()
        s = ReduceMax <keepdims = 0> (x) c = Greater (s, big)
        y = If (c) <then_branch = t () => (float[n] u) { u = Abs (x) },
                    else_branch = e () => (float[n] v) { v = Neg (x) }> }"""
    verdict = verify(text_model(text), text_model(text), threads=1, trials=1)
    assert [gap for gap in verdict.not_covered if "never ran" in gap] == ["the then branch of If 'y' never ran"]


def test_only_the_first_trial_of_a_loop_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record takes several times as long as the run."""
    text = """g (float[n] x) => (float[n] y) { yes = Constant <value = bool {1}> () k = Constant <value = int64 {3}> ()
        y = Loop (k, yes, x) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w)
            { d = Identity (c) w = Neg (v) }> }"""
    recorded: list[bool] = []
    run = RemoteSession.run

    def counted(session: RemoteSession, feeds: Feeds) -> list[Value]:
        recorded.append(bool(session._request[-1]["profile"]))  # pyright: ignore[reportPrivateUsage]
        return run(session, feeds)

    monkeypatch.setattr(RemoteSession, "run", counted)
    verdict = same(text, text)
    assert len(verdict.trials) > 2
    assert recorded[0]
    assert not any(recorded[1:])
    assert not any("never ran" in gap for gap in verdict.not_covered)


def test_the_budget_allows_two_trials_of_any_work_and_then_what_the_limit_allows() -> None:
    heavy, light, evaluated = Budget(), Budget(), Budget(runtime=Runtime.REFERENCE)
    for _ in range(2):
        assert heavy.fits(100, 1 << 38)
        heavy.count(100, 0, work=1 << 38)
        light.count(100, 0, work=1 << 30)
        evaluated.count(100, 0, work=1 << 30)
    assert not heavy.fits(100, 1 << 38)
    assert light.fits(100, 1 << 36)
    assert not evaluated.fits(100, 1 << 36), "the reference evaluator is slow"
    assert not Budget(seconds=1.0, trials=2).fits(100, 1 << 36), "the limit follows the seconds that were given"


def test_a_busy_machine_runs_the_same_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = same(RELU, RELU)
    run = RemoteSession.run

    def slow(session: RemoteSession, feeds: Feeds) -> list[Value]:
        outputs = run(session, feeds)
        session.usage = replace(session.usage, seconds=100.0)
        return outputs

    monkeypatch.setattr(RemoteSession, "run", slow)
    busy = same(RELU, RELU)
    assert [trial.style for trial in busy.trials] == [trial.style for trial in usual.trials]
    assert busy.not_covered == usual.not_covered


def test_the_budget_leaves_out_what_needs_twice_the_memory() -> None:
    budget = Budget(weights=1000 * MB)
    budget.count(100, 1500 * MB)
    assert budget.fits(100)
    assert budget.fits(350)
    assert not budget.fits(500)
    small = Budget()
    small.count(100, 100 * MB)
    assert small.fits(900), "memory does not matter below a gigabyte"


def test_empty_trials_do_not_make_the_next_ones_look_expensive() -> None:
    budget = Budget()
    for elements in (0, 100, 0, 1, 0, 0):
        budget.count(elements, 300 * MB)
    assert budget.fits(1000), "memory for no element is no rate"


RELU = "g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }"


@pytest.mark.parametrize("runtime", ["reference", "openvino"])
def test_a_second_runtime_confirms(runtime: str) -> None:
    longer = "g (float[n, 4] x) => (float[n, 4] y) { z = Constant <value = float {0}> () m = Sub (x, z) y = Relu (m) }"
    verdict = same(longer, RELU, runtimes=("ort", runtime))
    assert verdict.passed, verdict.failures
    (check,) = verdict.runtimes
    assert check.runtime.startswith("onnx.reference" if runtime == "reference" else runtime)
    assert check.trials >= 4
    assert check.from_rewrite == ()


def test_what_a_second_runtime_cannot_run_of_the_result_fails() -> None:
    """The rewrite fails because the second runtime cannot run its result, although the first can."""
    decomposed = """g (float[n, 4] x) => (float[n, 4] y) { a = Sigmoid (x) y = Mul (x, a) }"""
    own = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]> '
        "g (float[n, 4] x) => (float[n, 4] y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }"
    )
    assert verify(text_model(decomposed), own, threads=1).passed
    verdict = verify(text_model(decomposed), own, threads=1, runtimes=("ort", "reference"))
    assert not verdict.passed
    assert any(line.startswith("in onnx.reference") for line in verdict.failures)


def test_a_runtime_that_differs_on_the_reference_is_noted_and_nothing_fails() -> None:
    """OpenVINO's Relu returns 0 for NaN; the standard and ONNX Runtime return NaN."""
    feeds = {"x": np.array([[np.nan, 1, 2, 3]], np.float32)}
    verdict = same(RELU, RELU, inputs=feeds, runtimes=("ort", "openvino"))
    assert verdict.passed
    assert any("NaN" in line for line in verdict.runtimes[0].from_runtime)
    assert verdict.runtimes[0].from_rewrite == ()


def test_a_missing_npm_package_is_one_error_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_NODE_MODULES", str(tmp_path))
    with pytest.raises(RuntimeFailure, match=f"onnxruntime-web is not installed in {tmp_path}") as caught:
        same(RELU, RELU, runtimes=("ort", "web-wasm"))
    assert caught.value.hint == (
        "npm install onnxruntime-web, or set SARDONYX_NODE_MODULES to the node_modules folder that has it"
    )
    (tmp_path / "onnxruntime-web").mkdir()
    monkeypatch.setenv("CHROME_PATH", str(tmp_path / "none"))
    with pytest.raises(RuntimeFailure, match="need Chromium, which is not installed") as caught:
        same(RELU, RELU, runtimes=("web-webgpu",))
    assert caught.value.hint == "install chromium, or set CHROME_PATH"


def test_an_unknown_runtime_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no runtime 'tpu'"):
        same(RELU, RELU, runtimes=("tpu",))


def test_the_step_that_a_decoder_repeats_is_the_second_trial() -> None:
    decoder = """g (int64[batch, sequence] ids, float[batch, past, 4] old) => (float[batch, total, 4] new)
        <float[9, 4] table = {%s}> { e = Gather (table, ids) new = Concat <axis = 1> (old, e) }"""
    model = text_model(decoder % ", ".join(f"{number}.5" for number in range(36)))
    for trials, count in ((None, 5), (1, 2)):
        verdict = verify(model, model, trials=trials)
        assert len(verdict.trials) >= count
        first, step = verdict.trials[:2]
        assert step.style == "normal, one new position"
        assert first.dims["sequence"] > 1
        assert (step.dims["sequence"], step.dims["past"] > 1) == (1, True)
