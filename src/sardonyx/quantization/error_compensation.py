"""Integers of a weight whose rounding errors compensate each other in the result of the product.

With the second moments H of the activation, an error E = W - Q of the weight costs tr(EᵀHE). H = R Rᵀ with an upper
triangle R, so the cost is the sum of squares of RᵀE, whose row i is R_ii E_i + Σ_{j<i} R_ji E_j. Rows are rounded in
order, each to the integers closest to W_i + Σ_{j<i} R_ji E_j / R_ii, which makes up for the errors of the rows before
it. This is what GPTQ computes from the inverse of H (Frantar et al., 2022). Scales of a block are searched for when it
is reached, on the values that its rows are expected to have then. Columns do not depend on each other.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct

from sardonyx.ir.storage import Array
from sardonyx.quantization.scales import best_scales, identity, in_blocks, plain_blocks

if TYPE_CHECKING:
    from sardonyx.quantization.weights import Blocks

_ROWS = 32  # that are rounded before their errors are carried to the others
_DAMPING = 0.01  # of the mean square, added to that of every input, so that few samples do not decide everything


class Moments:
    """The second moments of an activation, and the integers of the weights that it is multiplied with, in files."""

    def __init__(self, moments: Array, folder: TemporaryDirectory[str]) -> None:
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

    def rounded(self, blocks: Blocks, part: Literal["integers", "scales", "zeros"]) -> Array:
        """Return a part of the compensated integers of a weight; they are computed once."""
        matrix, bits, size, is_symmetric = blocks.matrix, blocks.bits, blocks.size, blocks.is_symmetric
        key = (*identity(matrix), bits, size, is_symmetric)
        if key not in self._rounded:
            root = self.root()
            groups = [
                compensated(values, root, bits, size, is_symmetric=is_symmetric) for values in matrix.column_groups()
            ]
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
        for top in range(start, stop, _ROWS):
            part = slice(top, min(top + _ROWS, stop))
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
