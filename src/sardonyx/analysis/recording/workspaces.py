"""The workspaces of kernels: memory that is allocated only while they run. Operators not listed here need almost none.

The rules were measured with torch's allocators around single operators (`benchmarks/allocations.py`):

- A softmax that returns zeros for fully masked rows computes which elements and which rows are masked.
- Fused attention on the CPU allocates for each thread a tile of scores, two numbers per row and a tile of the result.
- A convolution on the CPU (oneDNN) copies its input and weight into blocks of channels as wide as the vectors of the
  machine, and computes the result in such blocks, which is copied at the end. An input with few channels is not
  copied, and nothing is copied if the padding is wide. With channels last, only weights are copied. For one small image
  the windows are unrolled instead; a pointwise convolution of one needs nothing.
- A convolution on CUDA (cuDNN) copies input and weight into channels-last order with channels padded to 16 bytes, and
  copies the result back; in float32 only if the channels need no padding, otherwise it needs nothing. Grouped
  convolutions follow no known rule and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import cast

import torch
from msgspec import Struct

from sardonyx.analysis.costs.program import ITEM_BYTES, Value
from sardonyx.ir.shapes.expr import Size, add, floor_quotient, larger, multiply, product, smaller, subtract, total

_KEY_TILE = 512
_ALIGNED = 16  # bytes
_WIDEST_PADDING = 8  # measured: with wider padding no blocks are used
_SMALL_IMAGE = 20480  # elements
_LARGE_WINDOW = 3


class Machine(Struct, frozen=True):
    """The properties of a machine that workspaces depend on."""

    device: str  # "cpu", "cuda"
    threads: int
    block: int  # channels in a block of oneDNN

    @classmethod
    def here(cls, device: str) -> Machine:
        """Return the properties of this machine."""
        wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        return cls(device, torch.get_num_threads(), 16 if wide else 8)


def workspace(
    operator: str,
    reads: Sequence[Value],
    writes: Sequence[Value],
    scalars: Mapping[str, object],
    last: bool,
    on: Machine,
) -> Size:
    """Return the bytes that an operation allocates while it runs, in addition to its outputs.

    Args:
        operator: The operator, such as "aten.convolution".
        reads: Its input tensors.
        writes: Its output tensors.
        scalars: Its other arguments.
        last: Whether its first input is in channels-last order.
        on: The machine.
    """
    if operator == "aten._safe_softmax":
        return _mask_bytes(reads[0], cast(int, scalars["dim"]))
    if operator == "aten._scaled_dot_product_flash_attention_for_cpu":
        return multiply(on.threads, _tiles(reads[0], reads[1], reads[2]))
    if operator != "aten.convolution" or scalars.get("transposed"):
        return 0
    if on.device == "cpu":
        return _convolution(reads[0], reads[1], writes[0], scalars, last, on.block)
    return _copies(reads[0], reads[1], writes[0], cast(int, scalars["groups"]), last) if on.device == "cuda" else 0


def _mask_bytes(scores: Value, axis: int) -> Size:
    """Return one byte for each element and one for each row."""
    rows = list(scores.shape)
    rows[axis] = 1
    return add(scores.elements, product(rows))


def _tiles(query: Value, key: Value, value: Value) -> Size:
    rows = smaller(_query_tile(query.shape[-2]), query.shape[-2])
    columns = smaller(_KEY_TILE, key.shape[-2])
    numbers = total((multiply(rows, columns), multiply(2, rows), multiply(rows, value.shape[-1])))
    return multiply(ITEM_BYTES["float32"], numbers)


def _query_tile(length: Size) -> Size:
    """Return the rows of a tile: 32, from a length of 192 on 64, from 768 on 256."""
    long, longer = (smaller(1, floor_quotient(length, threshold)) for threshold in (192, 768))
    return total((32, multiply(32, long), multiply(192, longer)))


def _copies(source: Value, weight: Value, result: Value, groups: int, last: bool) -> Size:
    block = _ALIGNED // ITEM_BYTES[source.dtype]
    unaligned = source.dtype == "float32" and source.shape[1] != _padded(source.shape[1], block)
    if groups > 1 or last or unaligned:
        return 0
    return total(_blocked(value, (1,), block) for value in (source, weight, result))


def _convolution(
    source: Value, weight: Value, result: Value, scalars: Mapping[str, object], last: bool, lanes: int
) -> Size:
    window, groups = cast("tuple[int, ...]", weight.shape[2:]), cast(int, scalars["groups"])
    pointwise = prod(window) == 1
    if not _in_blocks(source, window, groups):
        unrolled = product((*result.shape[2:], weight.shape[1], *window, ITEM_BYTES[source.dtype]))
        return 0 if pointwise else unrolled
    depthwise = groups > 1 and weight.shape[1] == 1
    if last:
        return weight.bytes if depthwise or pointwise else multiply(2, weight.bytes)
    if max(cast("Sequence[int]", scalars["padding"])) > _WIDEST_PADDING:
        return result.bytes
    block = lanes if groups == 1 or depthwise else 1
    few = groups == 1 and not pointwise and isinstance(source.shape[1], int) and source.shape[1] < lanes
    output = _blocked(result, (1,), block)
    copies = _blocked(weight, (0,), block) if few or depthwise else _blocked(weight, (0, 1), block)
    copies = copies if few else add(copies, _blocked(source, (1,), block))
    return larger(subtract(add(copies, output), result.bytes), output)


def _in_blocks(source: Value, window: Sequence[int], groups: int) -> bool:
    """Return whether torch uses oneDNN; dynamic sizes are assumed to be large enough."""
    if groups > 1 or (min(window) > _LARGE_WINDOW and len(window) > 1) or len(window) > 2:
        return True
    several = source.shape[0] != 1
    return several or not isinstance(source.elements, int) or source.elements > _SMALL_IMAGE


def _blocked(value: Value, axes: Sequence[int], block: int) -> Size:
    """Return the bytes of a tensor with these axes padded to whole blocks."""
    shape = list(value.shape)
    for axis in axes:
        shape[axis] = _padded(shape[axis], block)
    return product((*shape, ITEM_BYTES[value.dtype]))


def _padded(size: Size, block: int) -> Size:
    """Round a size up to whole blocks."""
    return multiply(block, floor_quotient(add(size, block - 1), block))
