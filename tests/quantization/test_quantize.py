"""`sardonyx.quantize`: recipes, the comparison with the simulation, the loss, and the selection of modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest
from msgspec.structs import replace

import sardonyx
from quantization.small_model import build
from sardonyx.ir.facts import Facts
from sardonyx.ir.origins import owner
from sardonyx.records.quantization import Quantization
from sardonyx.verbs.quantize import product_check, weight_only, weights
from sardonyx.verbs.quantize.dynamic_int8 import QuantizeDynamically
from sardonyx.verbs.quantize.precisions import Assignment, Job, Recipes
from sardonyx.verbs.quantize.recipe import Selection, largest_of_rows
from sardonyx.verbs.quantize.weights import Blocks
from sardonyx.verification.subject import Subject

RECIPES = [("int8", "portable"), ("int4", "portable"), ("int4", "ort"), ("int8-weights", "portable")]
RECIPES += [("int8-weights", "ort"), ("int8", "ort")]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build(tmp_path / "m.onnx")


@pytest.mark.parametrize(("to", "target"), RECIPES)
def test_every_recipe_is_checked_and_smaller(model: Path, tmp_path: Path, to: Any, target: Any) -> None:
    made = sardonyx.quantize(model, tmp_path / "q.onnx", to=to, target=target)
    assert (len(made.products), made.check.products) == (4, 4)
    assert made.check.trials >= 4
    assert made.check.worst <= 1
    assert made.loss.relative_l2 < (0.2 if to == "int4" else 0.03)
    assert made.after.bytes < made.before.bytes * (0.3 if to == "int4" else 0.4)
    written = onnx.load(tmp_path / "q.onnx")
    if target == "portable":
        onnx.checker.check_model(written, full_check=True)
        assert {node.domain for node in written.graph.node} == {""}
    tags = {prop.key for node in written.graph.node for prop in node.metadata_props}
    assert any("sardonyx" in key for key in tags)
    assert made.model is not None
    owners = {node.op_type: owner(node) for node in made.model.graph if "MatMul" in node.op_type}
    assert all(path.split(".")[0] in ("embed", "encoder", "head") for path in owners.values())
    assert Quantization.from_json(made.to_json()).loss == made.loss


def test_the_modules_of_new_nodes_are_those_of_the_products(model: Path) -> None:
    made = sardonyx.quantize(model, to="int8")
    assert {product.module for product in made.products} == {"embed", "encoder.first", "encoder.second", "head"}
    assert made.model is not None
    integer = [node for node in made.model.graph if node.op_type in ("MatMulInteger", "DynamicQuantizeLinear", "Cast")]
    assert {owner(node) for node in integer} == {"embed", "encoder.first", "encoder.second", "head"}
    inspection = sardonyx.inspect(made.to_proto())
    assert inspection.coverage.root == 0


def test_a_weight_that_two_products_share_is_stored_once(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 64] x) => (float[n, 64] y) { a = MatMul (x, w) b = Relu (a) y = MatMul (b, w) }
    """
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    made = sardonyx.quantize(model, to="int8")
    assert len(made.products) == 2
    assert made.after.bytes < 0.3 * made.before.bytes


def _no_zero_point(_: QuantizeDynamically, product: Any, stored: Any, op: Any) -> Any:
    weight, scale = stored
    largest = largest_of_rows(product.activation, op)
    levels, step, _ = op.node("DynamicQuantizeLinear", (op.Div(product.activation, largest),), outputs=3)
    total = op.Mul(op.Cast(op.MatMulInteger(levels, weight), to=1), op.Mul(step, scale))
    total = op.Mul(total, largest)
    return total if product.bias is None else op.Add(total, product.bias)


