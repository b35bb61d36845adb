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
from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import VIEWS
from sardonyx.passes._layout import Axis, Conversion, LayoutStep, conversion, convert, copies, flat, regroup
from sardonyx.passes._matching import optional, require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, Refused
from sardonyx.passes.layout._movement import MOVING, Movement, Region, movement, regions_before


class MergeRearrangements(NodePass):
    """Several movements of the same elements."""

    accuracy = Accuracy.EXACT
    roots = tuple(sorted(MOVING))
    opset = 9  # before, a Constant could not be of integer type
    example = Example(
        before="""
            (float[N, 4, 32] x) => (float[N, 2, 2, 32] y)
            <int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {4}, int64[4] s = {0, 2, 2, 32}> {
                a = Slice(x, zero, one, one)  b = Slice(x, one, end, one)  c = Concat <axis = 1> (b, a)
                d = Reshape(c, s)  y = Transpose <perm = [0, 2, 1, 3]> (d)
            }
        """,
        after="<int64[2, 2] rows = {1, 3, 2, 0}> { y = Gather <axis = 1> (x, rows) }",
        near_miss="""
            (float[4, N] x) => (float[N, 2, 2] y)
            <int64[3] s = {2, 2, -1}> { a = Reshape(x, s)  y = Transpose <perm = [2, 0, 1]> (a) }
        """,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        for region in reversed(regions_before(node)):
            steps = _better(region, node, graph)
            if steps is not None:
                return Match((*reversed(region.nodes[1:]), node), build=partial(convert, region.source, steps))
        return None


@optional
def _better(region: Region, root: ir.Node, graph: Facts) -> Conversion:
    """Return the fewest nodes that do what a region does, if they are fewer, or as many with fewer copies."""
    current = len(region.nodes), sum(node.op_type not in VIEWS for node in region.nodes)
    require(len(root.outputs) == 1 and current[1] > 0)  # merge-reshapes merges views, also with dynamic dims
    require(current[0] > 1 or _may_be_a_view(root, graph))
    region_movement = required(movement(region, root.outputs[0], graph))
    # Heads are split and merged before and after a product of two computed matrices.
    around = [region.source.producer(), *(use.node for use in root.outputs[0].uses())]
    products = [node for node in around if node is not None and node.op_type == "MatMul"]
    rows = all(graph.tensor(node.inputs[1]) is not None for node in products)
    candidates = arrangements(region_movement, current[0], rows=rows)
    best = required(min(candidates, key=lambda steps: (len(steps), copies(steps)), default=None))
    require((len(best), copies(best)) < current)
    return best


def _may_be_a_view(node: ir.Node, graph: Facts) -> bool:
    """Return whether a single node may preserve the order of all elements, by a cheap check."""
    if node.op_type != "Transpose":
        return node.op_type in ("Gather", "GatherND") and graph.tensor(node.inputs[1]) is not None
    shape, perm = graph.shape(node.inputs[0]) or (), node.attributes.get_ints("perm")
    real = [axis for axis in perm or range(len(shape))[::-1] if axis < len(shape) and shape[axis] != 1]
    return real == sorted(real)


# The fewest nodes that perform a movement of elements: a view, a Transpose between views, or a Gather of rows.
#
# A movement that only permutes parts of the axes is a Transpose between views. Any other movement is a Gather of whole
# rows. A Gather copies long rows faster than a Transpose does, and needs no view of its result; for short rows it would
# be slow.

MIN_GATHERED_ROW = 32  # elements; gathering shorter rows is slower than a Transpose


def arrangements(movement: Movement, most: int, *, rows: bool = True) -> Iterator[Conversion]:
    """Yield sequences of at most `most` nodes that perform a movement; Gathers only with `rows`."""
    converted = None if movement.parts is None else _converted(movement, *movement.parts)
    if converted is not None and len(converted) <= most:
        yield converted
    if rows and movement.origin is not None and (movement.parts is None or len(movement.parts[0]) > 1):
        yield from _gathers(movement, movement.origin, most)


def _converted(movement: Movement, source: Axis, result: Axis) -> Conversion | None:
    """Return a view, or a Transpose with the views that it needs before and after it."""
    before = regroup(source, movement.source)
    after = regroup(flat([result]), movement.result) if movement.whole else None
    converted = conversion(before or [flat([source])], after or [flat([result])])
    if converted is None:
        return None
    steps = converted if after else converted[:-1]
    if movement.free:
        shift = {"Reshape": 0, "Transpose": 1}
        steps = tuple(
            LayoutStep(step.operator, (0, *(n + shift[step.operator] for n in step.numbers))) for step in steps
        )
    return steps if after else (*steps, _view(movement))


def _view(movement: Movement) -> LayoutStep:
    """Return a Reshape to the shape of the result."""
    if not movement.free:
        return LayoutStep("Reshape", movement.result)
    return LayoutStep("Reshape", (0, *movement.result) if movement.whole else (-1, *movement.result[1:]))


def _gathers(movement: Movement, origin: np.ndarray, most: int) -> Iterator[Conversion]:
    """Yield a Gather along an axis of the source as it is, or of rows."""
    starts = np.flatnonzero(np.diff(origin) != 1) + 1
    ends = int(np.gcd.reduce(starts)), int(np.gcd.reduce(origin[starts])), int(origin[0])
    # So many elements always stay together as a row.
    row = math.gcd(origin.size, math.prod(movement.source) // movement.unit, *ends) * movement.unit
    if row < MIN_GATHERED_ROW:
        return
    for axis in range(len(movement.source)):
        if (step := _gathered_along(axis, row, movement, origin)) is not None:
            yield (step,)
    tail = 0  # of the last dims the row consists of
    while tail < len(movement.result) and row % math.prod(movement.result[-1 - tail :]) == 0:
        tail += 1
    fits_result = tail > 0 and movement.whole
    if most < (2 if fits_result else 3):
        return
    last = movement.result[len(movement.result) - tail :] if tail else (row,)
    view = LayoutStep("Reshape", (*[0] * movement.free, math.prod(movement.source) // math.prod(last), *last))
    numbers, axis = _row_numbers(movement, origin, math.prod(last)), int(movement.free)
    if fits_result:
        yield view, LayoutStep("Gather", numbers.reshape(movement.result[: len(movement.result) - tail]), axis=axis)
    else:
        yield view, LayoutStep("Gather", numbers, axis=axis), _view(movement)


def _row_numbers(movement: Movement, origin: np.ndarray, width: int) -> np.ndarray:
    """Return which row of that width each row of the result is."""
    if width >= movement.unit:
        step = width // movement.unit
        return origin[::step] // step
    finer = movement.unit // width
    return (origin[:, None] * finer + np.arange(finer)).reshape(-1)


def _gathered_along(axis: int, row: int, movement: Movement, origin: np.ndarray) -> LayoutStep | None:
    """Return one Gather along an axis of the source if every block moves alike and the dims of the result fit."""
    before, size, after = movement.source[:axis], movement.source[axis], movement.source[axis + 1 :]
    width, blocks = math.prod(after), math.prod(before)
    if width < MIN_GATHERED_ROW or row % width or (origin.size * movement.unit) % (width * blocks):
        return None
    if movement.result[:axis] != before or (after and movement.result[-len(after) :] != after) or not movement.whole:
        return None
    numbers = _row_numbers(movement, origin, width).reshape(blocks, -1)
    if (numbers != numbers[0] + size * np.arange(blocks)[:, None]).any() or numbers[0].max() >= size:
        return None
    shape = movement.result[axis : len(movement.result) - len(after)]
    if math.prod(shape) != numbers.shape[1]:
        return None
    return LayoutStep("Gather", numbers[0].reshape(shape), axis=axis + int(movement.free))
