"""The fewest nodes that bring about a movement of elements: a view, a Transpose between views, or a Gather of rows.

A movement that is a mixed-radix exchange of digits is a Transpose; its factors are split at the dims of the source and
of the result, so that no view is needed where the dims fit. Any other is a Gather of whole rows. A Gather copies long
rows faster than a Transpose does, and needs no view of its result; of short rows it would be slow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.passes.layout._digits import Factor, fits, in_source, split
from sardonyx.passes.layout._movement import Movement

SHORTEST_ROW = 32  # elements from which on gathering rows is no slower than a Transpose


@dataclass(frozen=True, slots=True, eq=False)
class LayoutStep:
    """One node: a Reshape to `numbers`, a Transpose by them, or a Gather of them along `axis`."""

    op_type: str
    numbers: tuple[int, ...] | np.ndarray
    axis: int = 0


def arrangements(what: Movement, most: int, *, rows: bool = True) -> Iterator[tuple[LayoutStep, ...]]:
    """Ways to bring about a movement with at most so many nodes; gathering rows only where asked for."""
    if what.factors is not None and len(what.factors) <= 1:
        yield () if what.whole and what.source == what.result else (_view(what),)
        return
    if what.factors is not None:
        yield from (steps for steps in _transposes(what, what.factors) if len(steps) <= most)
    if rows and what.origin is not None:
        yield from _gathers(what, what.origin, most)


def copies(steps: Sequence[LayoutStep]) -> int:
    """How many of the nodes copy their input."""
    return sum(step.op_type != "Reshape" for step in steps)


def build(steps: Sequence[LayoutStep], source: ir.Value, op: Builder) -> ir.Value:
    """The nodes of an arrangement."""
    value = source
    for step in steps:
        numbers = np.asarray(step.numbers, np.int64)
        match step.op_type:
            case "Reshape":
                value = op.Reshape(value, op.constant(numbers, "target"))
            case "Transpose":
                value = op.Transpose(value, perm=numbers.tolist())
            case _:
                value = op.Gather(value, op.constant(np.ascontiguousarray(numbers), "rows"), axis=step.axis)
    return value


def _view(what: Movement) -> LayoutStep:
    """A Reshape to the result's shape."""
    if not what.free:
        return LayoutStep("Reshape", what.result)
    return LayoutStep("Reshape", (0, *what.result) if what.whole else (-1, *what.result[1:]))


def _transposes(what: Movement, factors: Sequence[Factor]) -> Iterator[tuple[LayoutStep, ...]]:
    """A Transpose, with a view before it, after it, both or neither."""
    by_result = split(factors, what.result) if what.whole else None
    by_source = split(factors, what.source, by_source=True)
    both = None if by_result is None else split(by_result, what.source, by_source=True)
    if both is not None and (steps := _aligned(what, both)) is not None:
        yield steps
    if by_result is not None and fits(by_result, what.result):
        yield _viewed_first(what, by_result)
    if by_source is not None and fits(by_source, what.source, by_source=True):
        yield _viewed_last(what, by_source)
    yield _viewed_twice(what, factors)


def _aligned(what: Movement, factors: Sequence[Factor]) -> tuple[LayoutStep, ...] | None:
    """A Transpose alone: also the dims of size one must find their places."""
    if len(what.source) != len(what.result):
        return None
    if not fits(factors, what.source, by_source=True) or not fits(factors, what.result):
        return None
    ones = iter(axis for axis, dim in enumerate(what.source) if dim == 1)
    real = dict(zip(in_source(factors), (axis for axis, dim in enumerate(what.source) if dim != 1), strict=True))
    order = iter(factors)
    perm = [next(ones, -1) if dim == 1 else real[next(order)] for dim in what.result]
    return None if -1 in perm else (_transpose(perm, what),)


def _transpose(perm: Sequence[int], what: Movement) -> LayoutStep:
    return LayoutStep("Transpose", (0, *(axis + 1 for axis in perm)) if what.free else tuple(perm))