INTEGERS = Blocks.integers
SCALES, ZEROS, PACKED = Blocks.scales, Blocks.zero_points, weight_only._packed  # pyright: ignore[reportPrivateUsage]
FAULTS: dict[str, tuple[str, str, Any, str, Any]] = {
    "no zero point of the activation": ("int8", "portable", QuantizeDynamically, "quantized", _no_zero_point),
    "scales of another axis": (
        "int8", "portable", weights, "column_scales",
        lambda matrix, most=127, **_: np.resize(np.abs(matrix.array()).max(1) / np.float32(most), matrix.columns),
    ),
    "zero points off by one": ("int4", "portable", Blocks, "zero_points", lambda self: (ZEROS(self) + 1) % 16),
    "zero points off by one, packed": ("int8-weights", "ort", Blocks, "zero_points", lambda self: ZEROS(self) ^ 1),
    "scales of the next block, packed": ("int4", "ort", Blocks, "scales", lambda self: np.roll(SCALES(self), 1, 0)),
    "scales of the next block": ("int4", "portable", Blocks, "scales", lambda self: np.roll(SCALES(self), 1, 0)),
    "scales of the next column, packed": (
        "int8-weights", "ort", Blocks, "scales", lambda self: np.roll(SCALES(self), 1, 1),
    ),
    "scales of the next column": (
        "int8-weights", "portable", Blocks, "scales", lambda self: np.roll(SCALES(self), 1, 1),
    ),
    "nibbles swapped": (
        "int4", "ort", weight_only, "_packed",
        lambda values, bits: ((packed := PACKED(values, bits)) << 4) | (packed >> 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_arithmetic_is_a_fault_and_nothing_is_written(
    fault: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, target, place, name, wrong = FAULTS[fault]
    monkeypatch.setattr(place, name, wrong)
    with pytest.raises(sardonyx.VerificationFailed, match="differs from its simulation"):
        sardonyx.quantize(model, tmp_path / "q.onnx", to=to, target=target, only_modules=["head"])  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("share", [1.0, 0.8])
def test_a_weight_with_one_scale_agrees_with_its_simulation(
    share: float, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales = weights.column_scales
    monkeypatch.setattr(weights, "column_scales", lambda *given, **how: scales(*given, **how) * np.float32(share))
    job = Job(model, Recipes(by_rows=False, by_columns=False))
    simulated, products = job.simulated((Assignment("int8", Selection(only=frozenset({"head"}))),))
    trials = [{"ids": np.random.default_rng(seed).integers(0, 200, (2, 8))} for seed in range(3)]
    errors = product_check.check_products(simulated, products, trials, None)
    assert len(errors.products) == 1
    assert bool(errors.failed) is (share < 1)


@pytest.mark.medium
@pytest.mark.parametrize("to", ["int4", "int8"])
def test_a_product_that_fails_its_check_stays_in_float32(
    to: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sardonyx.quantize(model, to=to)
    if to == "int4":
        monkeypatch.setattr(Blocks, *_LATE_FAULTS["int4"])
    else:
        monkeypatch.setattr(QuantizeDynamically, "quantized", _wrong_head)
    made = sardonyx.quantize(model, tmp_path / "q.onnx", to=to)
    assert {product.module for product in made.products} == {"embed", "encoder.first", "encoder.second"}
    assert made.check.worst <= 1
    assert made.loss.relative_l2 < plain.loss.relative_l2
    note = next(note for note in made.notes if note.startswith("/head/MatMul stays in float32: it differs from its"))
    assert "of its largest result" in note
    assert (tmp_path / "q.onnx").exists()


QUANTIZED = QuantizeDynamically.quantized


def _wrong_head(recipe: QuantizeDynamically, product: Any, stored: Any, op: Any) -> Any:
    result = QUANTIZED(recipe, product, stored, op)
    return op.Neg(result) if product.matrix.columns == 32 else result


def _wrong_integer(self: Blocks) -> np.ndarray:
    levels = INTEGERS(self)
    levels[0, 3, 3] ^= 1
    return levels


SAMPLES: Any = [{"ids": np.random.default_rng(seed).integers(0, 200, (4, 6))} for seed in range(8)]
COMPENSATED_FAULTS = {fault: case for fault, case in FAULTS.items() if case[0] != "int8"}
COMPENSATED_FAULTS["one wrong integer"] = ("int4", "ort", Blocks, "integers", _wrong_integer)


@pytest.mark.parametrize("fault", COMPENSATED_FAULTS)
def test_wrong_arithmetic_of_compensated_weights_is_a_fault(
    fault: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, target, place, name, wrong = COMPENSATED_FAULTS[fault]
    monkeypatch.setattr(place, name, wrong)
    monkeypatch.setattr(weight_only, "BLOCK_SIZES", (32,))  # so that a weight has several blocks
    with pytest.raises(sardonyx.VerificationFailed, match="differs from its simulation"):
        sardonyx.quantize(model, to=to, target=target, data=SAMPLES, only_modules=["head"])  # pyright: ignore[reportArgumentType]


@pytest.mark.medium
def test_an_activation_that_another_recipe_replaced_has_its_moments(model: Path) -> None:
    made = sardonyx.quantize(model, to="int4", data=SAMPLES)
    assert made.notes[-1] == "the rounding errors of 3 weights compensate each other on the data"


@pytest.mark.medium
def test_patterns_name_modules(model: Path) -> None:
    kept = sardonyx.quantize(model, to="int8", keep_modules=["encoder.*", "embed"])
    assert {product.module for product in kept.products} == {"head"}
    alone = sardonyx.quantize(model, to="int8", only_modules=["encoder"], keep_modules=["encoder.second"])
    assert {product.module for product in alone.products} == {"encoder.first"}
    with pytest.raises(sardonyx.UsageError, match="there is no module 'decoder'"):
        sardonyx.quantize(model, to="int8", keep_modules=["decoder"])
    with pytest.raises(sardonyx.UsageError, match="nothing can be quantized"):
        sardonyx.quantize(model, to="int8", keep_modules=["embed", "encoder", "head"])


def test_what_cannot_be_quantized_is_named(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 64] x) => (float[n, 64] y, float[n, 64] z) { a = MatMul (x, v) y = MatMul (a, w) z = MatMul (x, w) }
    """
    model = onnx.parser.parse_model(text)
    broken, weight = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float32)
    broken[0, 0] = np.inf  # so that all of y is infinite or NaN
    arrays = {"v": broken, "w": weight}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    made = sardonyx.quantize(model, to="int4")
    assert {group.reason for group in made.skipped} == {"the weight has infinities or NaN"}
    assert (len(made.products), made.check.products) == (2, 1)
    assert (
        made.notes[0]
        == "1 products were not compared: their activations were never finite, or their branch was never taken"
    )


@pytest.mark.medium
def test_the_loss_is_measured_on_the_data_that_is_given(model: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 200, (4, 6))
    made = sardonyx.quantize(model, to="int8", data={"ids": ids})
    assert (made.loss.measured_on, made.loss.samples, made.loss.outputs[0].rows) == ("data", 1, 24)
    assert sardonyx.quantize(model, to="int8").loss.measured_on == "generated"
    with pytest.raises(sardonyx.UsageError, match="lack 'ids'"):
        sardonyx.quantize(model, to="int8", data={"x": ids})


def _classifier() -> tuple[onnx.ModelProto, np.ndarray]:
    """Return a random-feature classifier, solved by least squares for ten clusters, and samples it has not seen."""
    rng = np.random.default_rng(0)
    centers, hidden = rng.standard_normal((10, 32)), rng.standard_normal((32, 256)) / 6
    labels = rng.integers(0, 10, 2000)
    x = (centers[labels] + 0.6 * rng.standard_normal((2000, 32))).astype(np.float32)
    features = np.maximum(x[:1000] @ hidden, 0)
    solved = np.linalg.lstsq(features, np.eye(10)[labels[:1000]], rcond=None)[0]
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 32] x) => (float[n, 10] y)'
        "{ a = MatMul (x, w0) b = Relu (a) y = MatMul (b, w1) }"
    )
    for name, array in (("w0", hidden), ("w1", solved)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model, x[1000:]


@pytest.mark.medium
def test_a_trained_classifier_keeps_its_answers() -> None:
    model, x = _classifier()
    made = {to: sardonyx.quantize(model, to=to, data={"x": x}).loss for to in ("int8", "int8-weights", "int4")}
    assert {loss.outputs[0].rows for loss in made.values()} == {1000}
    assert made["int8"].top1 is not None
    assert made["int8"].top1 >= 0.99
    assert made["int8-weights"].relative_l2 < made["int8"].relative_l2 < made["int4"].relative_l2 < 0.2


@pytest.mark.medium
def test_errors_that_compensate_each_other_lose_less_on_unseen_samples() -> None:
    model, x = _classifier()
    samples: Any = [{"x": rows} for rows in np.split(x[:500], 50)]
    plain, made = sardonyx.quantize(model, to="int4"), sardonyx.quantize(model, to="int4", data=samples)
    assert "the rounding errors of 2 weights compensate each other on the data" in made.notes
    assert made.data is not None
    assert (made.data.calibrate, made.data.judge, made.data.shared) == (25, 25, False)

    def outputs(subject: Subject) -> np.ndarray:
        with subject.session(threads=1) as engine:
            return np.asarray(engine.run({"x": x[500:]})[0])

    expected = outputs(Subject(model))
    losses = [np.linalg.norm(outputs(Subject(each.to_proto())) - expected) for each in (plain, made)]
    assert losses[1] < 0.75 * losses[0]
    assert made.after.bytes < plain.after.bytes


def test_compensated_bytes_have_one_scale_for_each_column() -> None:
    model, x = _classifier()
    samples: Any = [{"x": rows} for rows in np.split(x[:60], 6)]
    plain, made = (sardonyx.quantize(model, to="int8-weights", data=data) for data in (None, samples))
    assert made.model is not None
    shapes = [tuple(value.shape or ()) for value in made.model.graph.initializers.values()]
    assert sorted(shapes) == sorted([(32, 256), (1, 256), (1, 256), (256, 10), (1, 10), (1, 10)])
    assert made.after.bytes < plain.after.bytes


def test_a_quantizing_class_has_no_tolerance(model: Path) -> None:
    with pytest.raises(sardonyx.UsageError, match="not compared within a tolerance"):
        sardonyx.verify(model, model, accuracy=sardonyx.Accuracy.QUANTIZES)


TIED = """
<ir_version: 8, opset_import: ["" : 17]>
g (int64[batch, steps] ids) => (float[batch, steps, 300] y) {
  e = Gather (table, ids)  a = MatMul (e, w)  b = Tanh (a)  t = Transpose <perm = [1, 0]> (table)  y = MatMul (b, t)
}
"""


def _tied(text: str = TIED, width: int = 64) -> onnx.ModelProto:
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name, shape in (("table", (300, width)), ("w", (width, width))):
        model.graph.initializer.append(
            onnx.numpy_helper.from_array((rng.standard_normal(shape) / 8).astype(np.float32), name)
        )
    for node in model.graph.node:
        node.name = f"/{'head' if node.output[0] in 'ty' else 'body'}/{node.op_type}_{node.output[0]}"
    return model


@pytest.mark.parametrize(("to", "target"), RECIPES)
def test_a_table_that_is_the_head_as_well_is_stored_once(to: Any, target: Any) -> None:
    made = sardonyx.quantize(_tied(), to=to, target=target)
    in_blocks = (to, target) == ("int4", "ort")
    lookup, head = (
        ("quantize-shared-tables", "quantize-to-matmul-nbits-4")
        if in_blocks
        else ("quantize-embeddings", "quantize-tied-head")
    )
    recipes = {product.node: product.recipe for product in made.products}
    is_shared = in_blocks or not weights.saturates()
    if not is_shared:  # the table has 8 bits and products may have 7 on this CPU: the head is stored as other products
        head = recipes["/body/MatMul_a"]
    assert (recipes["/body/Gather_e"], recipes["/head/MatMul_y"]) == (lookup, head)
    assert made.model is not None
    tables = [
        value
        for value in made.model.graph.initializers.values()
        if value.const_value and value.const_value.size == 300 * 64 // (2 if in_blocks else 1)
    ]
    assert len(tables) == (1 if is_shared else 2)
    assert made.after.bytes < (0.18 if in_blocks else 0.35 if is_shared else 0.6) * made.before.bytes
    kept = sardonyx.quantize(_tied(), to=to, target=target, keep_modules=["head"])
    assert recipes["/head/MatMul_y"] not in {product.recipe for product in kept.products if product.module == "head"}


def test_a_shared_table_may_have_a_part_of_a_block() -> None:
    made = sardonyx.quantize(_tied(width=72), to="int4", target="ort")
    assert {product.recipe for product in made.products} == {"quantize-shared-tables", "quantize-to-matmul-nbits-4"}
    assert made.model is not None
    lookup = next(node for node in made.model.graph if node.op_type == "GatherBlockQuantized")
    facts = Facts(made.model)
    facts.infer()
    assert facts.dtype(lookup.outputs[0]) is ir.DataType.FLOAT
    assert (facts.shape(lookup.outputs[0]) or ())[2:] == (80,)


@pytest.mark.medium
def test_products_of_one_activation_are_merged() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 64] x) => (float[n, 32] a, float[n, 64] y) {
      a = MatMul (x, u)  b = MatMul (x, v)  c = Relu (b)  d = MatMul (c, w)  e = MatMul (c, w)  y = Add (d, e)
    }
    """
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name, columns in (("u", 32), ("v", 64), ("w", 64)):
        weight = rng.standard_normal((64, columns)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    for node in model.graph.node:
        node.name = f"/{'first' if node.output[0] in 'ab' else 'second'}/{node.output[0]}/{node.op_type}"
    made = sardonyx.quantize(model, to="int4", target="ort")
    assert [(each.module, each.columns) for each in made.products] == [
        ("first", 96),
        ("second.d", 64),
        ("second.e", 64),
    ]
    kept = sardonyx.quantize(model, to="int4", target="ort", keep_modules=["first.b"])
    assert (kept.products[0].module, kept.products[0].columns) == ("first.a", 32)
    feeds = {"x": rng.standard_normal((1, 64)).astype(np.float32)}
    results: list[Any] = []
    for each in (made, kept):
        with Subject(each.to_proto()).session(optimize=True) as engine:
            results.append(engine.run(feeds)[0])
    np.testing.assert_array_equal(*results)


def test_fused_products_are_quantized_or_named() -> None:
    text = TIED.replace('["" : 17]', '["" : 17, "com.microsoft" : 1]').replace(
        "t = Transpose <perm = [1, 0]> (table)  y = MatMul (b, t)",
        "y = com.microsoft.FusedMatMul <transB = 1> (b, table)",
    )
    made = sardonyx.quantize(_tied(text), to="int8", target="ort")
    assert len(made.products) == 3
    gemm = text.replace(
        "a = MatMul (e, w)",
        'f = Reshape (e, rows) r = com.microsoft.FusedGemm <activation = "Relu"> (f, w) a = Reshape (r, lead)',
    )
    model = _tied(gemm)
    arrays = {"rows": np.array([-1, 64]), "lead": np.array([1, -1, 64])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    made = sardonyx.quantize(model, to="int8", target="ort")
    assert [group.reason for group in made.skipped] == [
        "FusedGemm is not quantized; quantize before optimizing for the target `ort`"
    ]


@pytest.mark.medium
def test_a_cpu_that_saturates_gets_weights_of_seven_bits(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bool(sardonyx.quantize(model, to="int8").notes) == weights.saturates()
    for module in (weights, product_check):
        monkeypatch.setattr(module, "saturates", lambda: True)
    made = sardonyx.quantize(model, to="int8")
    assert made.notes == ("this CPU adds 8-bit products with saturation: the weights of `int8` use 7 bits",)
    assert made.model is not None
    stored = [node.inputs[1] for node in made.model.graph if node.op_type == "MatMulInteger"]
    assert [np.abs(value.const_value.numpy()).max() for value in stored if value and value.const_value] == [63] * 3


def test_saturation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    weights.saturates.cache_clear()
    wrong = np.full((5, 32), 2**15 - 1, np.int32)
    monkeypatch.setattr(weights.runtime, "evaluate", lambda _: [wrong])
    assert weights.saturates()
    weights.saturates.cache_clear()
    monkeypatch.undo()
    assert isinstance(weights.saturates(), bool)


@pytest.mark.medium
def test_stored_weights_are_float32_in_the_runtime(model: Path) -> None:
    made = sardonyx.quantize(model, to="int8-weights")
    assert not any("rounds the activations" in note for note in made.notes)
    assert made.opset_changes == {}
    assert made.loss.relative_l2 < 0.8 * sardonyx.quantize(model, to="int8").loss.relative_l2


@pytest.mark.medium
@pytest.mark.parametrize("to", ["int8", "int4"])
def test_the_simulations_of_large_models_are_run_in_groups(
    model: Path, to: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sardonyx.quantize(model, to=to)
    monkeypatch.setattr(product_check, "_GROUP_BYTES", 40_000)
    made = sardonyx.quantize(model, to=to)
    assert made.notes == whole.notes
    for one, other in zip(made.products, whole.products, strict=True):  # what the runtime fuses depends on the group
        assert replace(one, error=0, allowed=0) == replace(other, error=0, allowed=0)
        assert (one.error, one.allowed) == pytest.approx((other.error, other.allowed), rel=1e-3)
    monkeypatch.setattr(Blocks if to == "int4" else weights, *_LATE_FAULTS[to])
    with pytest.raises(sardonyx.VerificationFailed, match="differs from its simulation"):
        sardonyx.quantize(model, to=to, only_modules=["head"])


_LATE_FAULTS: dict[str, Any] = {
    "int4": ("scales", lambda self: SCALES(self) * np.float32(1.05 if self.matrix.columns == 32 else 1)),
    "int8": ("column_scales", lambda matrix, most=127, **_: np.abs(matrix.array()).max(0) / np.float32(most - 9)),
}


@pytest.mark.parametrize("to", ["int8", "int8-static", "int8-weights", "int4"])
def test_a_model_whose_attention_has_a_cache(to: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model("""<ir_version: 11, opset_import: ["" : 23]>
        cached (float[1, 2, s, 32] x, float[1, 2, p, 32] past_key, float[1, 2, p, 32] past_value)
            => (float[1, 2, s, 32] y, float[1, 2, t, 32] key, float[1, 2, t, 32] value) {
          a, key, value = Attention (x, x, x, , past_key, past_value)
          b = MatMul (a, w)
          y = MatMul (b, v)
        }""")
    rng = np.random.default_rng(0)
    for name in "wv":
        array = rng.normal(size=(32, 32)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    names = ("x", "past_key", "past_value")
    data = [{name: rng.normal(size=(1, 2, 3, 32)).astype(np.float32) for name in names} for _ in range(4)]
    monkeypatch.setattr(product_check, "_GROUP_BYTES", 1)
    assert len(sardonyx.quantize(model, to=to, data=data).products) == 2


def _chain(activation: float, weight: float) -> onnx.ModelProto:
    """Return a sum of an ordinary product, and of two whose activations and weights have these magnitudes."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 64] x) => (float[n, 64] y) {
      p = Mul (x, k)  a = MatMul (p, v)  b = Relu (a)  c = MatMul (b, w)  d = MatMul (x, u)  y = Add (c, d)
    }
    """
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    arrays = {name: rng.standard_normal((64, 64)) for name in "vwu"}
    arrays |= {"v": arrays["v"] * weight, "k": np.array([activation])}
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


@pytest.mark.parametrize(("to", "target"), [*RECIPES, ("int8-static", "portable")])
@pytest.mark.parametrize(("activation", "weight"), [(1e-10, 1e-11), (1e-18, 1e-18), (1.0, 1e-38)])
def test_a_branch_that_is_nearly_zero_ends_nothing(to: Any, target: Any, activation: float, weight: float) -> None:
    rng = np.random.default_rng(1)
    data = [{"x": rng.standard_normal((4, 64)).astype(np.float32)} for _ in range(4)]
    made = sardonyx.quantize(_chain(activation, weight), to=to, target=target, data=data)
    assert "d" in {product.node for product in made.products}
    assert made.loss.relative_l2 < 0.2


def test_activations_of_embeddings_are_rounded_as_on_this_cpu() -> None:
    """Integers of 4 bits are half a step of 8-bit integers where the largest of a block is 8 and another is 4."""
    made = sardonyx.quantize(_tied(), to="int4", target="ort")
    assert not [note for note in made.notes if "stays in float32" in note]
    assert len(made.products) == 3
