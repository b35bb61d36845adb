"""Write the transpose of a tensor that lies in a file, a block at a time.

Axes that stay together are one axis, so most permutations come down to swapping the rows and columns of matrices whose
elements are a few bytes or more. Of the two ways to go through a matrix, the one with the longer runs in the file is
taken: read rows and scatter columns, or gather columns and write rows. Inside a block, tiles keep to the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.graph.storage import BLOCK, Array, SourceFile, as_bytes, write_all

_TILE = 128


@dataclass(frozen=True, slots=True)
class Swap:
    """`batch` matrices of rows × columns elements, `width` bytes each, to be transposed."""

    batch: int
    rows: int
    columns: int
    width: int


def as_swap(shape: Sequence[int], perm: Sequence[int], itemsize: int) -> Swap | None:
    """The permutation as a swap of two neighbouring groups of axes, if it is one."""
    axes = [axis for axis in perm if shape[axis] != 1]
    order = sorted(axes)
    first = next((i for i, axis in enumerate(axes) if axis != order[i]), None)
    if first is None:
        return Swap(1, 1, math.prod(shape), itemsize)
    last = max(i for i, axis in enumerate(axes) if axis != order[i]) + 1
    split = order.index(axes[first])  # where the group that moves to the front begins
    if axes[first:last] != order[split:last] + order[first:split]:
        return None
    size = [shape[axis] for axis in order]
    batch, rows, columns, inner = (
        math.prod(part) for part in (size[:first], size[first:split], size[split:last], size[last:])
    )
    return Swap(batch, rows, columns, inner * itemsize)


def write_swapped(file: SourceFile, offset: int, swap: Swap, fd: int, position: int) -> None:
    """Write the transposed matrices to an open file."""
    size = swap.rows * swap.columns * swap.width
    write = _scatter if size <= BLOCK or swap.rows >= swap.columns else _gather
    for index in range(swap.batch if size else 0):
        write(file, offset + index * size, swap, fd, position + index * size)


def _scatter(file: SourceFile, offset: int, swap: Swap, fd: int, position: int) -> None:
    """Read whole rows; each column of the block is a run in the output."""
    step = min(swap.rows, max(1, BLOCK // (swap.columns * swap.width)))
    data, turned = _buffers(step, swap.columns, swap.width)
    for start in range(0, swap.rows, step):
        count = min(step, swap.rows - start)
        file.read_into(as_bytes(data[:count]), offset + start * swap.columns * swap.width)
        _turn(data[:count], turned)
        if count == swap.rows:  # all of it: the columns follow each other
            write_all(fd, as_bytes(turned), position)
            return
        run = count * swap.width
        for column in range(swap.columns):
            at = position + (column * swap.rows + start) * swap.width
            write_all(fd, as_bytes(turned[column])[:run], at)


def _gather(file: SourceFile, offset: int, swap: Swap, fd: int, position: int) -> None:
    """Read a run of every row; the columns of the block are one piece of the output."""
    step = min(swap.columns, max(1, BLOCK // (swap.rows * swap.width)))
    data, turned = _buffers(swap.rows, step, swap.width)
    for start in range(0, swap.columns, step):
        count = min(step, swap.columns - start)
        for row in range(swap.rows):
            file.read_into(as_bytes(data[row, :count]), offset + (row * swap.columns + start) * swap.width)
        _turn(data[:, :count], turned[:count])
        write_all(fd, as_bytes(turned[:count]), position + start * swap.rows * swap.width)


def _buffers(rows: int, columns: int, width: int) -> tuple[Array, Array]:
    """A block and its transpose, of elements that numpy can move."""
    element = np.dtype(f"u{width}") if width in (1, 2, 4, 8) else np.dtype((np.void, width))
    return np.empty((rows, columns), element), np.empty((columns, rows), element)


def _turn(block: Array, turned: Array) -> None:
    rows, columns = block.shape
    for i in range(0, columns, _TILE):
        for j in range(0, rows, _TILE):
            tile = block[j : j + _TILE, i : i + _TILE].T
            turned[i : i + _TILE, j : j + tile.shape[1]] = tile
