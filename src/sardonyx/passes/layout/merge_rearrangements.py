"""Reshape(Transpose(Reshape(Concat(Slice(x), Slice(x))))) => Gather(Reshape(x), rows).

For any number of operators that only move elements, between one value and one result: they become the fewest that do
the same, computed on element numbers. That is a view, a Transpose with views around it, or a Gather of whole rows, as
for windows and their inverse, rolls, unfolded patches, and Transposes that move only dims of size one. Does not apply
if a size is unknown (the first axis may be dynamic if nothing moves along it), or if a product of two computed matrices
would read gathered rows, since attention is recognised by its Transposes. Helps because each operator copies all of its
input: gathering the rows of a rolled window once takes 0.23-0.43 of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.ops import VIEWS
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused
from sardonyx.passes.layout._movement import (
    MOVING,
    Factor,
    Movement,
    Region,
    fits,
    in_source,
    movement,
    regions_before,
    split,
)


class MergeRearrangements(NodePass):
    """Several movements of the same elements."""

    name = "merge-rearrangements"
    accuracy = Accuracy.EXACT
    roots = tuple(sorted(MOVING))
    opset = 9  # before, a Constant could not be of integer type
    example = Example(
        before="""
            agraph (float[N, 4, 32] x) => (float[N, 2, 2, 32] y) <
                int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {4}, int64[4] s = {0, 2, 2, 32}
            > {
                a = Slice(x, zero, one, one)  b = Slice(x, one, end, one)  c = Concat <axis = 1> (b, a)
                d = Reshape(c, s)  y = Transpose <perm = [0, 2, 1, 3]> (d)
            }
        """,
        after="""
            agraph (float[N, 4, 32] x) => (float[N, 2, 2, 32] y) <int64[2, 2] rows = {1, 3, 2, 0}> {
                y = Gather <axis = 1> (x, rows)
            }
        """,
        near_miss="""
            agraph (float[4, N] x) => (float[N, 2, 2] y) <int64[3] s = {2, 2, -1}> {
                a = Reshape(x, s)  y = Transpose <perm = [2, 0, 1]> (a)
            }
        """,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Match the largest region before a node that fewer or cheaper nodes can replace."""
        for region in reversed(regions_before(node)):
            steps = _better(region, node, graph)
            if steps is not None:
                return Match((*reversed(region.nodes[1:]), node), build=partial(build, steps, region.source))
        return None


def _better(region: Region, root: ir.Node, graph: Facts) -> tuple[LayoutStep, ...] | None:
    """Return the fewest nodes that do what a region does, if they are fewer, or as many with fewer copies."""
    if len(root.outputs) != 1:
        return None
    current = len(region.nodes), sum(node.op_type not in VIEWS for node in region.nodes)
    if current[1] == 0:
        return None  # merge-reshapes merges views, also with dynamic dims
    if current[0] == 1 and not _may_be_a_view(root, graph):
        return None
    region_movement = movement(region, root.outputs[0], graph)
    if region_movement is None:
        return None
    rows = not _is_part_of_attention(region, root, graph)
    best = min(
        arrangements(region_movement, current[0], rows=rows),
        key=lambda steps: (len(steps), copies(steps)),
        default=None,
    )
    return best if best is not None and (len(best), copies(best)) < current else None


def _may_be_a_view(node: ir.Node, graph: Facts) -> bool:
    """Return whether a single node may preserve the order of all elements, by a cheap check."""
    if node.op_type != "Transpose":
        return node.op_type in ("Gather", "GatherND") and graph.tensor(node.inputs[1]) is not None
    shape, perm = graph.shape(node.inputs[0]) or (), node.attributes.get_ints("perm")
    real = [axis for axis in perm or range(len(shape))[::-1] if axis < len(shape) and shape[axis] != 1]
    return real == sorted(real)


def _is_part_of_attention(region: Region, root: ir.Node, graph: Facts) -> bool:
    """Return whether a product of two computed matrices is before or after, where heads are split and merged."""
    neighbours = [use.node for use in root.outputs[0].uses()]
    if (producer := region.source.producer()) is not None:
        neighbours.append(producer)
    return any(node.op_type == "MatMul" and graph.tensor(node.inputs[1]) is None for node in neighbours)


