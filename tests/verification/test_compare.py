"""verify(): what passes, what fails, and what the verdict contains."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from sardonyx.errors import RuntimeFailure, UsageError, VerificationFailed
from sardonyx.ir import io
from sardonyx.records.run import Accuracy, Verdict
from sardonyx.verification import Oracle, verify
from sardonyx.verification.subject import random_outputs
from verification.text_models import text_model


def same(a: str, b: str, accuracy: Accuracy = Accuracy.REASSOCIATES) -> Verdict:
    return verify(text_model(a), text_model(b), accuracy=accuracy, threads=1)


RELU = "g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }"


def test_every_form_of_a_model_is_accepted_and_none_is_changed(tmp_path: Path) -> None:
    proto = text_model(RELU)
    onnx.save(proto, tmp_path / "m.onnx")
    before = proto.SerializeToString()
    for a in (proto, tmp_path / "m.onnx", str(tmp_path / "m.onnx"), io.from_proto(proto)):
        verdict = verify(a, proto)
        assert verdict.passed
        assert verdict.reference.endswith("optimizations off")
    assert proto.SerializeToString() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_a_verdict_lists_the_trials() -> None:
    verdict = verify(text_model(RELU), text_model(RELU), seeds=(5, 6))
    assert {trial.seed for trial in verdict.trials} == {5, 6}
    assert len({trial.dims["n"] for trial in verdict.trials}) >= 3
    assert {"normal", "wide", "positive", "empty"} <= {trial.style for trial in verdict.trials}
    assert verdict.outputs[0].max_abs == 0
    assert verdict.seconds > 0


def test_a_changed_sign_fails() -> None:
    assert not same(RELU, RELU.replace("Relu", "Abs")).passed
    assert not same(RELU, RELU.replace("Relu", "Identity")).passed


def test_padding_before_a_maximum_is_not_padding_inside_it() -> None:
    padded = """g (float[1, 1, h, 8] x) => (float[1, 1, a, b] y) {
        pads = Constant <value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}> ()
        p = Pad (x, pads) y = MaxPool <kernel_shape = [2, 2]> (p) }"""
    fused = """g (float[1, 1, h, 8] x) => (float[1, 1, a, b] y) {
        y = MaxPool <kernel_shape = [2, 2], pads = [1, 1, 1, 1]> (x) }"""
    assert not same(padded, fused).passed


def test_a_key_scaled_by_a_thousand_fails_though_one_position_would_hide_it() -> None:
    def attention(scale: float) -> str:
        return f"""g (float[b, n, 8] x) => (float[b, n, 8] y) {{
            k = Constant <value = float {{{scale}}}> () t = Transpose <perm = [0, 2, 1]> (x) m = Mul (t, k)
            s = MatMul (x, m) w = Softmax <axis = -1> (s) y = MatMul (w, x) }}"""

    assert same(attention(1), attention(1)).passed
    assert not same(attention(1), attention(1000)).passed


def test_nan_where_the_reference_has_none_fails() -> None:
    root = "g (float[n, 4] x) => (float[n, 4] y) { a = Abs (x) y = Sqrt (a) }"
    verdict = same(root, "g (float[n, 4] x) => (float[n, 4] y) { y = Sqrt (x) }")
    assert not verdict.passed
    assert any("NaN" in line for line in verdict.failures)


def test_nan_where_the_reference_has_it_passes() -> None:
    log = "g (float[n, 4] x) => (float[n, 4] y) { y = Log (x) }"
    assert same(log, log, Accuracy.EXACT).passed


def test_infinities_and_nan_are_generated_for_exact_rewrites() -> None:
    times_zero = "g (float[n, 4] x) => (float[n, 4] y) { z = Constant <value = float {0}> () y = Mul (x, z) }"
    zero = "g (float[n, 4] x) => (float[n, 4] y) { y = Sub (x, x) }"
    constant = "g (float[n, 4] x) => (float[n, 4] y) { s = Shape (x) y = ConstantOfShape <value = float[1] {0}> (s) }"
    assert same(times_zero, zero, Accuracy.EXACT).passed
    assert not same(times_zero, constant, Accuracy.EXACT).passed


def test_a_different_rounding_passes_and_is_not_exact() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((32, 32)).astype(np.float32) for _ in range(2))
    body = "g (float[n, 32] x) => (float[n, 32] y)"
    twice = text_model(f"{body} {{ h = MatMul (x, a) y = MatMul (h, b) }}", a=a, b=b)
    once = text_model(f"{body} {{ y = MatMul (x, ab) }}", ab=(a.astype(np.float64) @ b).astype(np.float32))
    assert verify(twice, once).passed
    verdict = verify(twice, once, accuracy=Accuracy.EXACT)
    assert not verdict.passed
    assert 0 < verdict.outputs[0].max_rel < 1e-3
    assert verdict.outputs[0].max_ulp >= 1


def test_an_approximation_passes_only_as_one() -> None:
    """The tanh form of Gelu is close, but differs by more than rounding."""
    gelu = 'g (float[n, 64] x) => (float[n, 64] y) { y = Gelu <approximate = "%s"> (x) }'
    exact, tanh = text_model(gelu % "none", 20), text_model(gelu % "tanh", 20)
    assert not verify(exact, tanh).passed
    assert verify(exact, tanh, accuracy=Accuracy.APPROXIMATES).passed


def test_a_mask_of_minus_infinity_hides_no_fault() -> None:
    masked = """g (float[3, 4] q, float[4, 8] k, float[8, 5] v) => (float[3, 5] y) {
        mask = Constant <value = float[8] {0, 0, 0, -inf, 0, -inf, 0, 0}> ()
        s = MatMul (q, k)
        m = Add (s, mask)
        p = Softmax <axis = -1> (m)
        n = IsNaN (p)
        zero = Constant <value = float {0.0}> ()
        safe = Where (n, zero, p)
        y = MatMul (safe, v)
    }"""
    scaled = "c = Constant <value = float {1.01}> () t = Mul (s, c) m = Add (t, mask)"
    wrong = masked.replace("m = Add (s, mask)", scaled)
    assert same(masked, masked).passed
    assert not same(masked, wrong).passed


def test_amplified_rounding_is_allowed() -> None:
    """exp(300 x) amplifies the rounding of x by hundreds; a further error of one thousandth is still a fault."""

    def steep(first: str, second: str) -> str:
        return f"""g (float[n, 64] x) => (float[n, 64] y) {{
            a = Constant <value = float {{{first}}}> () b = Constant <value = float {{{second}}}> ()
            t = Tanh (x) u = Mul (t, a) v = Mul (u, b) y = Exp (v) }}"""

    verdict = same(steep("7.7", "9.1"), steep("9.1", "7.7"))
    assert verdict.passed, verdict.failures
    assert verdict.outputs[0].max_ulp > 64, "the case is within the tolerance: it shows nothing"
    assert not same(steep("7.7", "9.1"), steep("7.7", "9.1001")).passed


def test_a_tie_that_rounding_decides_passes_and_a_wrong_choice_fails() -> None:
    def choice(first: str, second: str) -> str:
        """Which of x·1.1·3 and x·3·1.1 is larger depends on rounding."""
        return f"""g (float[n, 1] x) => (int64[n] y) {{
            p = Constant <value = float {{1.1}}> () q = Constant <value = float {{3}}> ()
            a = Mul (x, {first}) b = Mul (a, {second}) c = Mul (x, q) d = Mul (c, p)
            r = Concat <axis = 1> (b, d) y = ArgMax <axis = -1, keepdims = 0> (r) }}"""

    feeds = {"x": np.random.default_rng(0).standard_normal((40, 1)).astype(np.float32)}
    verdict = verify(text_model(choice("p", "q")), text_model(choice("q", "p")), inputs=feeds)
    assert verdict.passed, verdict.failures
    assert not verify(text_model(choice("p", "q")), text_model(choice("q", "q")), inputs=feeds).passed
    assert "the output 'y' has different indices with equal scores" in verdict.notes
    largest = "g (float[n, 4] x) => (int64[n] y) { y = ArgMax <axis = -1, keepdims = 0> (x) }"
    assert not same(largest, largest.replace("ArgMax", "ArgMin")).passed


@pytest.mark.parametrize(
    "changed",
    [
        "g (float[n, 4] x) => (float[n, 4] z) { z = Relu (x) }",
        "g (float[n, 4] w) => (float[n, 4] y) { y = Relu (w) }",
        "g (float[n, 4] x, float[1] k) => (float[n, 4] y) { y = Relu (x) }",
        "g (float[m, 4] x) => (float[m, 4] y) { y = Relu (x) }",
        "g (float[2, 4] x) => (float[2, 4] y) { y = Relu (x) }",
        "g (float[n, 4] x) => (float[n, 4] y, float[n, 4] u) { y = Relu (x) u = Relu (x) }",
        "g (float[n, 4] x) => (double[n, 4] y) { r = Relu (x) y = Cast <to = 11> (r) }",
        "g (double[n, 4] x) => (float[n, 4] y) { c = Cast <to = 1> (x) y = Relu (c) }",
        "g (float[n, 4] x) => (float[n, 2, 2] y) {"
        " r = Relu (x) s = Constant <value = int64[3] {-1, 2, 2}> () y = Reshape (r, s) }",
    ],
)
def test_the_interface_is_frozen(changed: str) -> None:
    verdict = same(RELU, changed)
    assert not verdict.passed
    assert any("was" in line or "were" in line for line in verdict.failures)


def test_swapped_outputs_fail() -> None:
    both = "g (float[n, 4] x) => (float[n, 4] %s, float[n, 4] %s) { a = Relu (x) b = Abs (x) }"
    assert not same(both % ("a", "b"), both % ("b", "a")).passed
    crossed = "g (float[n, 4] x) => (float[n, 4] a, float[n, 4] b) { b = Relu (x) a = Abs (x) }"
    assert not same(both % ("a", "b"), crossed).passed


def test_a_model_that_does_not_load_is_a_failure_and_not_an_error() -> None:
    verdict = same(RELU, RELU.replace("Relu", "NoSuchOperator"))
    assert not verdict.passed
    assert any("does not" in line for line in verdict.failures)


def test_a_result_that_rejects_inputs_of_the_original_fails() -> None:
    strict = """g (float[n, 4] x) => (float[n, 4] y) {
        s = Constant <value = int64[2] {2, 4}> () r = Reshape (x, s) y = Relu (r) }"""
    assert not same(RELU, strict).passed


@pytest.mark.parametrize(
    "draws",
    [
        "r = RandomNormalLike (x) y = Add (x, r)",
        "p = Sigmoid (x) y = Bernoulli (p)",
        "h = Constant <value = float {0.5}> () t = Constant <value = bool {1}> () y = Dropout (x, h, t)",
        "c = Constant <value = bool {1}> () y = If (c) <"
        "then_branch = t () => (float[n, 4] u) {r = RandomUniformLike (x) u = Add (x, r)},"
        "else_branch = e () => (float[n, 4] v) {v = Neg (x)}>",
    ],
)
def test_random_outputs_are_compared_by_interface_only(draws: str) -> None:
    model = f"g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) {{ {draws} z = Relu (x) }}"
    verdict = same(model, model)
    assert verdict.passed, verdict.failures
    assert any("'y' depends on random numbers" in note for note in verdict.notes)
    assert not any("'z'" in note for note in verdict.notes)
    assert not same(model, model.replace("z = Relu", "z = Neg")).passed


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_random_functions_are_found_in_any_order(order: tuple[int, ...]) -> None:
    called = "b = own.f1 (a)", "b = own.f2 (a)", "b = RandomNormalLike (a)"
    functions = [f'<domain: "own", opset_import: ["": 18, "own": 1]> f{k} (a) => (b) {{ {called[k]} }}' for k in order]
    head = '<ir_version: 10, opset_import: ["": 18, "own": 1]> g (float[4] x) => (float[4] y, float[4] z)'
    proto = onnx.parser.parse_model(f"{head} {{ y = own.f0 (x)  z = own.f3 (x) }}" + " ".join(functions) + "\n"
        '<domain: "own", opset_import: ["": 18]> f3 (a) => (b) { b = Relu (a) }')  # fmt: skip
    assert random_outputs(io.from_proto(proto)) == {"y"}


def test_a_model_with_random_outputs_alone_is_not_verified() -> None:
    model = "g (float[n, 4] x) => (float[n, 4] y) { r = RandomNormalLike (x) y = Add (x, r) }"
    with pytest.raises(VerificationFailed, match="not verified: all outputs depend on random numbers"):
        same(model, model)


def test_dropout_in_inference_is_not_random() -> None:
    model = "g (float[n, 4] x) => (float[n, 4] y) { y = Dropout (x) }"
    assert not same(model, model.replace("Dropout", "Neg")).passed


def test_the_reference_evaluator_runs_what_the_runtime_cannot() -> None:
    new = text_model(RELU, 18, 14)
    verdict = verify(new, new)
    assert verdict.passed
    assert verdict.reference.startswith("onnx.reference")
    assert any("reference evaluator: ONNX Runtime cannot load the model" in note for note in verdict.notes)
    assert not verify(new, text_model(RELU.replace("Relu", "Neg"), 18, 14)).passed


def test_related_sizes_are_found_by_running_the_reference() -> None:
    body = """g (float[b, new] x, float[b, old] c, float[b, all] m) => (float[b, all] y) {
        k = Concat <axis = 1> (c, x) y = Add (k, m) }"""
    verdict = same(body, body)
    assert verdict.passed
    assert all(t.dims["all"] == t.dims["new"] + t.dims["old"] for t in verdict.trials)
    assert len({t.dims["old"] for t in verdict.trials}) > 1


def test_given_inputs_are_used_too(tmp_path: Path) -> None:
    """A difference that only the given input shows."""
    clip = "g (float[n] x) => (float y) { l = Constant <value = float {%s}> () z = MatMul (x, x) y = Min (z, l) }"
    a, b = text_model(clip % "1e12"), text_model(clip % "2e12")
    assert verify(a, b).passed
    feeds = {"x": np.array([3e6], np.float32)}
    np.savez(tmp_path / "x.npz", x=feeds["x"])
    for given in (tmp_path / "x.npz", str(tmp_path / "x.npz"), feeds, [feeds]):
        verdict = verify(a, b, inputs=given)
        assert not verdict.passed
        assert [t.passed for t in verdict.trials if t.seed is None] == [False]


def test_invalid_given_inputs_are_a_usage_error(tmp_path: Path) -> None:
    model = text_model(RELU)
    (tmp_path / "no.npz").write_text("nothing")
    for given in ({"z": np.ones(1)}, {"x": np.ones(3, np.int8)}, tmp_path / "no.npz", tmp_path / "missing.npz"):
        with pytest.raises(UsageError):
            verify(model, model, inputs=given)
    with pytest.raises(UsageError):
        verify(model, model, seeds=())


def test_a_model_that_rejects_all_random_inputs_is_an_error() -> None:
    picky = text_model("g (float[3] x) => (float[1] y) { y = Gather (x, i) }", i=np.array([7]))
    with pytest.raises(RuntimeFailure, match="accepts none"):
        verify(picky, picky)


def test_values_captured_by_bodies_and_defaults_that_are_inputs() -> None:
    body = """g (float[n] x, float[1] k) => (float[n] y) { c = Constant <value = bool {1}> ()
        y = If (c) <then_branch = t () => (float[n] u) {u = Mul (x, k)},
                    else_branch = e () => (float[n] v) {v = Neg (x)}> }"""
    model = text_model(body, k=np.array([3], np.float32))
    assert verify(model, model).passed
    frozen = text_model(
        body.replace("Mul (x, k)", "Mul (x, f)"), k=np.array([3], np.float32), f=np.array([3], np.float32)
    )
    assert not verify(model, frozen).passed, "the default was taken for a constant"


@pytest.mark.medium
def test_small_types_strings_and_sequences() -> None:
    for kind in ("float16", "bfloat16", "double", "int8", "uint8", "bool", "string", "float8e5m2", "int4", "complex64"):
        model = text_model(f"g ({kind}[n] x) => ({kind}[n] y) {{ y = Identity (x) }}", 21, 10)
        verdict = verify(model, model, accuracy=Accuracy.EXACT)
        assert verdict.passed, (kind, verdict.failures)
    parts = text_model("g (seq(float[n]) x) => (seq(float[n]) y) { y = Identity (x) }")
    assert verify(parts, parts).passed


def test_outputs_that_verify_nothing_are_listed() -> None:
    dead = "g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z, float[n, 4] u) {"
    dead += " o = Constant <value = float {0}> () y = Mul (x, o) a = Abs (x)"
    dead += " e = Constant <value = float {-9}> () f = Sub (e, a) z = Log (f) u = Relu (x) }"
    notes = [note for note in same(dead, dead).notes if "weak evidence" in note]
    assert ["'y'" in notes[0], "'z'" in notes[1], len(notes)] == [True, True, 2]


@pytest.mark.parametrize(
    ("node", "shape"), [("MatMul (x, w)", (16, 24)), ("Gemm (x, w)", (16, 24)), ("MatMulInteger (i, v)", (16, 24))]
)
def test_a_weight_that_becomes_constant_is_still_exact(node: str, shape: tuple[int, ...]) -> None:
    """The runtime packs constant weights for other kernels with other rounding; verification must not be affected."""
    values = np.random.default_rng(0).standard_normal(shape)
    kind = "int32" if "i, v" in node else "float"
    body = f"g (float[n, 16] x) => ({kind}[n, 24] y) {{ i = Cast <to = 3> (x) %s y = {node} }}"
    weights = {"c": values.astype(np.float32)}
    through = text_model(body % "w = Identity (c) v = Cast <to = 3> (w)", **weights)
    direct = text_model(
        (body % "").replace(" w)", " c)").replace(" v)", " k)"), **weights, k=values.astype(np.float32).astype(np.int8)
    )
    verdict = verify(through, direct, accuracy=Accuracy.EXACT)
    assert verdict.passed, verdict.failures


def test_one_reference_serves_many_candidates() -> None:
    oracle = Oracle(text_model(RELU))
    assert oracle.check(text_model(RELU)).passed
    assert not oracle.check(text_model(RELU.replace("Relu", "Neg"))).passed
    assert oracle.check(text_model(RELU), Accuracy.EXACT).passed


@pytest.mark.parametrize("name", ["bert", "gpt2", "cnn"])
def test_models_optimized_by_the_runtime_pass(
    name: str, small_model: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """The runtime's own optimizations serve as a correct optimizer, on models where they are correct."""
    import onnxruntime as ort

    path = small_model(name, "torchscript")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    verdict = verify(path, tmp_path / "fused.onnx")
    assert verdict.passed, verdict.failures
    assert any(output.max_abs > 0 for output in verdict.outputs), "nothing was fused: this shows nothing"


