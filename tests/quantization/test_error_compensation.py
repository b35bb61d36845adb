"""Weights whose rounding errors compensate each other: never worse than plain rounding, and what GPTQ computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantization import small_model
from sardonyx.common.temporary import temporary_folder
from sardonyx.verbs.quantize import scales, simulation
from sardonyx.verbs.quantize.calibration import measure_moments
from sardonyx.verbs.quantize.scales import Moments, Rounded, compensated, in_blocks, plain_blocks, upper_root
from sardonyx.verbs.quantize.weights import Blocks, Matrix
from sardonyx.verification.subject import Subject

SIZE = 16


def _moments(rng: np.random.Generator, inputs: int, samples: int, *, dead: bool = False) -> np.ndarray:
    """Return the second moments of correlated inputs, with 1 % of the mean square added."""
    x = (
        rng.standard_normal((samples, 3)) @ rng.standard_normal((3, inputs))
        + rng.standard_normal((samples, inputs)) / 3
    )
    if dead:
        x[:, rng.integers(inputs)] = 0
    moments = (x.T @ x / samples).astype(np.float32)
    return moments + np.float32(0.01 * moments.diagonal().mean() + 1e-6) * np.eye(inputs, dtype=np.float32)


def _cost(values: np.ndarray, held: np.ndarray, moments: np.ndarray) -> np.ndarray:
    error = values.astype(np.float64) - held
    return np.einsum("kc,kc->c", error, moments @ error)


def _held(found: Rounded, rows: int) -> np.ndarray:
    steps = found.integers.astype(np.float32) - found.zeros[:, None]
    return (steps * found.scales[:, None]).reshape(-1, found.scales.shape[1])[:rows]


def _closest(values: np.ndarray, scales: np.ndarray, zeros: np.ndarray, bits: int) -> np.ndarray:
    scale, zero = (np.repeat(each, SIZE, 0)[: len(values)] for each in (scales, zeros))
    return (np.clip(np.rint(values / scale) + zero, 0, 2**bits - 1) - zero) * scale


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 70), columns=st.integers(1, 12), samples=st.integers(1, 100),
    bits=st.sampled_from([4, 8]), large=st.sampled_from([1.0, 30.0, 1e15, 1e-15]), dead=st.booleans(),
    is_symmetric=st.booleans(),
)  # fmt: skip
def test_no_column_costs_more_than_by_plain_rounding(
    seed: int, rows: int, columns: int, samples: int, bits: int, large: float, dead: bool, is_symmetric: bool
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    values[rng.integers(rows), rng.integers(columns)] *= large
    moments = _moments(rng, rows, samples, dead=dead)
    found = compensated(values, upper_root(moments), bits, SIZE, is_symmetric=is_symmetric)
    cost = _cost(values, _held(found, rows), moments)
    plain = plain_blocks(in_blocks(values, SIZE), bits, is_symmetric=is_symmetric)
    rounding = 1e-10 * np.square(values, dtype=np.float64).sum(0) * np.abs(moments).max()
    for scale, zeros in ((found.scales, found.zeros), plain):
        assert (cost <= _cost(values, _closest(values, scale, zeros, bits), moments) * 1.0001 + rounding).all()
    assert found.integers.max() < 2**bits
    assert ((found.zeros == 2 ** (bits - 1)) if is_symmetric else (found.zeros >= 0) & (found.zeros < 2**bits)).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_the_integers_are_those_of_gptq(bits: int) -> None:
    """GPTQ: each error, divided by the diagonal of the inverse, is taken from the later rows; the inverse shrinks."""
    rng = np.random.default_rng(bits)
    values, moments = rng.standard_normal((40, 6)).astype(np.float32), _moments(rng, 40, 200)
    found = scales._in_order(values, upper_root(moments), bits, SIZE)  # pyright: ignore[reportPrivateUsage]
    rest, inverse = values.astype(np.float64), np.linalg.inv(moments.astype(np.float64))
    for row in range(40):
        scale, zero = found.scales[row // SIZE], found.zeros[row // SIZE]
        level = np.clip(np.rint(rest[row] / scale) + zero, 0, 2**bits - 1)
        np.testing.assert_array_equal(found.integers[row // SIZE, row % SIZE], level)
        error = (rest[row] - (level - zero) * scale) / inverse[row, row]
        rest -= inverse[:, row, None] * error
        inverse -= np.outer(inverse[:, row], inverse[row]) / inverse[row, row]


def test_correlated_inputs_lose_far_less() -> None:
    rng = np.random.default_rng(0)
    values, moments = rng.standard_normal((96, 32)).astype(np.float32), _moments(rng, 96, 400)
    found = compensated(values, upper_root(moments), 4, SIZE)
    plain = _closest(values, *plain_blocks(in_blocks(values, SIZE), 4), 4)
    assert _cost(values, _held(found, 96), moments).sum() < 0.4 * _cost(values, plain, moments).sum()


@pytest.mark.parametrize("is_symmetric", [False, True])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_stored_integers_are_checked_one_by_one(is_transposed: bool, is_symmetric: bool) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((40, 24)).astype(np.float32)
    stored = np.ascontiguousarray(values.T) if is_transposed else values
    moments = Moments(_moments(rng, 40, 200), temporary_folder())
    matrix = Matrix(ir.Tensor(stored), is_transposed, moments)
    blocks = Blocks(matrix, 4, SIZE, is_symmetric)
    integers = blocks.integers().reshape(-1, 24)[:40]

    def simulated(levels: np.ndarray) -> np.ndarray:
        return simulation.held_in_blocks(blocks, levels, blocks.scales(), blocks.zero_points())

    scale, zero = (np.repeat(each, SIZE, 0)[:40] for each in (blocks.scales(), blocks.zero_points()))
    np.testing.assert_array_equal(simulated(integers), (integers - zero.astype(np.float32)) * scale)
    for row, column in ((0, 0), (17, 5), (39, 23)):
        wrong = integers.copy()
        wrong[row, column] += 1 if wrong[row, column] < 15 else -1
        held = (wrong - zero.astype(np.float32)) * scale
        differs = (simulated(wrong) != held).any(0)
        assert differs[column], "the column is not what the stored integers stand for"
        assert differs.sum() == 1


def _samples(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [{"ids": rng.integers(0, 200, (2, 5))} for _ in range(count)]


def test_moments_are_those_of_the_activations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Subject(small_model.build(tmp_path / "m.onnx"))
    found = measure_moments(source, _samples(4), 1)
    assert set(found) == {"e", "flat", "h"}
    table = source.model.graph.initializers["table"].const_value
    assert table is not None
    x = np.concatenate([table.numpy()[sample["ids"]].reshape(-1, 70) for sample in _samples(4)])
    expected = x.T @ x / len(x)
    damping = 0.01 * expected.diagonal().mean() * np.eye(70)
    np.testing.assert_allclose(found["e"].array(), expected + damping, rtol=1e-4, atol=1e-6)
    monkeypatch.setattr("sardonyx.verbs.quantize.calibration._GROUP_BYTES", 1)
    alone = measure_moments(source, _samples(4), 1)
    for name, moments in found.items():
        np.testing.assert_allclose(alone[name].array(), moments.array(), rtol=1e-5, atol=1e-7)


def test_the_activation_of_a_fused_product_has_moments(tmp_path: Path) -> None:
    model = Subject(small_model.build(tmp_path / "m.onnx")).model
    transpose, product = (node for node in model.graph if node.outputs[0].name in ("t", "f"))
    product.domain, product.op_type = "com.microsoft", "FusedMatMul"
    product.attributes["transB"] = ir.AttrInt64("transB", 1)
    product.replace_input_with(1, transpose.inputs[0])
    model.graph.remove(transpose)
    model.opset_imports["com.microsoft"] = 1
    assert set(measure_moments(Subject(model), _samples(2), 1)) == {"e", "flat", "h"}


@pytest.mark.parametrize("scale", [0, 1e-21])
def test_an_activation_whose_squares_vanish_has_no_moments(tmp_path: Path, scale: float) -> None:
    source = Subject(small_model.build(tmp_path / "m.onnx"))
    table = source.model.graph.initializers["table"]
    assert table.const_value is not None
    table.const_value = ir.Tensor(table.const_value.numpy() * np.float32(scale))
    assert set(measure_moments(Subject(source.model), _samples(2), 1)) == {"flat", "h"}