def _viewed_first(what: Movement, factors: Sequence[Factor]) -> tuple[LayoutStep, ...]:
    """A view whose dims the Transpose brings into the result's order; dims of size one stay where they will be."""
    axes: list[Factor | int] = list(in_source(factors))
    order = iter(factors)
    wanted: list[Factor | int] = [next(order) if dim != 1 else axis for axis, dim in enumerate(what.result)]
    for axis, label in enumerate(wanted):
        if isinstance(label, int):
            axes.insert(min(axis, len(axes)), label)
    view = [1 if isinstance(label, int) else label.size for label in axes]
    return _reshape(view, what), _transpose([axes.index(label) for label in wanted], what)


def _viewed_last(what: Movement, factors: Sequence[Factor]) -> tuple[LayoutStep, ...]:
    real = dict(zip(in_source(factors), (axis for axis, dim in enumerate(what.source) if dim != 1), strict=True))
    ones = [axis for axis, dim in enumerate(what.source) if dim == 1]
    return _transpose([*ones, *(real[factor] for factor in factors)], what), _view(what)


def _viewed_twice(what: Movement, factors: Sequence[Factor]) -> tuple[LayoutStep, ...]:
    order = in_source(factors)
    perm = [order.index(factor) for factor in factors]
    return _reshape([factor.size for factor in order], what), _transpose(perm, what), _view(what)


def _reshape(dims: Sequence[int], what: Movement) -> LayoutStep:
    return LayoutStep("Reshape", (0, *dims) if what.free else tuple(dims))


def _gathers(what: Movement, origin: np.ndarray, most: int) -> Iterator[tuple[LayoutStep, ...]]:
    """A Gather along an axis of the source as it is, or of rows."""
    row = _row(what, origin)
    if row < SHORTEST_ROW:
        return
    for axis in range(len(what.source)):
        if (steps := _gathered_along(axis, row, what, origin)) is not None:
            yield steps
    tail = _tail(what.result, row)
    fits_result = tail > 0 and what.whole
    if most < (2 if fits_result else 3):
        return
    last = what.result[len(what.result) - tail :] if tail else (row,)
    view = _reshape((math.prod(what.source) // math.prod(last), *last), what)
    numbers = _at(what, origin, math.prod(last))
    if fits_result:
        yield view, LayoutStep("Gather", numbers.reshape(what.result[: len(what.result) - tail]), int(what.free))
    else:
        yield view, LayoutStep("Gather", numbers, int(what.free)), _view(what)


def _row(what: Movement, origin: np.ndarray) -> int:
    """How many elements always stay in a row."""
    starts = np.flatnonzero(np.diff(origin) != 1) + 1
    inner = math.gcd(origin.size, math.prod(what.source) // what.unit, int(origin[0]))
    inner = math.gcd(inner, int(np.gcd.reduce(starts)), int(np.gcd.reduce(origin[starts])))
    return inner * what.unit


def _at(what: Movement, origin: np.ndarray, width: int) -> np.ndarray:
    """Which row of that width each row of the result is."""
    if width >= what.unit:
        step = width // what.unit
        return origin[::step] // step
    finer = what.unit // width
    return (origin[:, None] * finer + np.arange(finer)).reshape(-1)


def _tail(shape: Sequence[int], row: int) -> int:
    """How many of the last dims a row is made of."""
    tail = 0
    while tail < len(shape) and row % math.prod(shape[len(shape) - tail - 1 :]) == 0:
        tail += 1
    return tail


def _gathered_along(axis: int, row: int, what: Movement, origin: np.ndarray) -> tuple[LayoutStep, ...] | None:
    """One Gather, where the source has an axis along which all moves alike and the result's dims fit."""
    before, size, after = what.source[:axis], what.source[axis], what.source[axis + 1 :]
    width, blocks = math.prod(after), math.prod(before)
    if width < SHORTEST_ROW or row % width or (origin.size * what.unit) % (width * blocks):
        return None
    if what.result[:axis] != before or (after and what.result[-len(after) :] != after) or not what.whole:
        return None
    numbers = _at(what, origin, width).reshape(blocks, -1)
    if (numbers != numbers[0] + size * np.arange(blocks)[:, None]).any() or numbers[0].max() >= size:
        return None
    shape = what.result[axis : len(what.result) - len(after)]
    if math.prod(shape) != numbers.shape[1]:
        return None
    return (LayoutStep("Gather", numbers[0].reshape(shape), axis + int(what.free)),)