HEADS = "(float[n, 2, s, 8] q, float[n, 2, s, 8] k, float[n, 2, s, 8] v) => (float[n, 2, s, 8] y)"


def test_a_kernel_that_does_not_accept_an_empty_batch_is_noted_and_kept() -> None:
    plain = f"""g {HEADS} <float c = {{0.35355339}}> {{
        t = Transpose <perm = [0, 1, 3, 2]> (k)  a = MatMul (q, t)  b = Mul (a, c)  p = Softmax (b)
        y = MatMul (p, v) }}"""
    fused = f"g {HEADS} {{ y = Attention (q, k, v) }}"
    verdict = verify(text_model(plain), text_model(fused, 23, 11), threads=1)
    assert verdict.passed
    assert any("no longer accepts n = 0" in note for note in verdict.notes)
    assert verdict.outputs[0].max_abs < 1e-5


def test_a_fully_masked_row_is_not_compared_if_it_is_nan_in_the_reference() -> None:
    attention = """g (float[n, 2, s, 8] q, bool[n, s] m) => (float[n, 2, s, 8] y)
    <float low = {-1e9}, float zero = {0.0}, int64[2] at = {1, 2}> {
        t = Transpose <perm = [0, 1, 3, 2]> (q)  a = MatMul (q, t)  u = Unsqueeze (m, at)
        b = Where (u, zero, low)  c = Add (a, b)  p = Softmax (c)  y = MatMul (p, q) }"""
    infinite = text_model(attention)
    low = next(tensor for tensor in infinite.graph.initializer if tensor.name == "low")
    low.CopyFrom(numpy_helper.from_array(np.array(-np.inf, np.float32), "low"))
    finite = verify(text_model(attention), infinite, threads=1)
    assert not finite.passed, "the mean of all values became NaN"
    verdict = verify(infinite, text_model(attention), threads=1)
    assert verdict.passed
    assert any("NaN for fully masked rows" in note for note in verdict.notes)
