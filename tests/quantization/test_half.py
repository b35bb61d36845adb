"""`sardonyx.quantize` to fp16 and bf16: what is converted, what stays in float32, and that errors are found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.checker
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sardonyx
from quantization.small_model import build
from sardonyx.ir.origins import owner
from sardonyx.records.quantization import Quantization
from sardonyx.verbs.optimize.candidates import RewriteJob
from sardonyx.verbs.quantize import half, half_placement
from sardonyx.verbs.quantize.calibration import MeasuredRange
from sardonyx.verbs.quantize.half import ConvertToHalf
from sardonyx.verbs.quantize.product_check import check_products
from sardonyx.verbs.quantize.recipe import Selection

HALF, SINGLE = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT


def model_of(text: str, opset: int = 17, **arrays: Any) -> onnx.ModelProto:
    """A model in ONNX text; constants are random of a shape, or given."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    for node in model.graph.node:
        node.name = f"/{node.output[0]}/{node.op_type}"
    for name, array in arrays.items():
        values = rng.standard_normal(array) / 8 if isinstance(array, tuple) else np.asarray(array)
        values = values.astype(np.float32) if values.dtype.kind == "f" else values
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def types_of(made: sardonyx.quantization.quantize.Quantized) -> dict[str, int]:
    """The element type of each named value of the result, as shape inference finds it."""
    inferred = onnx.shape_inference.infer_shapes(made.to_proto(), strict_mode=True)
    return {
        value.name: value.type.tensor_type.elem_type for value in (*inferred.graph.value_info, *inferred.graph.output)
    }


def computed_in(made: Any) -> dict[str, str]:
    """The type of the first operand of every node of the source, by the module that it stands for."""
    types = types_of(made) | {value.name: value.data_type for value in made.to_proto().graph.initializer}
    types |= {value.name: value.type.tensor_type.elem_type for value in made.to_proto().graph.input}
    names: dict[int, str] = {HALF: "fp16", SINGLE: "fp32"}
    return {
        node.name.split("/")[1]: names.get(types[node.output[0]], "")
        for node in made.to_proto().graph.node
        if node.name.count("/") == 2 and node.op_type == node.name.split("/")[2]
    }


def casts(made: Any) -> Counter[int]:
    return Counter(
        onnx.helper.get_node_attr_value(node, "to") for node in made.to_proto().graph.node if node.op_type == "Cast"
    )


MLP = "g (float[n, 64] x) => (float[n, 64] y) { a = MatMul (x, w0) b = Relu (a) c = MatMul (b, w1) y = Add (c, b1) }"


def test_casts_are_at_the_borders_alone(tmp_path: Path) -> None:
    made = sardonyx.quantize(build(tmp_path / "m.onnx"), tmp_path / "h.onnx", to="fp16")
    assert casts(made) == {SINGLE: 1}  # of the output; the input is of integers
    assert made.after.bytes < 0.51 * made.before.bytes
    assert made.check.products == len(made.products) > 4
    assert made.check.worst <= 1
    assert made.loss.relative_l2 < 2e-3
    onnx.checker.check_model(str(tmp_path / "h.onnx"), full_check=True)
    assert Quantization.from_json(made.to_json()).ranges == made.ranges
    assert {each.module for each in made.ranges} >= {"embed", "encoder.first", "head"}
    assert made.model is not None
    assert all(owner(node) for node in made.model.graph)
    assert {"/encoder/first/MatMul", "/encoder/second/Gemm", "/head/MatMul"} <= {node.name for node in made.model.graph}


@pytest.mark.parametrize("to", ["fp16", "bf16", "int8"])
def test_weights_of_constant_nodes_are_stored_once(to: Any) -> None:
    model = model_of(MLP, w0=(64, 64), w1=(64, 64), b1=(64,))
    for number, tensor in enumerate(model.graph.initializer):
        model.graph.node.insert(number, onnx.helper.make_node("Constant", [], [tensor.name], value=tensor))
    del model.graph.initializer[:]
    made = sardonyx.quantize(model, to=to)
    assert made.after.bytes < 0.55 * made.before.bytes


def test_a_dimension_declared_as_minus_one_is_dynamic() -> None:
    model = model_of(MLP, w0=(64, 64), w1=(64, 64), b1=(64,))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert sardonyx.quantize(model, to="fp16").loss.samples


def test_max_pool_of_an_old_opset_stays_in_float32() -> None:
    text = """g (float[1, 8, 16, 16] x) => (float[1, 16, 8, 8] y) {
        a = Conv (x, k0) b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a) y = Conv (b, k1) }"""
    found = [
        computed_in(sardonyx.quantize(model_of(text, opset, k0=(16, 8, 1, 1), k1=(16, 16, 1, 1)), to="fp16"))["b"]
        for opset in (11, 12)
    ]
    assert found == ["fp32", "fp16"]


