"""Memory that a kernel takes only while it runs; what is not listed here was measured to take none worth counting.

Found by watching torch's allocators around single operators (`benchmarks/allocations.py`):

- A softmax that gives zeros for rows that are masked whole looks which numbers and which rows are masked.
- Attention in one kernel on the CPU keeps, for each thread, a tile of scores, two numbers a row, a tile of the result.
- A convolution on the CPU (oneDNN) works on copies of its input and weight in blocks of channels, as wide as the
  machine's vectors, and answers in such blocks, of which the plain answer is copied at the end. An input of few
  channels is read as it is, and so is everything where the padding is wide. With channels last only weights are copied.
  One of a single small picture unrolls its windows instead, and a pointwise one of such needs nothing.
- A convolution on CUDA (cuDNN) copies input and weight into channels-last order, channels filled up to 16 bytes, and
  copies the answer back; in float32 only where the channels fill them by themselves, else it needs nothing. What it
  takes for one in groups follows no rule that we know, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

import torch

from sardonyx.analysis.costs.program import ITEM_BYTES, Value
from sardonyx.ir.shapes.expr import Size, add, floor_quotient, larger, multiply, product, smaller, subtract, total

_KEY_TILE = 512
_ALIGNED = 16  # bytes
_WIDEST_PADDING = 8  # measured: wider ones are not computed in blocks
_SMALL_PICTURE = 20480  # numbers
_LARGE_WINDOW = 3


@dataclass(frozen=True, slots=True)
class Machine:
    """What a kernel's needs depend on beside its shapes."""

    device: str  # "cpu", "cuda"
    threads: int
    block: int  # channels to a block of oneDNN

    @classmethod
    def here(cls, device: str) -> Machine:
        """The one we are on."""
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
    """Bytes beside its inputs and outputs that an operation holds while it runs.

    Args:
        last: Its first input lies in memory with the channels last.
    """
    if operator == "aten._safe_softmax":
        return _masked(reads[0], cast(int, scalars["dim"]))
    if operator == "aten._scaled_dot_product_flash_attention_for_cpu":
        return multiply(on.threads, _tiles(reads[0], reads[1], reads[2]))
    if operator != "aten.convolution" or scalars.get("transposed"):
        return 0
    if on.device == "cpu":
        return _convolution(reads[0], reads[1], writes[0], scalars, last, on.block)
    return _copies(reads[0], reads[1], writes[0], cast(int, scalars["groups"]), last) if on.device == "cuda" else 0


def _masked(scores: Value, axis: int) -> Size:
    """Which numbers and which rows are masked, a byte each."""
    rows = list(scores.shape)
    rows[axis] = 1
    return add(scores.elements, product(rows))


def _tiles(query: Value, key: Value, value: Value) -> Size:
    rows = smaller(_query_tile(query.shape[-2]), query.shape[-2])
    columns = smaller(_KEY_TILE, key.shape[-2])
    numbers = total((multiply(rows, columns), multiply(2, rows), multiply(rows, value.shape[-1])))
    return multiply(ITEM_BYTES["float32"], numbers)


def _query_tile(length: Size) -> Size:
    """32 rows, from a length of 192 on 64, from 768 on 256."""
    long, longer = (smaller(1, floor_quotient(length, threshold)) for threshold in (192, 768))
    return total((32, multiply(32, long), multiply(192, longer)))


def _copies(source: Value, weight: Value, result: Value, groups: int, last: bool) -> Size:
    block = _ALIGNED // ITEM_BYTES[source.dtype]
    unaligned = source.dtype == "float32" and source.shape[1] != _whole(source.shape[1], block)
    if groups > 1 or last or unaligned:
        return 0
    return total(_blocked(value, (1,), block) for value in (source, weight, result))


def _convolution(
    source: Value, weight: Value, result: Value, scalars: Mapping[str, object], last: bool, lanes: int
) -> Size:
    window, groups = cast("tuple[int, ...]", weight.shape[2:]), cast(int, scalars["groups"])
    pointwise = prod(window) == 1
    if not _in_blocks(source, window, groups):
        spread = product((*result.shape[2:], weight.shape[1], *window, ITEM_BYTES[source.dtype]))
        return 0 if pointwise else spread
    depthwise = groups > 1 and weight.shape[1] == 1
    if last:
        return weight.bytes if depthwise or pointwise else multiply(2, weight.bytes)
    if max(cast("Sequence[int]", scalars["padding"])) > _WIDEST_PADDING:
        return result.bytes
    block = lanes if groups == 1 or depthwise else 1
    few = groups == 1 and not pointwise and isinstance(source.shape[1], int) and source.shape[1] < lanes
    answer = _blocked(result, (1,), block)
    copies = _blocked(weight, (0,), block) if few or depthwise else _blocked(weight, (0, 1), block)
    copies = copies if few else add(copies, _blocked(source, (1,), block))
    return larger(subtract(add(copies, answer), result.bytes), answer)


def _in_blocks(source: Value, window: Sequence[int], groups: int) -> bool:
    """Whether torch hands it to oneDNN; for sizes that are open it is taken to be large enough."""
    if groups > 1 or (min(window) > _LARGE_WINDOW and len(window) > 1) or len(window) > 2:
        return True
    several = source.shape[0] != 1
    return several or not isinstance(source.elements, int) or source.elements > _SMALL_PICTURE


def _blocked(value: Value, axes: Sequence[int], block: int) -> Size:
    """Its bytes with these axes filled up to whole blocks."""
    shape = list(value.shape)
    for axis in axes:
        shape[axis] = _whole(shape[axis], block)
    return product((*shape, ITEM_BYTES[value.dtype]))


def _whole(size: Size, block: int) -> Size:
    """Filled up to whole blocks."""
    return multiply(block, floor_quotient(add(size, block - 1), block))
