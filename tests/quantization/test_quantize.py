"""`sardonyx.quantize`: recipes, the comparison with the simulation, the loss, and the selection of modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.numpy_helper
import onnx.parser
import pytest

import sardonyx
from quantization.small_model import build
from sardonyx.ir.origins import owner
from sardonyx.quantization import dynamic_int8, matmul_nbits, weights
from sardonyx.quantization.dynamic_int8 import QuantizeDynamically
from sardonyx.quantization.weights import Blocks
from sardonyx.records.quantization import Quantization

RECIPES = [("int8", "portable"), ("int4", "portable"), ("int4", "ort"), ("int8-weights", "portable")]
RECIPES += [("int8-weights", "ort")]


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
    made = sardonyx.quantize(model)
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
    made = sardonyx.quantize(model)
    assert len(made.products) == 2
    assert made.after.bytes < 0.3 * made.before.bytes


def _no_zero_point(recipe: QuantizeDynamically, product: Any, op: Any) -> Any:
    weight, scale = recipe.constants(product, op, dynamic_int8._constants)  # pyright: ignore[reportPrivateUsage]
    levels, step, _ = op.node("DynamicQuantizeLinear", (product.activation,), outputs=3)
    total = op.Mul(op.Cast(op.MatMulInteger(levels, weight), to=1), op.Mul(step, scale))
    return total if product.bias is None else op.Add(total, product.bias)


SCALES, ZEROS, PACKED = Blocks.scales, Blocks.zero_points, matmul_nbits._packed  # pyright: ignore[reportPrivateUsage]
FAULTS: dict[str, tuple[str, str, Any, str, Any]] = {
    "no zero point of the activation": ("int8", "portable", QuantizeDynamically, "quantized", _no_zero_point),
    "scales of another axis": (
        "int8", "portable", weights, "column_scales",
        lambda matrix: np.resize(np.abs(matrix.array()).max(1) / np.float32(127), matrix.columns),
    ),
    "zero points off by one": ("int4", "portable", Blocks, "zero_points", lambda self: (ZEROS(self) + 1) % 16),
    "zero points off by one, packed": ("int4", "ort", Blocks, "zero_points", lambda self: (ZEROS(self) + 1) % 16),
    "scales of the next block": ("int4", "portable", Blocks, "scales", lambda self: np.roll(SCALES(self), 1, 0)),
    "scales of the next column": ("int8-weights", "ort", Blocks, "scales", lambda self: np.roll(SCALES(self), 1, 1)),
    "nibbles swapped": (
        "int4", "ort", matmul_nbits, "_packed",
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
        sardonyx.quantize(model, tmp_path / "q.onnx", to=to, target=target)  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "q.onnx").exists()


def test_patterns_name_modules(model: Path) -> None:
    kept = sardonyx.quantize(model, keep=["encoder.*", "embed"])
    assert {product.module for product in kept.products} == {"head"}
    alone = sardonyx.quantize(model, only=["encoder"], keep=["encoder.second"])
    assert {product.module for product in alone.products} == {"encoder.first"}
    with pytest.raises(sardonyx.UsageError, match="there is no module 'decoder'"):
        sardonyx.quantize(model, keep=["decoder"])
    with pytest.raises(sardonyx.UsageError, match="nothing can be quantized"):
        sardonyx.quantize(model, keep=["embed", "encoder", "head"])


def test_what_cannot_be_quantized_is_named(tmp_path: Path) -> None:
    made = sardonyx.quantize(build(tmp_path / "inf.onnx", worst=float("inf")), to="int4")
    assert {group.reason for group in made.skipped} == {"the weight has infinities or NaN"}
    assert (len(made.products), made.check.products) == (3, 1)
    assert made.notes == ("2 products were not compared: their activations were never finite",)


def test_the_loss_is_measured_on_the_data_that_is_given(model: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 200, (4, 6))
    made = sardonyx.quantize(model, data={"ids": ids})
    assert (made.loss.measured_on, made.loss.samples, made.loss.outputs[0].rows) == ("data", 1, 24)
    assert sardonyx.quantize(model).loss.measured_on == "generated"
    with pytest.raises(sardonyx.UsageError, match="lack 'ids'"):
        sardonyx.quantize(model, data={"x": ids})


def test_a_trained_classifier_keeps_its_answers() -> None:
    """A random-feature classifier, solved by least squares for ten clusters."""
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
    made = {to: sardonyx.quantize(model, to=to, data={"x": x[1000:]}).loss for to in ("int8", "int8-weights", "int4")}
    assert {loss.outputs[0].rows for loss in made.values()} == {1000}
    assert made["int8"].top1 is not None
    assert made["int8"].top1 >= 0.99
    assert made["int8-weights"].relative_l2 < made["int8"].relative_l2 < made["int4"].relative_l2 < 0.2


def test_a_quantizing_class_has_no_tolerance(model: Path) -> None:
    with pytest.raises(sardonyx.UsageError, match="not compared within a tolerance"):
        sardonyx.verify(model, model, accuracy=sardonyx.Accuracy.QUANTIZES)