def test_an_old_opset_is_refused_in_one_line() -> None:
    with pytest.raises(sardonyx.UsageError, match="fp16 needs opset 9"):
        sardonyx.quantize(model_of(MLP, 8, w0=(64, 64), w1=(64, 64), b1=(64,)), to="fp16")


def test_bf16_stores_weights_and_computes_in_float32(tmp_path: Path) -> None:
    made = sardonyx.quantize(build(tmp_path / "m.onnx"), tmp_path / "b.onnx", to="bf16")
    assert made.after.bytes < 0.52 * made.before.bytes
    assert {product.module for product in made.products} == {"embed", "encoder.first", "encoder.second", "encoder"}
    assert made.check.worst == 0
    assert 1e-4 < made.loss.relative_l2 < 1e-2
    assert set(casts(made)) == {SINGLE}


def test_kept_modules_stay_in_float32(tmp_path: Path) -> None:
    made = sardonyx.quantize(build(tmp_path / "m.onnx"), to="fp16", keep_modules=["encoder.second"])
    assert made.model is not None
    second = [node for node in made.model.graph if node.name == "/encoder/second/Gemm"]
    assert [value.dtype for value in second[0].inputs if value is not None and value.const_value is not None] == [1, 1]
    assert "encoder.second" not in {product.module for product in made.products}
    assert casts(made) == {SINGLE: 2, HALF: 1}


def test_a_module_that_would_overflow_stays_in_float32_and_is_named() -> None:
    text = """g (float[n, 64] x) => (float[n, 64] y) {
        a = MatMul (x, w0) big = Mul (a, factor) c = Div (big, factor) y = MatMul (c, w1) }"""
    made = sardonyx.quantize(model_of(text, w0=(64, 64), w1=(64, 64), factor=1e5), to="fp16")
    assert computed_in(made) == {"a": "fp16", "big": "fp32", "c": "fp32", "y": "fp16"}
    text = text.replace("factor) c", "large) c").replace("Div (big, factor)", "Div (big, large)")
    made = sardonyx.quantize(model_of(text, w0=(64, 64), w1=(64, 64), large=4e4), to="fp16")
    assert computed_in(made) == {"a": "fp16", "big": "fp32", "c": "fp32", "y": "fp16"}
    assert {each.module for each in made.ranges if each.kept} == {"big", "c"}
    reached = next(each.high for each in made.ranges if each.module == "big")
    assert reached > 4e4
    assert made.notes == ("partly in float32, because float16 could overflow: big, c",)
    groups = [group for group in made.skipped if group.reason.startswith("its numbers reach")]
    assert {name for group in groups for name in group.modules} == {"big", "c"}


ATTENTION = """g (float[n, s, 64] x, float[n, 1, s] visible) => (float[n, s, 64] y) {
    q = MatMul (x, w0) k = MatMul (x, w1) t = Transpose <perm = [0, 2, 1]> (k) s0 = MatMul (q, t)
    hidden = Sub (one, visible) m = Mul (hidden, lowest) s1 = Add (s0, m) p = Softmax <axis = -1> (s1)
    y = MatMul (p, x) }"""


@pytest.mark.parametrize("lowest", [np.finfo(np.float32).min, -1e9, -1e4])
def test_masks_stay_finite_and_in_float16(lowest: float) -> None:
    model = model_of(ATTENTION, w0=(64, 64), w1=(64, 64), one=1.0, lowest=lowest)
    visible = np.ones((2, 1, 5), np.float32)
    visible[0, 0, 3:] = 0
    x = np.random.default_rng(0).standard_normal((2, 5, 64)).astype(np.float32)
    made = sardonyx.quantize(model, to="fp16", data={"x": x, "visible": visible})
    assert set(computed_in(made).values()) == {"fp16"}
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in made.to_proto().graph.initializer}
    assert min(float(array) for array in stored.values() if array.ndim == 0) == max(lowest, -30000)
    assert made.loss.relative_l2 < 5e-3
    hidden = sardonyx.quantize(model, to="fp16", data={"x": x, "visible": 0 * visible})  # fails if there is new NaN
    assert hidden.loss.outputs


def test_a_large_negative_number_that_is_no_mask_is_not_replaced() -> None:
    text = """g (float[n, 64] x) => (float[n, 64] y) {
        a = MatMul (x, w) b = Mul (a, low) c = Div (b, low) y = MatMul (c, w) }"""
    made = sardonyx.quantize(model_of(text, w=(64, 64), low=-1e9), to="fp16")
    assert computed_in(made) == {"a": "fp16", "b": "fp32", "c": "fp32", "y": "fp16"}


