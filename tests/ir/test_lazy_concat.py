"""Concatenated matrices have the same values however they are read, from memory or file, small or large."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.ir import tensors
from sardonyx.ir.tensors import ConcatTensor, transposed

RNG = np.random.default_rng(3)


def written(tensor: ConcatTensor, path: Path, position: int = 5) -> bytes:
    """The bytes that a tensor writes to a file after some other bytes."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        tensor.write_to(fd, position)
    finally:
        os.close(fd)
    return path.read_bytes()[position:]


@pytest.mark.parametrize("whole", [1 << 20, 0], ids=["at once", "row by row"])
@pytest.mark.parametrize("shape", [(), (7,), (2, 3)])
def test_it_is_the_concatenation(
    shape: tuple[int, ...], whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "WHOLE", whole)
    arrays = [RNG.standard_normal((*shape, width)).astype(np.float32) for width in (4, 1, 6)]
    tensor = ConcatTensor([ir.tensor(array) for array in arrays])
    wanted = np.concatenate(arrays, axis=-1)
    assert tuple(tensor.shape.numpy()) == wanted.shape
    assert tensor.nbytes == wanted.nbytes
    np.testing.assert_array_equal(tensor.numpy(), wanted)
    assert tensor.tobytes() == wanted.tobytes()
    assert written(tensor, tmp_path / "out") == wanted.tobytes()


@pytest.mark.parametrize("whole", [1 << 20, 0], ids=["at once", "row by row"])
def test_parts_may_be_transposed(whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "WHOLE", whole)
    one, two = RNG.standard_normal((3, 5)), RNG.standard_normal((2, 5))
    tensor = ConcatTensor([transposed(ir.tensor(one), (1, 0)), transposed(ir.tensor(two), (1, 0))])
    assert written(tensor, tmp_path / "out") == np.concatenate([one.T, two.T], axis=1).tobytes()


def test_parts_must_fit() -> None:
    with pytest.raises(AssertionError):
        ConcatTensor([ir.tensor(np.zeros((2, 3), np.float32)), ir.tensor(np.zeros((3, 3), np.float32))])
    with pytest.raises(AssertionError):
        ConcatTensor([ir.tensor(np.zeros((2, 3), np.float32)), ir.tensor(np.zeros((2, 3), np.float64))])
