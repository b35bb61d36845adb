"""Weights as integers with scales: for each column, for each row, or in blocks along the summed axis.

Everything is computed from the source tensor on demand, and in pieces: weights stay on disk until the file is written,
and the memory does not depend on their size. `simulation` computes the same numbers in another way, to check these. On
a CPU that adds pairs of 8-bit products with saturation, as some x86 CPUs without VNNI do, weights of such products have
7 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Literal

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
from msgspec import Struct

from sardonyx import runtime
from sardonyx.ir.precision import Impossible
from sardonyx.ir.storage import Array
from sardonyx.ir.tensors import ComputedTensor, ConcatTensor, FileTensor, stripes
from sardonyx.verbs.quantize.scales import RATIOS, Moments, best_scales, compensated, in_blocks, plain_blocks

SIGNED_MOST = 127  # -128 is not used, so that the range is symmetric
REDUCED_MOST = 63  # 2 * 255 * 63 is less than 2 ** 15: sums of two products fit
_ROWS, _SUMMED, _COLUMNS = 5, 64, 32
_SATURATION = """<ir_version: 8, opset_import: ["" : 13]>
saturation () => (int32[m, n] total) { total = MatMulInteger (levels, weight) }"""


@cache
def saturates() -> bool:
    """Return whether a product of the largest 8-bit integers is wrong on this CPU; it is computed once."""
    levels = np.full((_ROWS, _SUMMED), 255, np.uint8)
    weight = np.full((_SUMMED, _COLUMNS), 127, np.int8)
    weight[:, 1::2] = -128
    model = onnx.parser.parse_model(_SATURATION)
    arrays = {"levels": levels, "weight": weight}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    (total,) = runtime.evaluate(model)
    return not np.array_equal(total, levels.astype(np.int32) @ weight.astype(np.int32))


def most_of_products() -> int:
    """Return the largest integer of a weight whose products with 8-bit activations this CPU adds without an error."""
    return REDUCED_MOST if saturates() else SIGNED_MOST


NOT_FINITE = "the weight has infinities or NaN"
_STRIPE = 1 << 22  # elements that are read at a time
_PIECE = 1 << 16  # elements that are computed at a time, which fit into the cache
_KEPT_BYTES = 1 << 26  # of scales that are kept, because every tensor of a weight is computed on its own
_kept: dict[tuple[object, ...], tuple[Array, ...]] = {}


class Matrix(Struct, frozen=True, eq=False):
    """A constant weight of `rows` summed inputs and `columns` outputs, whichever way it is stored."""

    tensor: ir.TensorProtocol
    is_transposed: bool  # stored as columns × rows
    moments: Moments | None = None  # of the activation that it is multiplied with, if there are samples of it

    @property
    def shape(self) -> tuple[int, int]:
        """The rows and the columns."""
        first, second = (int(size) for size in self.tensor.shape.numpy())
        return (second, first) if self.is_transposed else (first, second)

    @property
    def rows(self) -> int:
        """The length of the summed axis."""
        return self.shape[0]

    @property
    def columns(self) -> int:
        """The number of outputs."""
        return self.shape[1]

    def identity(self) -> tuple[object, ...]:
        """Return what identifies the values; tensors of a file are created anew for each candidate."""
        return (*_place(self.tensor), self.is_transposed)

    def array(self) -> Array:
        """Return the values as rows × columns."""
        values = self.tensor.numpy()
        return values.T if self.is_transposed else values

    def pieces(self, multiple: int = 1) -> Iterator[tuple[slice, slice, Array]]:
        """Return the rows, the columns and the values of small pieces; each starts at a multiple of `multiple` rows."""
        width = self.tensor.shape.numpy()[1]
        step = max(1, _STRIPE // width) if self.is_transposed else max(1, _STRIPE // width // multiple) * multiple
        for start, stripe in stripes(self.tensor, step):
            values = stripe.T if self.is_transposed else stripe
            rows, columns = (0, start) if self.is_transposed else (start, 0)
            tall = max(1, _PIECE // values.shape[1] // multiple) * multiple
            wide = max(1, _PIECE // min(tall, len(values)))
            for top in range(0, len(values), tall):
                for left in range(0, values.shape[1], wide):
                    piece = np.ascontiguousarray(values[top : top + tall, left : left + wide])
                    height, breadth = piece.shape
                    yield slice(rows + top, rows + top + height), slice(columns + left, columns + left + breadth), piece

    def column_groups(self) -> Iterator[Array]:
        """Return all rows of some columns at a time."""
        step = max(1, _STRIPE // self.rows)
        if self.is_transposed:
            yield from (np.ascontiguousarray(stripe.T) for _, stripe in stripes(self.tensor, step))
        else:
            values = self.array()
            for start in range(0, self.columns, step):
                yield np.ascontiguousarray(values[:, start : start + step])

    def check_finite(self) -> None:
        """Refuse a weight with infinities or NaN.

        Raises:
            Impossible: if it has some.
        """
        if not all(np.isfinite(values).all() for _, _, values in self.pieces()):
            raise Impossible(NOT_FINITE)


def _place(tensor: ir.TensorProtocol) -> tuple[object, ...]:
    if isinstance(tensor, ConcatTensor):
        return tuple(_place(part) for part in tensor.parts)
    return (tensor.file.path, tensor.file.stamp, tensor.offset) if isinstance(tensor, FileTensor) else (tensor,)


def _kept_or(key: tuple[object, ...], compute: Callable[[], tuple[Array, ...]]) -> tuple[Array, ...]:
    """Return the arrays of a key, computed unless they are kept; those that were read last are."""
    arrays = _kept[key] = _kept.pop(key, None) or compute()
    while len(_kept) > 1 and sum(each.nbytes for kept in _kept.values() for each in kept) > _KEPT_BYTES:
        del _kept[next(iter(_kept))]
    return arrays


class Blocks(Struct, frozen=True, eq=False):
    """A weight as unsigned integers of `bits` with a scale and a zero point for each column of each block of rows.

    With moments of its activation, the rounding errors compensate each other; otherwise integers are the closest.
    """

    matrix: Matrix
    bits: int
    size: int  # rows of a block; the last one may be shorter
    is_symmetric: bool = False  # every zero point is the middle integer

    @property
    def count(self) -> int:
        """The number of blocks."""
        return -(-self.matrix.rows // self.size)

    def integers(self) -> Array:
        """Return the integers as blocks × size × columns; rows that pad the last block hold its zero points."""
        if self.matrix.moments is not None:
            return self._part("integers")
        scales, zeros = self._plain()
        result = np.empty((self.count, self.size, self.matrix.columns), np.uint8)
        for rows, columns, values in self.matrix.pieces(self.size):
            blocks = in_blocks(values, self.size)
            where = slice(rows.start // self.size, rows.start // self.size + len(blocks))
            steps = np.rint(blocks / scales[where, None, columns]) + zeros[where, None, columns]
            result[where, :, columns] = np.clip(steps, 0, (1 << self.bits) - 1)
        return result

    def scales(self) -> Array:
        """Return the scales as blocks × columns."""
        return self._plain()[0] if self.matrix.moments is None else self._part("scales")

    def zero_points(self) -> Array:
        """Return the zero points as blocks × columns; 0 is represented exactly."""
        return self._plain()[1] if self.matrix.moments is None else self._part("zeros")

    def _key(self) -> tuple[object, ...]:
        return (*self.matrix.identity(), self.bits, self.size, self.is_symmetric)

    def _part(self, part: Literal["integers", "scales", "zeros"]) -> Array:
        """Return a part of the integers whose errors compensate each other."""
        matrix, moments = self.matrix, self.matrix.moments
        assert moments is not None
        return moments.rounded(
            self._key(),
            part,
            lambda root: [
                compensated(values, root, self.bits, self.size, is_symmetric=self.is_symmetric)
                for values in matrix.column_groups()
            ],
        )

    def _plain(self) -> tuple[Array, Array]:
        """Return the scales and the zero points of the integers that are the closest."""

        def compute() -> tuple[Array, Array]:
            shape = (self.count, self.matrix.columns)
            scales, zeros = np.empty(shape, np.float32), np.empty(shape, np.uint8)
            for rows, columns, values in self.matrix.pieces(self.size):
                blocks = in_blocks(values, self.size)
                where = slice(rows.start // self.size, rows.start // self.size + len(blocks))
                find = plain_blocks if self.is_symmetric else best_scales
                scales[where, columns], zeros[where, columns] = find(blocks, self.bits, is_symmetric=self.is_symmetric)
            return scales, zeros

        scales, zeros = _kept_or(self._key(), compute)
        return scales, zeros


def largest_scales(values: Array, axis: int, most: int) -> Array:
    """Return the scales for signed integers of at most `most`, one for all numbers along an axis; 1 if all are 0."""
    scales = (np.maximum(values.max(axis), -values.min(axis)) / np.float32(most)).astype(np.float32)
    scales[scales == 0] = 1
    return scales


def signed(matrix: Matrix, scales: Array, filters: tuple[int, ...] = ()) -> Array:
    """Return a matrix, or filters of a shape, as signed 8-bit integers with these scales of the outputs."""
    integers = np.rint(matrix.array() / scales).astype(np.int8)
    return integers.T.reshape(filters) if filters else integers


def column_scales(matrix: Matrix, most: int = SIGNED_MOST, *, is_one: bool = False) -> Array:
    """Return the scale of each column for signed integers of at most `most`: the best of some shares of its range.

    With `is_one`, all columns have the same, which is the best for the whole weight.
    """

    def compute() -> tuple[Array]:
        largest = np.zeros(matrix.columns, np.float32)
        for _, columns, values in matrix.pieces():
            np.maximum(largest[columns], np.maximum(values.max(0), -values.min(0)), out=largest[columns])
        if is_one:
            largest[:] = largest.max()
        scales = (largest / np.float32(most)).astype(np.float32)
        scales[scales == 0] = 1
        ratios = np.array((1.0, *RATIOS[8]), np.float32)
        errors = np.zeros((len(ratios), matrix.columns))
        for _, columns, values in matrix.pieces():
            for number, ratio in enumerate(ratios):
                scale = scales[columns] * ratio
                difference = values - np.clip(np.rint(values / scale), -most, most) * scale
                errors[number, columns] += np.einsum("kc,kc->c", difference, difference)
        if is_one:
            errors = errors.sum(1, keepdims=True)
        return (scales * ratios[errors.argmin(0)],)

    return _kept_or((*matrix.identity(), most, is_one), compute)[0]


def signed_columns(matrix: Matrix, most: int = SIGNED_MOST, *, is_one: bool = False) -> Array:
    """Return the weight as signed 8-bit integers of at most `most` with these scales, as it is stored."""
    scale = column_scales(matrix, most, is_one=is_one)
    result = np.empty(matrix.tensor.shape.numpy(), np.int8)
    view = result.T if matrix.is_transposed else result
    for rows, columns, values in matrix.pieces():
        view[rows, columns] = np.clip(np.rint(values / scale[columns]), -most, most)
    return view


class DerivedTensor(ComputedTensor):
    """A constant that a recipe or a simulation computes from a weight; it is not quantized again."""

    __slots__ = ()


class SimulatedTensor(DerivedTensor):
    """A weight of a simulation, which is never written: what is wrong in it shows when results are compared."""

    __slots__ = ()
    is_checked = False


def lazy(dtype: ir.DataType, shape: tuple[int, ...], compute: Callable[[], Array]) -> DerivedTensor:
    """Return a tensor that is computed whenever it is read."""
    return DerivedTensor(dtype, shape, lambda: np.asarray(compute(), order="C").astype(dtype.numpy(), copy=False))


def simulated(shape: tuple[int, ...], compute: Callable[[], Array]) -> SimulatedTensor:
    """Return float32 numbers of a simulation that are computed whenever they are read."""
    return SimulatedTensor(ir.DataType.FLOAT, shape, lambda: np.asarray(compute(), np.float32, order="C"))
