"""Lazy tensors have the values of ordinary ones and write the same bytes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.ir import storage, tensors
from sardonyx.ir.storage import SourceFile, stored_bytes, unpacked
from sardonyx.ir.tensors import ComputedTensor, FileTensor, StreamedTensor, TransposedTensor, reshaped, transposed

DTYPES = [dtype for dtype in ir.DataType if dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING)]


@contextmanager
def on_disk(dtype: ir.DataType, shape: tuple[int, ...], seed: int = 0) -> Iterator[FileTensor]:
    """A tensor in the middle of a file."""
    size = stored_bytes(dtype, shape)
    data = np.random.default_rng(seed).integers(0, 256, size + 24, np.uint8)
    if dtype.bitwidth % 8:
        data[:] = 0x11  # no bits in the padding, for any width
        data[-24 + size % 2 :] = 0
    with tempfile.NamedTemporaryFile() as file:
        file.write(data.tobytes())
        file.flush()
        yield FileTensor(SourceFile.open(file.name), 16, size, dtype, shape)


def written(tensor: StreamedTensor) -> bytes:
    with tempfile.TemporaryFile() as file:
        tensor.write_to(file.fileno(), 5)
        return os.pread(file.fileno(), tensor.nbytes + 99, 5)


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@contextmanager
def small_blocks(size: int) -> Iterator[None]:
    with (
        mock.patch.object(storage, "BLOCK_BYTES", size),
        mock.patch.object(tensors, "BLOCK_BYTES", size),
        mock.patch.object(tensors, "_TILE_ROWS", 3),
        mock.patch.object(tensors, "_TILE_COLUMNS", 4),
    ):
        yield


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (4, 6)], ids=str)
def test_every_dtype_reads_transposes_and_writes(dtype: ir.DataType, shape: tuple[int, ...]) -> None:
    with on_disk(dtype, shape) as tensor:
        array = tensor.numpy()
        assert array.dtype == dtype.numpy()
        assert array.shape == shape
        assert written(tensor) == tensor.tobytes() == ir.Tensor(array, dtype=dtype).tobytes()
        turned = transposed(tensor, tuple(reversed(range(len(shape)))))
        assert bits(turned.numpy()) == bits(array.T)
        assert written(turned) == turned.tobytes() == ir.Tensor(array.T.copy(), dtype=dtype).tobytes()


@st.composite
def permutations(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    return tuple(shape), tuple(draw(st.permutations(range(len(shape)))))


@pytest.mark.slow
@settings(max_examples=200)
@given(case=permutations(), block=st.integers(1, 200), dtype=st.sampled_from([d for d in DTYPES if d.bitwidth >= 8]))
def test_any_transpose_is_written_correctly_in_any_blocks(case: Any, block: int, dtype: ir.DataType) -> None:
    shape, perm = case
    with on_disk(dtype, shape) as tensor, small_blocks(block):
        assert written(transposed(tensor, perm)) == bits(tensor.numpy().transpose(perm))


@given(case=permutations())
def test_every_swap_is_recognised(case: Any) -> None:
    """A permutation that only exchanges two neighbouring groups of axes uses the fast path."""
    shape, perm = case
    kept = [axis for axis in perm if shape[axis] != 1]
    order = sorted(kept)
    n = len(order)
    swaps = [
        order[:a] + order[b:c] + order[a:b] + order[c:] for a in range(n) for b in range(a, n) for c in range(b, n + 1)
    ]
    swap = tensors.as_swap(shape, perm, 4)
    assert (swap is not None) == (kept == order or kept in swaps)
    if swap is not None:
        assert swap.batch * swap.rows * swap.columns * swap.width == 4 * np.prod(shape)


def test_a_transpose_of_a_transpose_is_one() -> None:
    with on_disk(ir.DataType.FLOAT, (2, 3, 4)) as tensor:
        twice = transposed(transposed(tensor, (1, 2, 0)), (2, 1, 0))
        assert isinstance(twice, TransposedTensor)
        assert twice.source is tensor
        assert bits(twice.numpy()) == bits(tensor.numpy().transpose(1, 2, 0).transpose(2, 1, 0))


def test_reshaping_a_file_tensor_moves_no_bytes() -> None:
    with on_disk(ir.DataType.FLOAT, (2, 6)) as tensor:
        tensor.name = "w"
        view = reshaped(tensor, (3, 4))
        assert isinstance(view, FileTensor)
        assert (view.offset, view.length, view.name) == (tensor.offset, tensor.length, "w")
        assert bits(view.numpy()) == bits(tensor.numpy())
    plain = reshaped(ir.tensor(np.arange(6, dtype="i8"), name="p"), (2, 3))
    np.testing.assert_array_equal(plain.numpy(), np.arange(6).reshape(2, 3))


def test_a_computed_tensor_is_computed_anew_each_time() -> None:
    calls: list[int] = []

    def compute() -> np.ndarray:
        calls.append(1)
        return np.full((2, 2), len(calls), "f4")

    tensor = ComputedTensor(ir.DataType.FLOAT, (2, 2), compute, name="c")
    assert (tensor.shape, tensor.nbytes, calls) == (ir.Shape((2, 2)), 16, [])
    assert tensor.numpy()[0, 0] == 1
    assert tensor.numpy()[0, 0] == 2
    assert written(tensor) == np.full((2, 2), 3, "f4").tobytes()


@pytest.mark.parametrize("wrong", [np.zeros((2, 3), "f4"), np.zeros((2, 2), "f8")], ids=["shape", "dtype"])
def test_a_computed_tensor_must_have_the_declared_type_and_shape(wrong: np.ndarray) -> None:
    with pytest.raises(AssertionError, match="is declared as"):
        ComputedTensor(ir.DataType.FLOAT, (2, 2), lambda: wrong).numpy()


def test_unpacking_follows_the_format() -> None:
    data = np.array([0x21, 0x43], np.uint8)  # low nibble first
    assert unpacked(data, ir.DataType.UINT4, (3,)).astype(int).tolist() == [1, 2, 3]


def test_copying_falls_back_when_the_kernel_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    with on_disk(ir.DataType.FLOAT, (50, 50)) as tensor, small_blocks(300):
        assert written(tensor) == tensor.tobytes()
