"""Scales and integers of weights with the least error: a search for scales, and errors that compensate each other.

The range of a column or block may be clipped: a few large values then lose more, and all others less. Plain rounding is
one of the choices.

With the second moments H of the activation, an error E = W - Q of the weight costs tr(EᵀHE). H = R Rᵀ with an upper
triangle R, so the cost is the sum of squares of RᵀE, whose row i is R_ii E_i + Σ_{j<i} R_ji E_j. Rows are rounded in
order, each to the integers closest to W_i + Σ_{j<i} R_ji E_j / R_ii, which makes up for the errors of the rows before
it. This is what GPTQ computes from the inverse of H (Frantar et al., 2022). Scales of a block are searched for when it
is reached, on the values that its rows are expected to have then. Columns do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
from msgspec import Struct

from sardonyx.common.temporary import TemporaryFolder
from sardonyx.ir.storage import Array

RATIOS = {4: (0.95, 0.9, 0.85, 0.8), 8: (0.9, 0.8)}  # of the range of a block that are tried, beside all of it


def in_blocks(values: Array, size: int) -> Array:
    """Return rows × columns as blocks × size × columns; zeros pad the last block."""
    missing = -len(values) % size
    if missing:
        values = np.concatenate([values, np.zeros((missing, values.shape[1]), values.dtype)])
    return values.reshape(-1, size, values.shape[1])


def plain_blocks(blocks: Array, bits: int, ratio: float = 1.0, *, is_symmetric: bool = False) -> tuple[Array, Array]:
    """Return scales and zero points for a share of the range of each block, which includes 0.

    If they are symmetric, every zero point is the middle integer. The number of largest magnitude becomes the lowest
    integer, of which there is one more below the middle than above, so that scales have both signs. Scales are numbers
    of bfloat16, to which ONNX Runtime's kernels for ARM CPUs would truncate others.
    """
    if is_symmetric:
        middle, place = 1 << (bits - 1), np.abs(blocks).argmax(1)
        scales = _in_bfloat16(np.take_along_axis(blocks, place[:, None], 1)[:, 0] * np.float32(ratio / -middle))
        scales[scales == 0] = 1
        return scales, np.full_like(scales, middle)
    low, high = np.minimum(blocks.min(1), 0) * np.float32(ratio), np.maximum(blocks.max(1), 0) * np.float32(ratio)
    scales = ((high - low) / np.float32((1 << bits) - 1)).astype(np.float32)
    scales[scales == 0] = 1
    return scales, np.rint(-low / scales)


def best_scales(
    blocks: Array, bits: int, weights: Array | None = None, *, is_symmetric: bool = False
) -> tuple[Array, Array]:
    """Return the best of the plain scales, those of clipped ranges, and the least squares for the integers of these.

    The squared error of row k of a block counts `weights[block, k]` times.
    """
    scales, zeros = plain_blocks(blocks, bits, is_symmetric=is_symmetric)
    _, error = _steps(blocks, scales, zeros, bits, weights)
    for ratio in RATIOS[bits]:
        clipped, center = plain_blocks(blocks, bits, ratio, is_symmetric=is_symmetric)
        other = _steps(blocks, clipped, center, bits, weights)[1]
        better = other < error
        scales, zeros = np.where(better, clipped, scales), np.where(better, center, zeros)
        error = np.minimum(error, other)
    steps, error = _steps(blocks, scales, zeros, bits, weights)
    size = _sum(steps, steps, weights)
    solved = np.where(size > 0, _sum(blocks, steps, weights) / np.where(size > 0, size, 1), 0).astype(np.float32)
    solved = np.where(solved * scales > 0, _in_bfloat16(solved) if is_symmetric else solved, scales)
    better = _steps(blocks, solved, zeros, bits, weights)[1] < error
    return np.where(better, solved, scales), zeros


def _in_bfloat16(values: Array) -> Array:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def _steps(blocks: Array, scales: Array, zeros: Array, bits: int, weights: Array | None) -> tuple[Array, Array]:
    """Return how many scales each value is rounded to, and the squared error of each column of each block."""
    steps = blocks / scales[:, None]
    np.rint(steps, out=steps)
    np.clip(steps, -zeros[:, None], (1 << bits) - 1 - zeros[:, None], out=steps)
    difference = steps * scales[:, None]
    np.subtract(blocks, difference, out=difference)
    return steps, _sum(difference, difference, weights)


def _sum(a: Array, b: Array, weights: Array | None) -> Array:
    return np.einsum("kic,kic->kc", a, b) if weights is None else np.einsum("kic,kic,ki->kc", a, b, weights)


_ROWS_AT_ONCE = 32  # that are rounded before their errors are carried to the others
_DAMPING = 0.01  # of the mean square, added to that of every input, so that few samples do not decide everything


class Moments:
    """The second moments of an activation, and the integers of the weights that it is multiplied with, in files."""

    def __init__(self, moments: Array, folder: TemporaryFolder) -> None:
        """Store the moments in a folder, which is deleted with the last object that refers to it."""
        self._folder = folder
        self._moments = self._new_file(".npy")
        np.save(self._moments, moments)
        self._root: Path | None = None
        self._rounded: dict[tuple[object, ...], Path] = {}

    def array(self) -> Array:
        """Return the moments with a hundredth of the mean square added to the diagonal."""
        moments = np.load(self._moments)
        moments[np.diag_indices(len(moments))] += np.float32(_DAMPING * moments.diagonal().mean(dtype=np.float64))
        return moments

    def root(self) -> Array:
        """Return the upper root of the moments, which is computed once."""
        if self._root is None:
            root = upper_root(self.array())
            self._root = self._new_file(".npy")
            np.save(self._root, root)
        return np.load(self._root)

    def is_definite(self) -> bool:
        """Return whether the moments have a root, which rounding can prevent."""
        try:
            self.root()
        except np.linalg.LinAlgError:
            return False
        return True

    def rounded(self, key: tuple[object, ...], part: str, compute: Callable[[Array], Sequence[Rounded]]) -> Array:
        """Return a part of the compensated integers of a weight, whose columns are computed once, in groups."""
        if key not in self._rounded:
            groups = compute(self.root())
            self._rounded[key] = self._new_file(".npz")
            np.savez(
                self._rounded[key],
                integers=np.concatenate([group.integers for group in groups], -1),
                scales=np.concatenate([group.scales for group in groups], -1),
                zeros=np.concatenate([group.zeros for group in groups], -1).astype(np.uint8),
            )
        with np.load(self._rounded[key]) as stored:
            return stored[part]

    def _new_file(self, suffix: str) -> Path:
        folder = Path(self._folder.name)
        return folder / f"{len(list(folder.iterdir()))}{suffix}"


class Rounded(Struct, frozen=True, eq=False):
    """Columns of a weight as unsigned integers in blocks of rows, and what each column costs."""

    integers: Array  # blocks × size × columns; rows that pad the last block hold its zero points
    scales: Array  # blocks × columns
    zeros: Array
    cost: Array


def upper_root(moments: Array) -> Array:
    """Return the upper triangle R with R Rᵀ = H: the Cholesky factor of H with both axes reversed."""
    return np.ascontiguousarray(np.linalg.cholesky(moments[::-1, ::-1])[::-1, ::-1])


def compensated(values: Array, root: Array, bits: int, size: int, *, is_symmetric: bool = False) -> Rounded:
    """Return the cheapest integers of each column: rounded in order, or each to the closest, as without moments."""
    ordered = _in_order(values, root, bits, size, is_symmetric=is_symmetric)
    blocks = in_blocks(values, size)
    best = _closest(blocks, root, bits, *plain_blocks(blocks, bits, is_symmetric=is_symmetric))
    for other in (_closest(blocks, root, bits, ordered.scales, ordered.zeros), ordered):
        better = other.cost < best.cost
        best = Rounded(
            np.where(better, other.integers, best.integers),
            np.where(better, other.scales, best.scales),
            np.where(better, other.zeros, best.zeros),
            np.where(better, other.cost, best.cost),
        )
    return best


def _in_order(values: Array, root: Array, bits: int, size: int, *, is_symmetric: bool = False) -> Rounded:
    rows, columns = values.shape
    count, most = -(-rows // size), (1 << bits) - 1
    integers = np.empty((count * size, columns), np.uint8)
    scales, zeros = np.empty((count, columns), np.float32), np.empty((count, columns), np.float32)
    errors, cost = np.empty_like(values), np.zeros(columns)
    for number, start in enumerate(range(0, rows, size)):
        stop = min(start + size, rows)
        expected, corner = values[start:stop], root[start:stop, start:stop]
        if start:
            expected = expected + np.linalg.solve(corner.T, root[:start, start:stop].T @ errors[:start])
        squares = np.square(corner.diagonal())[None]
        scale, zero = (each[0] for each in best_scales(expected[None], bits, squares, is_symmetric=is_symmetric))
        for top in range(start, stop, _ROWS_AT_ONCE):
            part = slice(top, min(top + _ROWS_AT_ONCE, stop))
            integers[part], added = _round_rows(values, errors, root, part, scale, zero, most)
            cost += added
        integers[stop : start + size] = zero
        scales[number], zeros[number] = scale, zero
    return Rounded(integers.reshape(count, size, columns), scales, zeros, cost)


def _round_rows(
    values: Array, errors: Array, root: Array, rows: slice, scale: Array, zero: Array, most: int
) -> tuple[Array, Array]:
    """Return the integers of some rows and what they add to the cost; their errors follow those of the rows before."""
    block, own = values[rows], errors[rows]
    levels, cost = np.empty_like(block), np.zeros(block.shape[1])
    corner = np.ascontiguousarray(root[rows, rows].T)
    carried = root[: rows.start, rows].T @ errors[: rows.start]
    for row, weight in enumerate(corner.diagonal()):
        target = block[row] + (carried[row] + corner[row, :row] @ own[:row]) / weight
        steps = np.clip(np.rint(target / scale), -zero, most - zero)
        levels[row] = steps + zero
        steps *= scale
        own[row] = block[row] - steps
        cost += np.square(weight * (target - steps), dtype=np.float64)
    return levels, cost


def _closest(blocks: Array, root: Array, bits: int, scales: Array, zeros: Array) -> Rounded:
    levels = np.clip(np.rint(blocks / scales[:, None]) + zeros[:, None], 0, (1 << bits) - 1)
    errors = (blocks - (levels - zeros[:, None]) * scales[:, None]).reshape(-1, blocks.shape[-1])[: len(root)]
    cost = np.square(root.T @ errors, dtype=np.float64).sum(0)
    return Rounded(levels.astype(np.uint8), scales, zeros, cost)
