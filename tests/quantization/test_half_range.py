"""Models whose plain conversion to float16 gives infinities or NaN: `--to fp16` names the modules and keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnx.reference
import pytest

import sardonyx
from sardonyx.reporting.document import View
from sardonyx.reporting.quantization import risk_section

HALF, SINGLE = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
Arrays = dict[str, np.ndarray]


def _weight(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def _model(text: str, modules: dict[str, str], arrays: Arrays, opset: int = 17) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    for node in model.graph.node:
        path = modules[next(prefix for prefix in modules if node.output[0].startswith(prefix))]
        node.name = f"/{path.replace('.', '/')}/{node.op_type}_{node.output[0]}"
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(each), name) for name, each in arrays.items()
    )
    return model


def large_before_norm(rng: np.random.Generator) -> onnx.ModelProto:
    """A residual stream with one channel of about 1e5, as those of large language models, and an RMSNorm."""
    text = """g (float[n, 64] x) => (float[n, 64] y) {
        up = MatMul (x, w0) up_act = Sigmoid (up) down = MatMul (up_act, w1) res = Add (x, down)
        n_sq = Pow (res, two) n_mean = ReduceMean <axes = [-1]> (n_sq) n_eps = Add (n_mean, eps) n_root = Sqrt (n_eps)
        n_div = Div (res, n_root) n_out = Mul (n_div, gain) y = MatMul (n_out, w2) }"""
    arrays: Any = {"w0": _weight(rng, 64, 256), "w1": _weight(rng, 256, 64), "w2": _weight(rng, 64, 64)}
    arrays["w1"][:, 7] = 800
    arrays |= {"two": np.float32(2), "eps": np.float32(1e-6), "gain": 1 + _weight(rng, 64)}
    modules = {"up": "layer.mlp.up", "down": "layer.mlp.down", "res": "layer", "n_": "layer.norm", "y": "head"}
    return _model(text, modules, arrays)


def gated_feed_forward(rng: np.random.Generator) -> onnx.ModelProto:
    """The feed-forward of T5: gelu(x A) * (x B) reaches 1e5 before the last product makes it small again."""
    text = """g (float[n, 64] x) => (float[n, 64] y) {
        gate = MatMul (x, w0) act = Sigmoid (gate) act_out = Mul (gate, act) line = MatMul (x, w1)
        hidden = Mul (act_out, line) wo = MatMul (hidden, w2) y = Add (x, wo) }"""
    arrays = {"w0": 300 * _weight(rng, 64, 128), "w1": 300 * _weight(rng, 64, 128), "w2": _weight(rng, 128, 64) / 100}
    modules = {"gate": "ff.wi_0", "act": "ff.act", "line": "ff.wi_1", "hidden": "ff", "wo": "ff.wo", "y": "block"}
    return _model(text, modules, arrays)


def encoder_of_audio(rng: np.random.Generator) -> onnx.ModelProto:
    """As Whisper's encoder: a convolution, Gelu, positions, a residual stream that grows, and a norm in one node."""
    text = """g (float[n, 16, t] x) => (float[n, t, 64] y) {
        c = Conv <pads = [1, 1]> (x, k, kb) c_div = Div (c, root) c_erf = Erf (c_div) c_one = Add (c_erf, one)
        c_mul = Mul (c, c_one) c_act = Mul (c_mul, half) p = Transpose <perm = [0, 2, 1]> (c_act)
        fc1 = MatMul (p, w0) fc1_act = Relu (fc1) fc2 = MatMul (fc1_act, w1) res = Add (p, fc2)
        ln = LayerNormalization <axis = -1, epsilon = 0.00001> (res, gain, shift) y = MatMul (ln, w2) }"""
    arrays = {
        "k": _weight(rng, 64, 16, 3),
        "kb": _weight(rng, 64),
        "root": np.float32(np.sqrt(2)),
        "one": np.float32(1),
    }
    arrays |= {"half": np.float32(0.5), "w0": 100 * _weight(rng, 64, 256), "w1": 2000 * _weight(rng, 256, 64)}
    arrays |= {"w2": _weight(rng, 64, 64), "gain": 1 + _weight(rng, 64), "shift": _weight(rng, 64)}
    arrays["w1"][:, 8:] /= 1000
    modules = {"c": "encoder.conv", "p": "encoder", "fc1": "encoder.layer.fc1", "fc2": "encoder.layer.fc2"}
    modules |= {"res": "encoder.layer", "ln": "encoder.norm", "y": "head"}
    return _model(text, modules, arrays)


def unscaled_attention(rng: np.random.Generator) -> onnx.ModelProto:
    """Attention whose scores are not divided by the root of the width: they reach 1e5."""
    text = """g (float[n, t, 64] x) => (float[n, t, 64] y) {
        q = MatMul (x, w0) k = MatMul (x, w1) v = MatMul (x, w2) k_t = Transpose <perm = [0, 2, 1]> (k)
        a = MatMul (q, k_t) a_soft = Softmax <axis = -1> (a) a_sum = MatMul (a_soft, v) y = MatMul (a_sum, w3) }"""
    arrays = {f"w{number}": _weight(rng, 64, 64) for number in range(4)}
    arrays["w0"] *= 100
    arrays["w1"] *= 100
    modules = {"q": "attn.query", "k": "attn.key", "v": "attn.value", "a": "attn", "y": "attn.out"}
    return _model(text, modules, arrays)


