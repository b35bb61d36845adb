"""The static recipe: calibration, the region in integers, the comparison with the simulation, faults, and refusals."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import sardonyx
from quantization.static_models import checked, cnn, images, model_of, normal, quantized
from sardonyx.ir import io
from sardonyx.ir.origins import owner
from sardonyx.verbs.quantize import calibration as calibrating
from sardonyx.verbs.quantize import static_int8, weights
from sardonyx.verbs.quantize.calibration import METHODS, Histogram, calibrate
from sardonyx.verbs.quantize.recipe import Selection
from sardonyx.verbs.quantize.static_int8 import Grid
from sardonyx.verbs.quantize.weights import saturates


def session(model: onnx.ModelProto, optimized: Path | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def loss(source: onnx.ModelProto, result: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> float:
    a, b = (np.asarray(session(model).run(None, feeds)[0]) for model in (source, result))
    return float(np.linalg.norm(a - b) / np.linalg.norm(a))


def test_a_cnn_is_computed_in_integers_from_end_to_end(tmp_path: Path) -> None:
    model = cnn()
    candidate, skipped = quantized(model, images(4))
    written = io.to_proto(candidate.model)
    onnx.checker.check_model(written, full_check=True)
    assert skipped == []
    session(written, tmp_path / "fused.onnx")
    fused = Counter(node.op_type for node in onnx.load(tmp_path / "fused.onnx").graph.node)
    assert (fused["QLinearConv"], fused["QGemm"], fused["QLinearAdd"], fused["QLinearConcat"]) == (4, 1, 1, 1)
    assert not fused.keys() & {"Conv", "Gemm", "Relu", "Clip", "Pad", "DequantizeLinear", "Add", "Concat"}
    assert loss(model, written, images(1, seed=9)[0]) < 0.03
    assert sum(each.ByteSize() for each in written.graph.initializer) < 0.5 * model.ByteSize()


def test_every_product_agrees_with_its_simulation_and_the_runtime_with_both() -> None:
    found = checked(cnn(), images(3))
    assert found.record.products == len(found.products) == 10  # 4 convolutions, 1 Gemm, and what lies between them
    assert found.record.worst <= 1


def _shifted(grid: Grid) -> Grid:
    return Grid(grid.scale, grid.zero + (1 if grid.zero < 128 else -1))


OF, SCALES, BIAS = Grid.of, static_int8.weight_scales, static_int8.bias_constants
FAULTS: dict[str, tuple[Any, str, Any]] = {
    "zero point off by one": (Grid, "of", staticmethod(lambda limits: _shifted(OF(limits)))),
    "scale too large": (Grid, "of", staticmethod(lambda limits: Grid(OF(limits).scale * 1.01, OF(limits).zero))),
    "scales of the next channel": (static_int8, "weight_scales", lambda product: np.roll(SCALES(product), 1)),
    "scales of another axis": (
        static_int8, "weight_scales",
        lambda product: np.resize(np.abs(product.matrix.array()).max(1) / np.float32(127), product.matrix.columns),
    ),
    "bias with the scale of the weight": (
        static_int8, "bias_constants",
        lambda product, scales: None if (made := BIAS(product, scales)) is None else (made[0], scales, *made[2:]),
    ),
    "bias with the integers of another scale": (
        static_int8, "bias_constants",
        lambda product, scales: None if (made := BIAS(product, scales)) is None else (made[0] * 2, *made[1:]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_arithmetic_is_a_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    assert any("differs from its simulation" in how for how in checked(cnn(), images(2)).failed.values())


def test_a_bias_scale_that_only_the_runtime_ignores_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime assumes the scale of the sums: integers and scales that agree with each other are not enough."""

    def coarse(product: Any, scales: np.ndarray) -> Any:
        made = BIAS(product, scales)
        return None if made is None else (made[0] // 2, made[1] * 2, *made[2:])

    monkeypatch.setattr(static_int8, "bias_constants", coarse)
    assert any("with the optimizations of the runtime" in how for how in checked(cnn(), images(2)).failed.values())


@pytest.mark.medium
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_random_convolutions_agree_with_their_simulation(data: st.DataObject) -> None:
    axes = data.draw(st.integers(1, 2))
    group = data.draw(st.sampled_from([1, 2, 4]))
    outputs, kernel = group * data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    pads = data.draw(st.lists(st.integers(0, 2), min_size=2 * axes, max_size=2 * axes))
    stride, dilation = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    activation = data.draw(st.sampled_from(["Relu (a)", "Clip (a, low, high)", "Tanh (a)"]))
    shift = data.draw(st.sampled_from([0.0, 3.0, -3.0]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    sizes = ", ".join(["9"] * axes)
    text = f"""g (float[n, 4, {sizes}] x) => (float y) {{
      a = Conv <group = {group}, strides = {[stride] * axes}, dilations = {[dilation] * axes}, pads = {pads}> (x, w, b)
      z = {activation}  y = Conv (z, v) }}"""
    arrays = {"w": normal(rng, outputs, 4 // group, *[kernel] * axes), "b": normal(rng, outputs, 1)[:, 0]}
    arrays |= {"v": normal(rng, 3, outputs, *[1] * axes), "low": np.float32(-0.5), "high": np.float32(1)}
    model = model_of(text, {name: np.asarray(array) for name, array in arrays.items()})
    samples = [{"x": (rng.standard_normal((2, 4, *[9] * axes)) + shift).astype(np.float32)} for _ in range(2)]
    found = checked(model, samples)
    assert found.record.products == 2
    assert found.record.worst <= 1


@pytest.mark.medium
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_random_matrix_products_agree_with_their_simulation(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(33, 70)), data.draw(st.integers(32, 48))
    form = data.draw(
        st.sampled_from(["MatMul (x, w)", "MatMul (x, t)", "Gemm (x, w, b)", "Gemm <transB = 1> (x, u, b)"])
    )
    bias = data.draw(st.sampled_from([(columns,), (1, columns), (1,)]))
    activation = data.draw(st.sampled_from(["Relu (a)", "Tanh (a)", "Identity (a)"]))
    shift = data.draw(st.sampled_from([0.0, 5.0, -5.0]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    text = f"""g (float[n, {rows}] x) => (float[n, {columns}] z, float[n, 33] y) {{
      t = Transpose <perm = [1, 0]> (u)  a = {form}  z = {activation}  y = MatMul (z, v) }}"""
    weight = normal(rng, rows, columns)
    arrays = {
        "w": weight,
        "u": weight.T.copy(),
        "v": normal(rng, columns, 33),
        "b": rng.random(bias).astype(np.float32),
    }
    model = model_of(text, arrays)
    samples = [{"x": (rng.standard_normal((3, rows)) + shift).astype(np.float32)} for _ in range(2)]
    found = checked(model, samples)
    assert found.record.products == 2
    assert found.record.worst <= 1
    assert loss(model, io.to_proto(quantized(model, samples)[0].model), samples[0]) < 0.05


ACTIVATIONS = {
    "HardSwish (a)": {"QLinearAdd": 1, "QLinearMul": 1},
    "HardSigmoid <alpha = 0.25, beta = 0.4> (a)": {"QLinearAdd": 1},
    "Sigmoid (a)": {"QLinearSigmoid": 1},
    "LeakyRelu <alpha = 0.1> (a)": {"QLinearLeakyRelu": 1},
    "Mul (a, g)  g = Sigmoid (m)  m = GlobalAveragePool (a)": {"QLinearMul": 1, "QLinearSigmoid": 1},
    'Resize <mode = "nearest"> (a, "", double)': {"Resize": 1},
    "Slice (a, two, four)": {"Slice": 1},
}


def activated(activation: str) -> onnx.ModelProto:
    first, *others = activation.split("  ")
    text = f"""g (float[n, 8, 6, 6] x) => (float y) {{
      a = Conv <pads = [1, 1, 1, 1]> (x, w, b)  {"  ".join(reversed(others))}  z = {first}  y = Conv (z, v) }}"""
    rng = np.random.default_rng(0)
    arrays = {"w": 3 * normal(rng, 16, 8, 3, 3), "b": normal(rng, 16, 1)[:, 0], "v": normal(rng, 8, 16, 1, 1)}
    arrays |= {"double": np.array([1, 1, 2, 2], np.float32), "two": np.array([0, 0, 2]), "four": np.array([9, 16, 4])}
    return model_of(text, arrays)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_between_convolutions_are_computed_in_integers(activation: str, tmp_path: Path) -> None:
    samples = [{"x": np.random.default_rng(1).standard_normal((2, 8, 6, 6)).astype(np.float32)}]
    model = activated(activation)
    assert checked(model, samples).record.worst <= 1
    written = io.to_proto(quantized(model, samples)[0].model)
    session(written, tmp_path / "fused.onnx")
    fused = Counter(node.op_type for node in onnx.load(tmp_path / "fused.onnx").graph.node)
    assert {name: fused[name] for name in ACTIVATIONS[activation]} == ACTIVATIONS[activation]
    assert (fused["QLinearConv"], fused["QuantizeLinear"], fused["DequantizeLinear"]) == (2, 1, 1)
    assert loss(model, written, samples[0]) < 0.04


def test_a_wrong_slope_of_an_activation_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [{"x": np.random.default_rng(1).standard_normal((2, 8, 6, 6)).astype(np.float32)}]
    affine = static_int8.affine
    monkeypatch.setattr(static_int8, "affine", lambda value, a, b, op: affine(value, a * 1.02, b, op))
    assert any(
        "differs from its simulation" in how for how in checked(activated("HardSwish (a)"), samples).failed.values()
    )


def test_products_that_read_the_same_activation_share_its_integers_and_residuals_stay_in_float32() -> None:
    text = """g (float[n, 64] x) => (float[n, 64] y) {
      h = Tanh (x) q = MatMul (h, w0) k = MatMul (h, w1) s = Add (q, k) y = Add (s, h) }"""
    rng = np.random.default_rng(0)
    model = model_of(text, {"w0": normal(rng, 64, 64), "w1": normal(rng, 64, 64)})
    samples = [{"x": rng.standard_normal((4, 64)).astype(np.float32)} for _ in range(2)]
    candidate, _ = quantized(model, samples)
    types = Counter(node.op_type for node in candidate.model.graph)
    assert (types["QuantizeLinear"], types["DequantizeLinear"]) == (1, 3)
    tanh = next(node for node in candidate.model.graph if node.op_type == "Tanh")
    assert {node.op_type for node in tanh.successors()} == {"QuantizeLinear", "Add"}


def test_a_channel_of_tiny_weights_keeps_its_bias() -> None:
    text = "g (float[n, 8, 5] x) => (float y) { y = Conv (x, w, b) }"
    rng = np.random.default_rng(0)
    weight = normal(rng, 16, 8, 3)
    weight[3] *= 1e-9
    model = model_of(text, {"w": weight, "b": np.linspace(-2, 2, 16).astype(np.float32)})
    samples = [{"x": rng.standard_normal((2, 8, 5)).astype(np.float32)}]
    assert checked(model, samples).record.worst <= 1
    assert loss(model, io.to_proto(quantized(model, samples)[0].model), samples[0]) < 0.02


def test_what_stays_in_float32_is_named() -> None:
    rng = np.random.default_rng(0)
    samples = [{"x": rng.standard_normal((2, 4, 8, 8)).astype(np.float32)}]
    text = """g (float[n, 4, 8, 8] x) => (float y) {
      a = Conv (x, w)  b = BatchNormalization (a, one, one, one, one)  c = ConvTranspose (b, w)
      m = ReduceMean <axes = [0, 2, 3], keepdims = 0> (c)  d = Conv (c, w, m)  z = Sub (d, d)  y = Conv (z, w) }"""
    arrays = {"w": normal(rng, 4, 4, 1, 1), "one": np.ones(4, np.float32)}
    with pytest.raises(sardonyx.UsageError, match="no samples"):
        calibrate(model_of(text, arrays), [], 1)
    _, skipped = quantized(model_of(text, arrays), samples)
    assert skipped == [
        "a batch normalization follows; fold it first with `sardonyx optimize`",
        "transposed convolutions stay in float32",
        "its bias is computed",
        "its activation is 0 or not finite on all samples",
    ]
    old = model_of('<ir_version: 8, opset_import: ["" : 12]> g (float[n, 4, 8, 8] x) => (float y) { y = Conv (x, w) }',
                   arrays)  # fmt: skip
    assert quantized(old, samples)[1] == ["needs opset 13"]


def test_a_convolution_whose_norm_cannot_be_folded_is_quantized() -> None:
    rng = np.random.default_rng(0)
    text = """g (float[n, 4, 8, 8] x) => (float y) {
      a = Conv (x, w)  b = BatchNormalization (a, one, one, one, one)  y = Add (a, b) }"""
    arrays = {"w": normal(rng, 4, 4, 1, 1), "one": np.ones(4, np.float32)}
    samples = [{"x": rng.standard_normal((2, 4, 8, 8)).astype(np.float32)}]
    candidate, skipped = quantized(model_of(text, arrays), samples)
    assert skipped == []
    assert "QuantizeLinear" in {node.op_type for node in candidate.model.graph}


def test_selected_modules_alone_are_quantized_and_own_what_is_added() -> None:
    model = cnn()
    candidate, _ = quantized(model, images(2), Selection(keep=frozenset({"block"})))
    stored = [node for node in candidate.model.graph if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert {owner(node).split(".")[0] for node in stored} == {"stem", "last", "head"}
    assert all(owner(node) for node in candidate.model.graph)


def test_the_other_commands_read_the_result(tmp_path: Path) -> None:
    source, path = tmp_path / "cnn.onnx", tmp_path / "q.onnx"
    onnx.save(cnn(), source)
    io.save(quantized(cnn(), images(2))[0].model, path)
    assert sardonyx.inspect(path).coverage.root == 0
    assert sardonyx.profile(path, runs=2).models[0].attributed > 0.99
    assert sardonyx.extract(path, "block", tmp_path / "block.onnx").result
    assert sardonyx.compare(source, path)


def test_calibration_holds_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = cnn(), images(3)
    whole = calibrate(model, samples, 1)
    assert (whole.samples, whole.runs) == (3, 6)
    monkeypatch.setattr(calibrating, "_GROUP_BYTES", 1 << 15)
    grouped = calibrate(model, samples, 1)
    assert grouped.peak_bytes <= 1 << 15 < whole.peak_bytes
    assert grouped.ranges == whole.ranges
    assert grouped.runs > whole.runs


@pytest.mark.medium
def test_ranges_are_the_extremes_unless_outliers_cost_more_than_they_are_worth() -> None:
    rng = np.random.default_rng(0)
    even = Histogram(-1, 1)
    even.add(rng.uniform(-1, 1, 100_000).astype(np.float32))
    assert even.least_squares() == (-1, 1)
    usual = rng.standard_normal(100_000).astype(np.float32)
    rare, frequent = Histogram(-5, 40), Histogram(-5, 40)
    for histogram, count in ((rare, 1), (frequent, 1000)):
        for _ in range(200):
            histogram.add(usual)
        histogram.add(np.full(count, 40, np.float32))
    assert rare.least_squares()[1] < 30
    assert frequent.least_squares()[1] == 40


@pytest.mark.parametrize(("to", "skipped"), [("int8", 1), ("int8-weights", 0), ("int4", 0)])
def test_convolutions_in_other_precisions_agree_with_their_simulation(to: Any, skipped: int) -> None:
    """Depthwise filters stay in float32 for dynamic products, which would be slower; weight-only ones are converted."""
    text = """g (float[n, 8, 9, 9] x) => (float y) {
      a = Conv <pads = [1, 0, 2, 1], strides = [1, 2]> (x, w0, b)  r = Relu (a)
      d = Conv <group = 128, pads = [1, 1, 1, 1]> (r, w1)  y = Conv (d, w2) }"""
    rng = np.random.default_rng(0)
    arrays = {"w0": normal(rng, 128, 8, 3, 3), "b": normal(rng, 128, 1)[:, 0], "w1": normal(rng, 128, 1, 3, 3)}
    made = sardonyx.quantize(model_of(text, arrays | {"w2": normal(rng, 16, 128, 1, 1)}), to=to)
    assert len(made.products) == made.check.products == 3 - skipped
    assert [group.reason for group in made.skipped] == ["in groups, it is slower in integers"] * skipped
    assert made.loss.relative_l2 < (0.03 if saturates() else 0.02)
    assert made.after.bytes < 0.4 * made.before.bytes


@pytest.mark.medium
def test_static_precision_from_the_command_of_quantize(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without data the ranges are those of generated inputs; the record has the memory of the calibration."""
    made = sardonyx.quantize(cnn(), to="int8-static", data=images(8))
    assert made.loss.relative_l2 < 0.03
    assert any(note.startswith("ranges of ") and "MB of activations" in note for note in made.notes)
    assert {product.recipe for product in made.products} == {"quantize-statically"}
    monkeypatch.setattr(weights, "saturates", lambda: True)
    reduced = sardonyx.quantize(cnn(), to="int8-static")
    assert reduced.model is not None
    stored = [value.const_value for value in reduced.model.graph.initializers.values()]
    integers = [
        np.abs(tensor.numpy().astype(int)).max() for tensor in stored if tensor is not None and tensor.size > 99
    ]
    assert max(integers) == 63


@pytest.mark.medium
@pytest.mark.parametrize("model", ["cnn", "HardSwish (a)", "Relu (a)"])
def test_symmetric_integers_have_no_zero_points_and_keep_biases(model: str) -> None:
    samples = images(2)
    source = cnn()
    if model != "cnn":
        source = activated(model)
        samples = [{"x": np.random.default_rng(1).standard_normal((2, 8, 6, 6)).astype(np.float32)}]
    made = sardonyx.quantize(source, to="int8-static", scheme="symmetric", data=samples)
    assert made.check.worst <= 1
    assert made.loss.relative_l2 < 0.03
    assert not [note for note in made.notes if "stays in float32" in note]
    proto = made.to_proto()
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and len(node.input) > 2:
            zero = constants[node.input[2]]
            assert (zero.dtype, zero.any()) == (np.int8, False)
        if node.op_type == "Conv" and len(node.input) > 2:
            assert constants[node.input[2]].dtype == np.float32
        if node.op_type == "Conv":
            readers = [other.op_type for other in proto.graph.node if node.input[0] in other.output]
            assert readers == ["DequantizeLinear"]


@pytest.mark.medium
def test_a_wrong_step_of_symmetric_integers_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    of = static_int8.Grid.of
    monkeypatch.setattr(static_int8.Grid, "of", lambda limits: replace(of(limits), scale=of(limits).scale * 1.01))
    with pytest.raises(sardonyx.VerificationFailed, match="differs from its simulation"):
        sardonyx.quantize(cnn(), to="int8-static", scheme="symmetric", data=images(2))


def test_the_scheme_needs_static_ranges() -> None:
    with pytest.raises(sardonyx.UsageError, match="the scheme is that of static ranges"):
        sardonyx.quantize(cnn(), to="int8", scheme="symmetric")


def _rarely_large() -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """A model in which one input is large now and then and hardly counts, and samples of it."""
    rng = np.random.default_rng(0)
    arrays = {name: normal(rng, 64, 64) for name in ("w", "v")}
    arrays["w"][3] *= 1e-4
    text = """<ir_version: 8, opset_import: ["" : 17]>
      g (float[n, 64] x) => (float[n, 64] y) { a = MatMul (x, w) b = Relu (a) y = MatMul (b, v) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    samples = [{"x": rng.standard_normal((32, 64)).astype(np.float32)} for _ in range(16)]
    for sample in samples:
        sample["x"][0, 3] *= 60
    return model, samples


@pytest.mark.medium
def test_the_method_of_the_ranges_is_chosen_by_measured_loss() -> None:
    model, samples = _rarely_large()
    made = sardonyx.quantize(model, to="int8-static", data=samples)
    (note,) = [note for note in made.notes if "clipped by" in note]
    found = re.search(r"clipped by (\w+): relative L2 (\S+) in all modules \(.*extremes (\S+),?", note)
    assert found is not None
    assert found[1] in ("percentile", "entropy")
    assert made.loss.relative_l2 < 0.5 * float(found[3].rstrip(",)")), "the extremes lose more than twice as much"
    given = calibrate(model, samples, 1)
    by_extremes, _ = quantized(model, replace(given, method="extremes"))
    unseen = _rarely_large()[1][-1]
    assert loss(model, io.to_proto(by_extremes.model), unseen) > 2 * loss(model, made.to_proto(), unseen)


def test_the_usual_ranges_stay_if_others_lose_hardly_less() -> None:
    given = calibrate(cnn(), images(2), 1)
    assert given.chosen({"weighted squares": 0.010, "extremes": 0.0098}).method == "weighted squares"
    assert given.chosen({"weighted squares": 0.010, "extremes": 0.0090}).method == "extremes"
    assert given.chosen({"extremes": 0.2}).method == "extremes", "the usual ranges gave NaN"
    assert given.chosen({}).method == "weighted squares"


@given(st.integers(0, 99), st.floats(0.01, 100), st.booleans(), st.sampled_from(sorted(METHODS)))
def test_every_method_gives_an_interval_within_the_extremes(seed: int, size: float, positive: bool, name: Any) -> None:
    values = np.random.default_rng(seed).standard_normal(500).astype(np.float32) * np.float32(size)
    values = np.maximum(values, 0) if positive else values
    histogram = Histogram(min(float(values.min()), 0.0), float(values.max()))
    histogram.add(values)
    low, high = METHODS[name](histogram)
    slack = 1e-3 * (histogram.highest - histogram.lowest)
    assert histogram.lowest - slack <= low <= 0 < high <= histogram.highest + slack
