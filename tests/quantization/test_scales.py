"""Scales of quantized weights: the search never loses more than plain rounding, and reads weights in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sardonyx
from sardonyx.common.temporary import temporary_folder
from sardonyx.ir import io
from sardonyx.ir.tensors import ConcatTensor
from sardonyx.verbs.quantize import dynamic_int8, scales, weights
from sardonyx.verbs.quantize.dynamic_int8 import smoothing
from sardonyx.verbs.quantize.scales import Moments
from sardonyx.verbs.quantize.weights import Blocks, Matrix

SEED, LARGE = st.integers(0, 2**32 - 1), st.sampled_from([1.0, 30.0, 1e20, 1e-30])


def _matrix(seed: int, rows: int, columns: int, large: float, *, is_transposed: bool) -> Matrix:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    values[rng.integers(rows), rng.integers(columns)] *= large
    values[:, 0] = 0
    stored = np.ascontiguousarray(values.T) if is_transposed else values
    return Matrix(ir.Tensor(stored), is_transposed)


def _loss(matrix: Matrix, held: np.ndarray) -> np.ndarray:
    return np.square(matrix.array().astype(np.float64) - held)


@settings(max_examples=60, deadline=None)
@example(seed=420, rows=31, columns=28, bits=4, large=1.0, is_transposed=False, is_symmetric=True)
@given(
    seed=SEED, rows=st.integers(1, 90), columns=st.integers(1, 40), bits=st.sampled_from([4, 8]), large=LARGE,
    is_transposed=st.booleans(), is_symmetric=st.booleans(),
)  # fmt: skip
def test_no_block_loses_more_than_by_plain_rounding(bits: int, *, is_symmetric: bool, **case: Any) -> None:
    matrix = _matrix(**case)
    blocks = Blocks(matrix, bits, 32, is_symmetric)
    scale, zero = blocks.scales()[:, None], blocks.zero_points()[:, None].astype(np.float32)
    held = ((blocks.integers() - zero) * scale).reshape(-1, matrix.columns)[: matrix.rows]
    split = scales.in_blocks(matrix.array(), 32)
    step, center = (each[:, None] for each in scales.plain_blocks(split, bits, is_symmetric=is_symmetric))
    plain = (np.clip(np.rint(split / step) + center, 0, 2**bits - 1) - center) * step
    found = scales.in_blocks(_loss(matrix, held), 32).sum(1)
    usual = scales.in_blocks(_loss(matrix, plain.reshape(-1, matrix.columns)[: matrix.rows]), 32).sum(1)
    rounding = 1e-12 * np.square(split, dtype=np.float64).sum(1)
    assert (found <= usual * 1.0001 + rounding).all()
    assert (held[:, 0] == 0).all()
    if is_symmetric:
        assert (zero == 2 ** (bits - 1)).all()
        assert (np.ascontiguousarray(scale).view(np.uint32) % 2**16 == 0).all(), "not a number of bfloat16"
        # A value is at most the one of largest magnitude, 2 ** (bits - 1) steps before bfloat16 rounded the scale by at
        # most 2 ** -8 of it, and on the other side of zero there is one integer less.
        farthest = 1 + 2 ** (bits - 1) * 2**-8 * (1 + 2**-7)
        assert (np.abs(split - (blocks.integers() - zero) * scale) <= farthest * np.abs(scale)).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=SEED, rows=st.integers(1, 90), columns=st.integers(1, 40), large=LARGE,
    is_transposed=st.booleans(), most=st.sampled_from([127, 63]), is_one=st.booleans(),
)  # fmt: skip
def test_signed_integers_lose_no_more_than_by_plain_rounding(most: int, is_one: bool, **case: Any) -> None:
    matrix = _matrix(**case)
    step = weights.column_scales(matrix, most, is_one=is_one)
    assert not is_one or (step == step[0]).all()
    held = weights.signed_columns(matrix, most, is_one=is_one) * step
    step = np.abs(matrix.array()).max(0, keepdims=True) / np.float32(most)
    step = np.maximum(step, step.max() if is_one else 0)
    step[step == 0] = 1
    plain = np.rint(matrix.array() / step) * step
    lost, usual = (_loss(matrix, each).sum(None if is_one else 0) for each in (held, plain))
    assert (lost <= usual * 1.0001).all()
    assert np.abs(weights.signed_columns(matrix, most, is_one=is_one)).max(initial=0) <= most


def test_clipping_a_range_with_one_large_value_loses_less() -> None:
    matrix = _matrix(0, 4096, 8, 1.0, is_transposed=False)
    blocks = Blocks(matrix, 4, 128)
    split = scales.in_blocks(matrix.array(), 128)
    step, center = (each[:, None] for each in scales.plain_blocks(split, 4))
    plain = (np.clip(np.rint(split / step) + center, 0, 15) - center) * step
    held = (blocks.integers().astype(np.float32) - blocks.zero_points()[:, None]) * blocks.scales()[:, None]
    assert np.square(split - held).sum() < 0.92 * np.square(split - plain).sum()


@pytest.mark.parametrize("is_transposed", [False, True])
def test_pieces_cover_a_weight_of_a_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_transposed: bool
) -> None:
    """With small limits, so that rows and columns are cut."""
    monkeypatch.setattr(weights, "_STRIPE", 700)
    monkeypatch.setattr(weights, "_PIECE", 150)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 70] x) => (float[n, 33] y) { y = MatMul (x, w) }'
    )
    stored = np.random.default_rng(0).standard_normal((70, 33)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(stored, "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    tensor, again = (io.load(tmp_path / "m.onnx").graph.initializers["w"].const_value for _ in range(2))
    assert tensor is not None
    assert again is not None
    matrix = Matrix(tensor, is_transposed)
    assert matrix.identity() == Matrix(again, is_transposed).identity()
    joined = [Matrix(ConcatTensor([each, each]), is_transposed).identity() for each in (tensor, again)]
    assert joined[0] == joined[1] != matrix.identity()
    seen = np.zeros((matrix.rows, matrix.columns), np.float32)
    for rows, columns, values in matrix.pieces(8):
        assert rows.start % 8 == 0
        seen[rows, columns] += values
    np.testing.assert_array_equal(seen, matrix.array())


def test_rows_that_count_more_lose_less() -> None:
    rng = np.random.default_rng(0)
    values, counts = rng.standard_normal((2, 32, 16)).astype(np.float32), np.ones((2, 32), np.float32)
    counts[:, ::8] = 100

    def error_of_important_rows(weights: np.ndarray | None) -> float:
        step, zero = (each[:, None] for each in scales.best_scales(values, 4, weights))
        held = (np.clip(np.rint(values / step) + zero, 0, 15) - zero) * step
        return float(np.square(held - values)[:, ::8].sum())

    assert error_of_important_rows(counts) < 0.9 * error_of_important_rows(None)


def _with_large_element() -> tuple[onnx.ModelProto, Any]:
    """Return one product, and samples whose element 7 is forty times as large as the others."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 96] x) => (float[n, 64] y) { y = MatMul (x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal((96, 64)).astype(np.float32), "w"))
    x = rng.standard_normal((128, 96)).astype(np.float32)
    x[:, 7] *= 40
    return model, [{"x": rows} for rows in np.split(x, 16)]


