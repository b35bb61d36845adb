"""Products of other forms than MatMul(x, W): reversed, scaled, stacked, recurrent, shared, and of older opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import sardonyx
from sardonyx.errors import VerificationFailed
from sardonyx.verbs.quantize import stacked_weights, weights
from sardonyx.verbs.quantize.weights import saturates
from sardonyx.verification.subject import Subject

PRECISIONS = ["int8", "int8-weights", "int4"]
GRU = '<hidden_size = 24, direction = "bidirectional">'


def _model(text: str, shapes: dict[str, tuple[int, ...]], opset: int = 17) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        array = (rng.standard_normal(shape) / 8).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def _output(model: Any, x: np.ndarray) -> np.ndarray:
    with Subject(model).session(threads=1) as engine:
        return np.asarray(engine.run({"x": x})[0])


FORMS: dict[str, tuple[str, dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "reversed": ("g (float[n, 64, 5] x) => (float[n, 32, 5] y) { y = MatMul (w, x) }", {"w": (32, 64)}, (2, 64, 5)),
    "scaled": (
        "g (float[n, 64] x) => (float[n, 32] y) { y = Gemm <alpha = 0.5, beta = 3.0> (x, w, b) }",
        {"w": (64, 32), "b": (32,)},
        (4, 64),
    ),
    "a stack of experts": (
        "g (float[4, n, 64] x) => (float[4, n, 32] y) { y = MatMul (x, w) }",
        {"w": (4, 64, 32)},
        (4, 3, 64),
    ),
    "LSTM": (
        "g (float[5, n, 16] x) => (float[5, 1, n, 24] y, float[1, n, 24] c)"
        "{ y, , c = LSTM <hidden_size = 24> (x, w, r, b) }",
        {"w": (1, 96, 16), "r": (1, 96, 24), "b": (1, 192)},
        (5, 2, 16),
    ),
    "GRU in both directions": (
        f"g (float[5, n, 16] x) => (float[2, n, 24] h) {{ , h = GRU {GRU} (x, w, r, b) }}",
        {"w": (2, 72, 16), "r": (2, 72, 24), "b": (2, 144)},
        (5, 2, 16),
    ),
}


@pytest.mark.parametrize("to", PRECISIONS)
@pytest.mark.parametrize("form", FORMS)
def test_other_forms_are_quantized_and_checked(form: str, to: Any) -> None:
    text, shapes, shape = FORMS[form]
    model, x = _model(text, shapes), np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    made = sardonyx.quantize(model, to=to)
    assert [product.error is not None for product in made.products] == [True]
    assert made.after.bytes < 0.42 * made.before.bytes
    expected, found = _output(model, x), _output(made.to_proto(), x)
    assert np.linalg.norm(found - expected) < (0.2 if to == "int4" else 0.02) * np.linalg.norm(expected)


@pytest.mark.parametrize("fault", ["rows", "sizes"])
def test_a_wrong_stack_is_a_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, shapes, _ = FORMS["a stack of experts"]
    lazy = stacked_weights.lazy

    def wrong(dtype: Any, shape: Any, compute: Any) -> Any:
        if dtype.name != "INT8":
            return lazy(dtype, shape, compute)
        return lazy(dtype, shape, lambda: np.roll(compute(), 1, 1) if fault == "rows" else compute() // 2)

    monkeypatch.setattr(stacked_weights, "lazy", wrong)
    with pytest.raises(sardonyx.VerificationFailed, match="differs from its simulation"):
        sardonyx.quantize(_model(text, shapes), to="int8")


@pytest.mark.parametrize("to", PRECISIONS)
def test_a_weight_that_other_nodes_read_is_left_alone(to: Any) -> None:
    text = """g (float[n, 64] x) => (float[n, 64] y) {
      a = MatMul (x, w) b = ReduceSum <keepdims = 0> (w) c = MatMul (a, v) y = Mul (c, b) }"""
    made = sardonyx.quantize(_model(text, {"w": (64, 64), "v": (64, 64)}), to=to)
    assert [group.reason for group in made.skipped] == [
        "other nodes read its weight in float32: it would be stored twice"
    ]
    assert len(made.products) == 1
    assert made.after.bytes < made.before.bytes


@pytest.mark.parametrize(("to", "opset"), [("int8", 11), ("int8-weights", 11), ("int8-static", 13), ("int4", 21)])
def test_the_opset_of_an_old_file_is_raised(to: Any, opset: int) -> None:
    text = "g (float[n, 64] x) => (float[n, 64] y) { a = MatMul (x, w) b = Relu (a) y = MatMul (b, v) }"
    model = _model(text, {"w": (64, 64), "v": (64, 64)}, opset=9)
    rng = np.random.default_rng(1)
    data = [{"x": rng.standard_normal((4, 64)).astype(np.float32)} for _ in range(4)]
    made = sardonyx.quantize(model, to=to, data=data)
    assert len(made.products) == 2
    assert [each.version for each in made.to_proto().opset_import if not each.domain] == [opset]


LSTMS = {
    "forward": ("float[5, n, 16] x) => (float[5, 1, n, 24] y", "y = LSTM <hidden_size = 24> (x, w, r, b)", 1),
    "reverse, with a state": (
        "float[5, n, 16] x, float[1, n, 24] s) => (float[1, n, 24] h",
        ', h = LSTM <hidden_size = 24, direction = "reverse", clip = 2.5> (x, w, r, b, , s, s)',
        1,
    ),
    "both directions": (
        "float[5, n, 16] x, float[2, n, 24] s) => (float[5, 2, n, 24] y, float[2, n, 24] c",
        'y, , c = LSTM <hidden_size = 24, direction = "bidirectional", layout = 0> (x, w, r, b, , , s, p)',
        2,
    ),
}


@pytest.mark.medium
@pytest.mark.parametrize(("form", "opset"), [*((form, 17) for form in LSTMS), ("reverse, with a state", 9)])
def test_an_lstm_is_computed_in_integers_for_the_runtime(form: str, opset: int) -> None:
    interface, node, directions = LSTMS[form]
    shapes = {"w": (directions, 96, 16), "r": (directions, 96, 24), "b": (directions, 192), "p": (directions, 72)}
    model = _model(f"g ({interface}) {{ {node} }}", shapes, opset=opset)
    made = sardonyx.quantize(model, to="int8", target="ort")
    (product,) = made.products
    assert product.recipe == "quantize-lstm"
    assert product.error is not None
    assert product.error < product.allowed / 10
    assert made.after.bytes < 0.4 * made.before.bytes
    assert made.loss.scores is not None
    assert made.loss.scores.relative_l2.value < 0.02
    assert [each.op_type for each in made.to_proto().graph.node] == ["DynamicQuantizeLSTM"]
    assert bool(made.notes) == saturates()  # with 7 bits on a CPU that would saturate


@pytest.mark.medium
def test_a_wrong_weight_of_an_lstm_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = stacked_weights.lazy

    def wrong(dtype: Any, shape: Any, compute: Any) -> Any:
        return lazy(dtype, shape, (lambda: np.roll(compute(), 1, 2)) if dtype.name == "INT8" else compute)

    monkeypatch.setattr(stacked_weights, "lazy", wrong)
    interface, node, _ = LSTMS["forward"]
    model = _model(f"g ({interface}) {{ {node} }}", {"w": (1, 96, 16), "r": (1, 96, 24), "b": (1, 192)})
    with pytest.raises(sardonyx.VerificationFailed, match="differs from its simulation"):
        sardonyx.quantize(model, to="int8", target="ort")


def test_an_lstm_with_lengths_keeps_its_arithmetic() -> None:
    text = "g (float[5, 2, 16] x) => (float[5, 1, 2, 24] y) { y = LSTM <hidden_size = 24> (x, w, r, b, lengths) }"
    model = _model(text, {"w": (1, 96, 16), "r": (1, 96, 24), "b": (1, 192)})
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([5, 3], np.int32), "lengths"))
    made = sardonyx.quantize(model, to="int8", target="ort")
    assert [product.recipe for product in made.products] == ["quantize-stacks"]
    portable = sardonyx.quantize(model, to="int8")
    assert portable.notes == (
        "LSTM computes in float32, with weights in 8 bits; for the target `ort` it computes in 8-bit integers",
    )


BRANCHES = """g (float[4, 64] x, bool c) => (float[4, 32] y) { y = If (c) <
    then_branch = a () => (float[4, 32] p) { p = MatMul (x, w) },
    else_branch = b () => (float[4, 32] q) { d = If (c) <
        then_branch = e () => (float[4, 32] r) { r = Identity (z) },
        else_branch = f () => (float[4, 32] s) { h = MatMul (x, w) s = Gemm (h, v, b) }> q = Relu (d) }> }"""


@pytest.mark.parametrize("to", ["int8", "int8-weights"])
def test_products_in_branches_are_quantized_and_compared(to: Any) -> None:
    rng = np.random.default_rng(1)
    model = _model(BRANCHES, {"w": (64, 32), "v": (32, 32), "b": (32,), "z": (4, 32)})
    data = [{"x": rng.standard_normal((4, 64)).astype(np.float32), "c": np.array(at % 2 == 0)} for at in range(8)]
    made = sardonyx.quantize(model, to=to, data=data)
    assert (len(made.products), made.check.products, made.loss.samples) == (3, 3, 4)
    assert 0 < made.loss.relative_l2 < 0.02
    assert made.after.bytes < 0.55 * made.before.bytes  # the shared weight is stored in each of two branches


def test_a_branch_that_no_sample_takes_is_named() -> None:
    text = """g (float[4, 64] x, bool c) => (float[4, 32] y) { y = If (c) <
      then_branch = a () => (float[4, 32] p) { p = MatMul (x, w) },
      else_branch = b () => (float[4, 32] q) { q = MatMul (x, v) }> }"""
    model, rng = _model(text, {"w": (64, 32), "v": (64, 32)}), np.random.default_rng(1)
    data = [{"x": rng.standard_normal((4, 64)).astype(np.float32), "c": np.array(True)} for _ in range(12)]
    made = sardonyx.quantize(model, to="int8", data=data, budget="relative_l2<=1e-4", objective="bytes")
    assert [product.node for product in made.products] == ["q"]
    assert "no loss was measured for q: the samples do not reach them, as in a branch of an If" in made.notes


def test_a_wrong_product_in_a_branch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = weights.signed_columns
    monkeypatch.setattr(
        weights, "signed_columns", lambda *given, **how: np.where((held := exact(*given, **how)) > 90, 0, held)
    )
    model = _model(BRANCHES, {"w": (64, 32), "v": (32, 32), "b": (32,), "z": (4, 32)})
    with pytest.raises(VerificationFailed, match="differs from its simulation"):
        sardonyx.quantize(model, to="int8")