NORM = """g (float[n, 64] x) => (float[n, 64] y) {
    a = MatMul (x, w) mean = ReduceMean <axes = [-1]> (a) d = Sub (a, mean) sq = Pow (d, two)
    var = ReduceMean <axes = [-1]> (sq) v = Add (var, eps) r = Sqrt (v) q = Div (d, r) y = MatMul (q, w) }"""


def test_a_norm_stays_in_float32_between_two_casts() -> None:
    model = model_of(NORM, w=(64, 64), two=2.0, eps=1e-12)
    made = sardonyx.quantize(model, to="fp16", data={"x": np.zeros((3, 64), np.float32)})  # 0 / 0 without epsilon
    types = computed_in(made)
    assert {name for name, dtype in types.items() if dtype == "fp16"} == {"a", "y"}
    assert casts(made) == {HALF: 2, SINGLE: 2}
    assert made.after.nodes == made.before.nodes + 4


POSITIONS = """g (float[n, s, 64] x, int64[s] at) => (float[n, s, 64] y) {
    f = Cast <to = 1> (at) u = Unsqueeze (f, last) angle = MatMul (u, rates) turn = Cos (angle)
    a = MatMul (x, w) y = Mul (a, turn) }"""


def test_angles_are_computed_in_float32() -> None:
    made = sardonyx.quantize(model_of(POSITIONS, last=[-1], rates=(1, 64), w=(64, 64)), to="fp16")
    types = computed_in(made)
    assert {types[name] for name in ("f", "u", "angle", "turn")} == {"fp32"}
    assert types["a"] == "fp16"


def test_bodies_and_other_types_are_left_alone(tmp_path: Path) -> None:
    text = """g (float[n, 64] x, bool flag, float[1, 1, 4, 4] i) => (float[n, 64] y, float[1, 1, 8, 8] z, int64[2] s) {
        a = MatMul (x, w) b = If (flag) <
            then_branch = t () => (float[n, 64] p) { p = MatMul (a, w) },
            else_branch = e () => (float[n, 64] q) { q = Neg (a) }
        > y = MatMul (b, w) s = Shape (a) r = Conv (i, k) z = Resize (r, , scales) }"""
    made = sardonyx.quantize(model_of(text, w=(64, 64), k=(1, 1, 1, 1), scales=[1.0, 1, 2, 2]), to="fp16")
    types = computed_in(made)
    assert (types["a"], types["b"], types["y"]) == ("fp16", "fp32", "fp16")
    assert "it is inside a body or a function" in {group.reason for group in made.skipped}
    onnx.checker.check_model(made.to_proto(), full_check=True)
    scales = [node.input[2] for node in made.to_proto().graph.node if node.op_type == "Resize"]
    assert scales == ["scales"]


def _no_bias(self: ConvertToHalf, each: Any, graph: Any, op: Any) -> Any:
    made = CONVERT(self, each, graph, op)
    if each.node.op_type == "Gemm":
        op.nodes[0 if op.nodes[0].op_type == "Gemm" else 1].replace_input_with(2, None)
    return made