def long_sum(rng: np.random.Generator) -> onnx.ModelProto:
    """Mean pooling as a sum over 4,096 steps that is divided by their number."""
    text = """g (float[n, 4096, 32] x) => (float[n, 64] y) {
        p = MatMul (x, w0) p_act = Relu (p) pool = ReduceSum <keepdims = 0> (p_act, axis) pool_mean = Div (pool, count)
        y = MatMul (pool_mean, w1) }"""
    arrays = {"w0": 80 * _weight(rng, 32, 64), "w1": _weight(rng, 64, 64), "axis": np.array([1])}
    arrays["count"] = np.asarray(np.float32(4096))
    return _model(text, {"pool": "pool", "p": "proj", "y": "head"}, arrays)


MODELS: dict[str, tuple[Callable[..., onnx.ModelProto], tuple[int, ...], str, str]] = {
    "large activations before an RMSNorm": (large_before_norm, (8, 64), "layer.norm", "squares reach"),
    "the feed-forward of T5": (gated_feed_forward, (16, 64), "ff", "its numbers reach"),
    "an encoder of audio": (encoder_of_audio, (2, 16, 40), "encoder.layer.fc2", "its sums of 256 products reach"),
    "attention without scaling": (unscaled_attention, (2, 12, 64), "attn", "its scores, sums of 64 products reach"),
    "a sum over a long axis": (long_sum, (2, 4096, 32), "pool", "its sums of 4096 numbers reach"),
}


def _in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with every float32 number in float16."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    for value in (*plain.graph.input, *plain.graph.output):
        if value.type.tensor_type.elem_type == SINGLE:
            value.type.tensor_type.elem_type = HALF
    for tensor in plain.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float16), tensor.name))
    return plain


def _run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """The output by onnx's reference, which rounds every result to its type."""
    with np.errstate(all="ignore"):
        outputs: Any = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    return np.asarray(outputs[0]).astype(np.float32)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_overflows_in_float16_is_right_and_its_module_is_named(name: str) -> None:
    build, shape, module, reason = MODELS[name]
    model = build(np.random.default_rng(0))
    samples: Any = [{"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)} for seed in range(4)]
    x = np.random.default_rng(9).standard_normal(shape).astype(np.float32)
    expected = _run(model, x)
    assert np.isfinite(expected).all()
    assert not np.isfinite(_run(_in_half(model), x.astype(np.float16))).all()
    made = sardonyx.quantize(model, to="fp16", data=samples)
    found = _run(made.to_proto(), x)
    assert np.isfinite(found).all()
    assert np.linalg.norm(found - expected) < 5e-3 * np.linalg.norm(expected)
    assert made.after.bytes < 0.75 * made.before.bytes
    named = [risk for risk in made.risks if risk.module == module and reason in risk.reason]
    assert named, made.risks
    assert all(risk.kept for risk in named)
    shown = risk_section(made, View(verbose=True))
    assert module in str(shown)
    assert reason in str(shown)


def test_numbers_that_stay_within_the_range_are_not_named() -> None:
    text = "g (float[n, 64] x) => (float[n, 64] y) { a = MatMul (x, w) b = Relu (a) y = MatMul (b, v) }"
    rng = np.random.default_rng(0)
    model = _model(text, {"a": "one", "b": "act", "y": "two"}, {"w": _weight(rng, 64, 64), "v": _weight(rng, 64, 64)})
    assert sardonyx.quantize(model, to="fp16").risks == ()


def test_what_only_other_inputs_would_reach_is_a_bound_and_epsilons_are_named() -> None:
    text = """g (float[n, 64] x) => (float[n, 64] y) {
        a = MatMul (x, w) b = Mul (a, a) c = Add (b, eps) d = MatMul (c, v) y = Relu (d) }"""
    rng = np.random.default_rng(0)
    arrays = {"w": 20 * _weight(rng, 64, 64), "v": 30 * _weight(rng, 64, 64), "eps": np.asarray(np.float32(1e-12))}
    modules = {name: f"m.{name}" for name in "abcdy"}
    data: Any = {"x": rng.standard_normal((4, 64)).astype(np.float32)}
    risks = {risk.module: risk for risk in sardonyx.quantize(_model(text, modules, arrays), to="fp16", data=data).risks}
    assert "which becomes 0 in float16" in risks["m.c"].reason
    assert risks["m.c"].kept
    assert "products can reach" in risks["m.d"].reason or "products reach" in risks["m.d"].reason


@pytest.mark.parametrize(("scale", "stays"), [(1000.0, True), (1.0, False)])
def test_a_norm_that_squares_in_its_own_type_stays_in_float32_if_squares_leave_the_range(
    scale: float, stays: bool
) -> None:
    text = """g (float[n, 8, 64] x) => (float[n, 8, 64] y) {
        a = MatMul (x, w) b = InstanceNormalization (a, gain, shift) y = MatMul (b, v) }"""
    rng = np.random.default_rng(0)
    arrays = {
        "w": scale * _weight(rng, 64, 64),
        "v": _weight(rng, 64, 64),
        "gain": _weight(rng, 8),
        "shift": _weight(rng, 8),
    }
    model = _model(text, {"a": "a", "b": "norm", "y": "y"}, arrays)
    data: Any = {"x": rng.standard_normal((2, 8, 64)).astype(np.float32)}
    made = sardonyx.quantize(model, to="fp16", data=data)
    reasons = [group.reason for group in made.skipped if "norm" in group.modules]
    assert any("when it squares them" in reason for reason in reasons) is stays
    assert any(risk.module == "norm" and "inner squares" in risk.reason for risk in made.risks) is stays