# The fewest nodes that perform a movement of elements: a view, a Transpose between views, or a Gather of rows.
#
# A movement that only permutes the digits of the position (see `_movement`) is a Transpose. Its factors are split at
# the dims of the source and of the result, so that no view is needed if the dims fit. Any other movement is a Gather
# of whole rows. A Gather copies long rows faster than a Transpose does, and needs no view of its result; for short
# rows it would be slow.

SHORTEST_ROW = 32  # elements; gathering shorter rows is slower than a Transpose


class LayoutStep(Struct, frozen=True, eq=False):
    """One node: a Reshape to `numbers`, a Transpose by them, or a Gather of them along `axis`."""

    op_type: str
    numbers: tuple[int, ...] | np.ndarray
    axis: int = 0


def arrangements(movement: Movement, most: int, *, rows: bool = True) -> Iterator[tuple[LayoutStep, ...]]:
    """Yield sequences of at most `most` nodes that perform a movement; Gathers only with `rows`."""
    if movement.factors is not None and len(movement.factors) <= 1:
        yield () if movement.whole and movement.source == movement.result else (_view(movement),)
        return
    if movement.factors is not None:
        yield from (steps for steps in _transposes(movement, movement.factors) if len(steps) <= most)
    if rows and movement.origin is not None:
        yield from _gathers(movement, movement.origin, most)


def copies(steps: Sequence[LayoutStep]) -> int:
    """Return how many of the nodes copy their input."""
    return sum(step.op_type != "Reshape" for step in steps)


def build(steps: Sequence[LayoutStep], source: ir.Value, op: Builder) -> ir.Value:
    """Build the nodes of an arrangement."""
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


def _view(movement: Movement) -> LayoutStep:
    """Return a Reshape to the shape of the result."""
    if not movement.free:
        return LayoutStep("Reshape", movement.result)
    return LayoutStep("Reshape", (0, *movement.result) if movement.whole else (-1, *movement.result[1:]))


def _transposes(movement: Movement, factors: Sequence[Factor]) -> Iterator[tuple[LayoutStep, ...]]:
    """Yield a Transpose with a view before it, after it, both or neither."""
    by_result = split(factors, movement.result) if movement.whole else None
    by_source = split(factors, movement.source, by_source=True)
    both = None if by_result is None else split(by_result, movement.source, by_source=True)
    if both is not None and (steps := _aligned(movement, both)) is not None:
        yield steps
    if by_result is not None and fits(by_result, movement.result):
        yield _viewed_first(movement, by_result)
    if by_source is not None and fits(by_source, movement.source, by_source=True):
        yield _viewed_last(movement, by_source)
    yield _viewed_twice(movement, factors)


def _aligned(movement: Movement, factors: Sequence[Factor]) -> tuple[LayoutStep, ...] | None:
    """Return a Transpose alone; dims of size one have to find their places too."""
    if len(movement.source) != len(movement.result):
        return None
    if not fits(factors, movement.source, by_source=True) or not fits(factors, movement.result):
        return None
    ones = iter(axis for axis, dim in enumerate(movement.source) if dim == 1)
    real = dict(zip(in_source(factors), (axis for axis, dim in enumerate(movement.source) if dim != 1), strict=True))
    order = iter(factors)
    perm = [next(ones, -1) if dim == 1 else real[next(order)] for dim in movement.result]
    return None if -1 in perm else (_transpose(perm, movement),)


def _transpose(perm: Sequence[int], movement: Movement) -> LayoutStep:
    return LayoutStep("Transpose", (0, *(axis + 1 for axis in perm)) if movement.free else tuple(perm))


def _viewed_first(movement: Movement, factors: Sequence[Factor]) -> tuple[LayoutStep, ...]:
    """Return a view whose dims the Transpose brings into the order of the result."""
    axes: list[Factor | int] = list(in_source(factors))
    order = iter(factors)
    labels: list[Factor | int] = [next(order) if dim != 1 else axis for axis, dim in enumerate(movement.result)]
    for axis, label in enumerate(labels):
        if isinstance(label, int):
            axes.insert(min(axis, len(axes)), label)
    view = [1 if isinstance(label, int) else label.size for label in axes]
    return _reshape(view, movement), _transpose([axes.index(label) for label in labels], movement)


