"""Memory that a kernel takes only while it runs; what is not listed here was measured to take none worth counting.

Found by watching torch's allocator around single operators on the CPU (`benchmarks/allocations.py`):

- Attention in one kernel keeps, for each thread, a tile of scores, two numbers a row and a tile of the result.
- A convolution on plain layouts (oneDNN) works on copies of its input and weight in blocks of channels, as wide as
  the machine's vectors, and answers in such blocks, of which the plain answer is copied at the end. An input of few
  channels is read as it is, and so is everything where the padding is wide. With channels last only weights are copied.
- A convolution of one small picture unrolls its windows instead, and a pointwise one needs nothing.

A GPU's libraries choose by trying; what they take is measured in `benchmarks/memory-gpu.md` and not foretold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import cast

import torch

from sardonyx.costs.program import ITEM_BYTES, Value
from sardonyx.graph.shapes.expr import Size, add, floor_quotient, larger, multiply, product, smaller, subtract, total

_KEY_TILE = 512
_WIDEST_PADDING = 8  # measured: wider ones are not computed in blocks
_SMALL_PICTURE = 20480  # numbers
_LARGE_WINDOW = 3


def workspace(
    operator: str, reads: Sequence[Value], writes: Sequence[Value], scalars: Mapping[str, object], last: bool
) -> Size:
    """Bytes beside its inputs and outputs that an operation holds on the CPU while it runs.

    Args:
        last: Its first input lies in memory with the channels last.
    """
    if operator == "aten._scaled_dot_product_flash_attention_for_cpu":
        return _attention(reads[0], reads[1], reads[2])
    if operator == "aten.convolution" and not scalars.get("transposed"):
        return _convolution(reads[0], reads[1], writes[0], scalars, last)
    return 0


def _attention(query: Value, key: Value, value: Value) -> Size:
    rows = smaller(_query_tile(query.shape[-2]), query.shape[-2])
    columns = smaller(_KEY_TILE, key.shape[-2])
    numbers = total((multiply(rows, columns), multiply(2, rows), multiply(rows, value.shape[-1])))
    return product((torch.get_num_threads(), ITEM_BYTES["float32"], numbers))


def _query_tile(length: Size) -> Size:
    """32 rows, from a length of 192 on 64, from 768 on 256."""
    long, longer = (smaller(1, floor_quotient(length, threshold)) for threshold in (192, 768))
    return total((32, multiply(32, long), multiply(192, longer)))


def _convolution(source: Value, weight: Value, result: Value, scalars: Mapping[str, object], last: bool) -> Size:
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
    block = _block() if groups == 1 or depthwise else 1
    few = groups == 1 and not pointwise and isinstance(source.shape[1], int) and source.shape[1] < _block()
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


def _block() -> int:
    return 16 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 8


def _blocked(value: Value, axes: Sequence[int], block: int) -> Size:
    """Its bytes with these axes filled up to whole blocks."""
    shape = list(value.shape)
    for axis in axes:
        shape[axis] = multiply(block, floor_quotient(add(shape[axis], block - 1), block))
    return product((*shape, ITEM_BYTES[value.dtype]))