def test_smoothing_loses_less_if_one_element_of_every_row_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = _with_large_element()
    made = sardonyx.quantize(model, to="int8", data=samples)
    assert made.check.worst <= 1
    monkeypatch.setattr(dynamic_int8, "smoothing", lambda _: None)
    assert made.loss.relative_l2 < 0.6 * sardonyx.quantize(model, to="int8", data=samples).loss.relative_l2


def test_wrong_factors_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = _with_large_element()
    right = dynamic_int8.smoothed
    monkeypatch.setattr(dynamic_int8, "smoothed", lambda matrix, factors: right(matrix, 1 / factors))
    with pytest.raises(sardonyx.VerificationFailed, match="differs from its simulation"):
        sardonyx.quantize(model, to="int8", data=samples)


def test_elements_of_usual_size_are_not_smoothed() -> None:
    weight = ir.Tensor(np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32))
    folder, squares = temporary_folder(), np.ones(96, np.float32)
    assert smoothing(Matrix(weight, False)) is None
    assert smoothing(Matrix(weight, False, Moments(np.diag(squares), folder))) is None
    squares[7] = 1600
    factors = smoothing(Matrix(weight, False, Moments(np.diag(squares), folder)))
    assert factors is not None
    assert (factors.argmax(), factors.min()) == (7, 1)