CONVERT, ROUNDED = ConvertToHalf._convert, half._rounded  # pyright: ignore[reportPrivateUsage]
FAULTS: dict[str, tuple[Any, str, Any]] = {
    "weights truncated to 8 bits": (
        half, "_rounded", lambda tensor, mask: (np.rint(ROUNDED(tensor, mask) * 32) / 32).astype(np.float16)
    ),
    "weights of another row": (half, "_rounded", lambda tensor, mask: np.roll(ROUNDED(tensor, mask), 1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_arithmetic_is_a_fault(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong = FAULTS[fault]
    monkeypatch.setattr(place, name, wrong)
    with pytest.raises(sardonyx.VerificationFailed, match="differs from its simulation"):
        sardonyx.quantize(build(tmp_path / "m.onnx"), tmp_path / "h.onnx", to="fp16")
    assert not (tmp_path / "h.onnx").exists()


def test_a_node_that_fails_its_check_stays_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConvertToHalf, "_convert", _no_bias)
    made = sardonyx.quantize(build(tmp_path / "m.onnx"), tmp_path / "h.onnx", to="fp16")
    gemm = next(node for node in made.to_proto().graph.node if node.op_type == "Gemm")
    assert types_of(made)[gemm.output[0]] == SINGLE
    assert "/encoder/second/Gemm stays in float32: it differs from its simulation" in made.notes[0]
    assert made.loss.relative_l2 < 0.002


@pytest.mark.parametrize("fault", ["closed", "wrong"])
def test_a_gate_that_is_closed_is_compared_with_its_operand(fault: str) -> None:
    """With operands near -4.9, a kernel in float16 gives 0 and the exact result is 5e-6, all of it."""
    text = "g (float[n, 64] x) => (float[n, 64] y) { a = MatMul (x, w) b = Add (a, c) h = Gelu (b) y = MatMul (h, w) }"
    model = model_of(text, 20, w=(64, 64), c=-4.9)
    ranges = {name: MeasuredRange(-8, 8, "") for name in "xabhy"}
    conversion = ConvertToHalf(Selection(), ranges, {}, simulate=True)
    made = RewriteJob(model, (conversion,), "portable", lambda _phase, _fraction: None, allow_growth=True).candidate()
    gate = next(each for each in conversion.simulated if each.node == "/h/Gelu")
    narrow = next(
        node for node in made.model.graph if node.op_type == "Gelu" and node.outputs[0] is not gate.simulation
    )
    operand = narrow.inputs[0]
    other = ir.node("Sub", [operand, operand]) if fault == "closed" else ir.node("Neg", [operand])
    made.model.graph.insert_after(narrow, other)
    ir.convenience.replace_all_uses_with(narrow.outputs[0], other.outputs[0])
    rng = np.random.default_rng(0)
    trials = [{"x": rng.standard_normal((4, 64)).astype(np.float32) / 1000}]
    failed = check_products(made.model, conversion.simulated, trials, 1).failed
    assert ("/h/Gelu" in failed) is (fault == "wrong")


def test_a_wrong_constant_in_bf16_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "_rounded_to_bfloat16", lambda tensor: (tensor.numpy() / 2).astype(ml_dtypes.bfloat16))
    with pytest.raises(sardonyx.VerificationFailed, match="constant 'table' differs from its simulation"):
        sardonyx.quantize(build(tmp_path / "m.onnx"), tmp_path / "b.onnx", to="bf16")


def test_an_overflow_that_was_not_measured_stays_in_float32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(half_placement, "LIMIT", np.inf)
    text = """
    g (float[n, 64] x) => (float[n, 64] y) {
      a = MatMul (x, w) b = Mul (a, c) d = Mul (b, c) e = Concat <axis = 0> (a, d) f = MatMul (e, w) y = Relu (f)
    }
    """  # Concat stores what it joins in float16 on every CPU
    made = sardonyx.quantize(model_of(text, w=(64, 64), c=1e3), tmp_path / "h.onnx", to="fp16")
    assert any("stays in float32" in note for note in made.notes)
    assert made.loss.relative_l2 < 0.002


@given(st.lists(st.floats(width=32, min_value=-65504, max_value=65504), min_size=1, max_size=50))
def test_the_simulation_rounds_as_float16_does(values: list[float]) -> None:
    array = np.array(values, np.float32)
    np.testing.assert_array_equal(half.nearest_half(array), array.astype(np.float16).astype(np.float32))


UNARY = ("Relu", "Tanh", "Sigmoid", "Erf", "Abs", "Neg", "Exp", "Softmax <axis = -1>")
BINARY = ("Add", "Sub", "Mul", "MatMul", "Max")


@st.composite
def graphs(draw: st.DrawFn) -> str:
    """A random graph of square matrices; some of the values are outputs."""
    values, lines = ["x", "w"], list[str]()
    for number in range(draw(st.integers(2, 10))):
        name = f"v{number}"
        one, two = (draw(st.sampled_from(values)) for _ in range(2))
        match draw(st.integers(0, 9)):
            case 0:
                lines.append(f"m{number} = ReduceMean <axes = [-1]> ({one}) {name} = Sub ({two}, m{number})")
            case 1:
                lines.append(f"g{number} = Greater ({one}, {two}) {name} = Where (g{number}, {two}, {one})")
            case 2:
                lines.append(f"s{number} = Softmax <axis = -1> ({one}) {name} = Div ({two}, s{number})")
            case kind if kind < 5:
                lines.append(f"{name} = {draw(st.sampled_from(UNARY))} ({one})")
            case _:
                lines.append(f"{name} = {draw(st.sampled_from(BINARY))} ({one}, {two})")
        values.append(name)
    outputs = ", ".join(f"float[32, 32] {name}" for name in dict.fromkeys([values[-1], *values[2::3]]))
    return f"g (float[32, 32] x) => ({outputs}) {{ {' '.join(lines)} }}"


@pytest.mark.medium
@settings(max_examples=25, deadline=None)
@given(graphs())
def test_random_graphs_load_and_get_no_new_nan(text: str) -> None:
    try:
        made = sardonyx.quantize(model_of(text, w=(32, 32)), to="fp16")
    except sardonyx.UsageError:  # nothing to convert
        return
    onnx.checker.check_model(made.to_proto(), full_check=True)
    pairs = [
        (node, consumer)
        for node in made.to_proto().graph.node
        for consumer in made.to_proto().graph.node
        if node.op_type == consumer.op_type == "Cast" and consumer.input[0] == node.output[0]
    ]
    assert not pairs
