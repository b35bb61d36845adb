"""Weights as integers with scales: for each column, for each row, or in blocks along the summed axis.

Everything is computed from the source tensor on demand, so that weights stay on disk until the file is written.
`simulation` computes the same numbers in another way, to check these.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.precision import Impossible
from sardonyx.ir.storage import Array
from sardonyx.ir.tensors import ComputedTensor

SIGNED_MOST = 127  # -128 is not used, so that the range is symmetric


class Matrix(Struct, frozen=True, eq=False):
    """A constant weight of `rows` summed inputs and `columns` outputs, whichever way it is stored."""

    tensor: ir.TensorProtocol
    is_transposed: bool  # stored as columns × rows

    @property
    def rows(self) -> int:
        """The length of the summed axis."""
        return int(self.tensor.shape.numpy()[1 if self.is_transposed else 0])

    @property
    def columns(self) -> int:
        """The number of outputs."""
        return int(self.tensor.shape.numpy()[0 if self.is_transposed else 1])

    def array(self) -> Array:
        """Return the values as rows × columns."""
        values = self.tensor.numpy()
        return values.T if self.is_transposed else values

    def check_finite(self) -> None:
        """Refuse a weight with infinities or NaN.

        Raises:
            Impossible: if it has some.
        """
        values = self.tensor.numpy()
        if not (np.isfinite(values.min()) and np.isfinite(values.max())):
            raise Impossible("the weight has infinities or NaN")


class Blocks(Struct, frozen=True, eq=False):
    """A weight as unsigned integers of `bits` with a scale and a zero point for each column of each block of rows."""

    matrix: Matrix
    bits: int
    size: int  # rows of a block; the last one may be shorter

    @property
    def count(self) -> int:
        """The number of blocks."""
        return -(-self.matrix.rows // self.size)

    def integers(self) -> Array:
        """Return the integers as blocks × size × columns; rows that pad the last block hold its zero points."""
        blocks = self._split()
        scales, zeros = _affine(blocks, self.bits)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.rint(blocks / scales[:, None])
        return np.clip(steps + zeros[:, None], 0, (1 << self.bits) - 1).astype(np.uint8)

    def scales(self) -> Array:
        """Return the scales as blocks × columns."""
        return _affine(self._split(), self.bits)[0]

    def zero_points(self) -> Array:
        """Return the zero points as blocks × columns."""
        return _affine(self._split(), self.bits)[1].astype(np.uint8)

    def _split(self) -> Array:
        rows, columns = self.matrix.rows, self.matrix.columns
        padded = np.zeros((self.count * self.size, columns), np.float32)
        padded[:rows] = self.matrix.array()
        return padded.reshape(self.count, self.size, columns)


def _affine(blocks: Array, bits: int) -> tuple[Array, Array]:
    """Return scale and zero point of each column of each block; the range includes 0, which is represented exactly."""
    low, high = np.minimum(blocks.min(1), 0), np.maximum(blocks.max(1), 0)
    scales = ((high - low) / np.float32((1 << bits) - 1)).astype(np.float32)
    scales[scales == 0] = 1
    return scales, np.rint(-low / scales)


def column_scales(matrix: Matrix) -> Array:
    """Return the scale of each column for signed 8-bit integers; 1 for a column of zeros."""
    return _symmetric(matrix.array(), 0)


def signed_columns(matrix: Matrix) -> Array:
    """Return the weight as signed 8-bit integers with one scale for each column."""
    return np.rint(matrix.array() / column_scales(matrix)).astype(np.int8)


def row_scales(table: ir.TensorProtocol) -> Array:
    """Return the scale of each row of a table for signed 8-bit integers, as rows × 1."""
    return _symmetric(table.numpy(), 1)[:, None]


def signed_rows(table: ir.TensorProtocol) -> Array:
    """Return a table as signed 8-bit integers with one scale for each row."""
    return np.rint(table.numpy() / row_scales(table)).astype(np.int8)


def _symmetric(values: Array, axis: int) -> Array:
    largest = np.maximum(values.max(axis), -values.min(axis))
    scales = (largest / np.float32(SIGNED_MOST)).astype(np.float32)
    scales[scales == 0] = 1
    return scales


class DerivedTensor(ComputedTensor):
    """A constant that a recipe or a simulation computes from a weight; it is not quantized again."""

    __slots__ = ()


def lazy(dtype: ir.DataType, shape: tuple[int, ...], compute: Callable[[], Array]) -> DerivedTensor:
    """Return a tensor that is computed whenever it is read."""
    return DerivedTensor(dtype, shape, lambda: np.ascontiguousarray(compute()).astype(dtype.numpy(), copy=False))