def _viewed_last(movement: Movement, factors: Sequence[Factor]) -> tuple[LayoutStep, ...]:
    real = dict(zip(in_source(factors), (axis for axis, dim in enumerate(movement.source) if dim != 1), strict=True))
    ones = [axis for axis, dim in enumerate(movement.source) if dim == 1]
    return _transpose([*ones, *(real[factor] for factor in factors)], movement), _view(movement)


def _viewed_twice(movement: Movement, factors: Sequence[Factor]) -> tuple[LayoutStep, ...]:
    order = in_source(factors)
    perm = [order.index(factor) for factor in factors]
    return _reshape([factor.size for factor in order], movement), _transpose(perm, movement), _view(movement)


def _reshape(dims: Sequence[int], movement: Movement) -> LayoutStep:
    return LayoutStep("Reshape", (0, *dims) if movement.free else tuple(dims))


def _gathers(movement: Movement, origin: np.ndarray, most: int) -> Iterator[tuple[LayoutStep, ...]]:
    """Yield a Gather along an axis of the source as it is, or of rows."""
    row = _row(movement, origin)
    if row < SHORTEST_ROW:
        return
    for axis in range(len(movement.source)):
        if (steps := _gathered_along(axis, row, movement, origin)) is not None:
            yield steps
    tail = _tail(movement.result, row)
    fits_result = tail > 0 and movement.whole
    if most < (2 if fits_result else 3):
        return
    last = movement.result[len(movement.result) - tail :] if tail else (row,)
    view = _reshape((math.prod(movement.source) // math.prod(last), *last), movement)
    numbers = _row_numbers(movement, origin, math.prod(last))
    if fits_result:
        yield (
            view,
            LayoutStep("Gather", numbers.reshape(movement.result[: len(movement.result) - tail]), int(movement.free)),
        )
    else:
        yield view, LayoutStep("Gather", numbers, int(movement.free)), _view(movement)


def _row(movement: Movement, origin: np.ndarray) -> int:
    """Return how many elements always stay together as a row."""
    starts = np.flatnonzero(np.diff(origin) != 1) + 1
    inner = math.gcd(origin.size, math.prod(movement.source) // movement.unit, int(origin[0]))
    inner = math.gcd(inner, int(np.gcd.reduce(starts)), int(np.gcd.reduce(origin[starts])))
    return inner * movement.unit


def _row_numbers(movement: Movement, origin: np.ndarray, width: int) -> np.ndarray:
    """Return which row of that width each row of the result is."""
    if width >= movement.unit:
        step = width // movement.unit
        return origin[::step] // step
    finer = movement.unit // width
    return (origin[:, None] * finer + np.arange(finer)).reshape(-1)


def _tail(shape: Sequence[int], row: int) -> int:
    """Return how many of the last dims a row consists of."""
    tail = 0
    while tail < len(shape) and row % math.prod(shape[len(shape) - tail - 1 :]) == 0:
        tail += 1
    return tail


def _gathered_along(axis: int, row: int, movement: Movement, origin: np.ndarray) -> tuple[LayoutStep, ...] | None:
    """Return one Gather along an axis of the source if every block moves alike and the dims of the result fit."""
    before, size, after = movement.source[:axis], movement.source[axis], movement.source[axis + 1 :]
    width, blocks = math.prod(after), math.prod(before)
    if width < SHORTEST_ROW or row % width or (origin.size * movement.unit) % (width * blocks):
        return None
    if movement.result[:axis] != before or (after and movement.result[-len(after) :] != after) or not movement.whole:
        return None
    numbers = _row_numbers(movement, origin, width).reshape(blocks, -1)
    if (numbers != numbers[0] + size * np.arange(blocks)[:, None]).any() or numbers[0].max() >= size:
        return None
    shape = movement.result[axis : len(movement.result) - len(after)]
    if math.prod(shape) != numbers.shape[1]:
        return None
    return (LayoutStep("Gather", numbers[0].reshape(shape), axis + int(movement.free)),)
