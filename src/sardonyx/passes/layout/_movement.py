"""What operators that only move elements do: which element of the source each element of the result is.

A region of such operators between one source and one result is worked out on numbers, once, in units of elements that
always move together. The first axis may have any size, where nothing moves along it: then all is said of one of its
slices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.passes.layout._digits import Factor, found_in, numbered, permuted
from sardonyx.passes.layout._regions import KEEPS_SIZE, Region
from sardonyx.passes.layout._steps import MOST_ROWS, Steps


@dataclass(frozen=True, slots=True, eq=False)
class Movement:
    """Where the elements of a result come from."""

    source: tuple[int, ...]  # shapes without the first axis where that is free
    result: tuple[int, ...]
    free: bool  # the first axis may have any size
    whole: bool  # the result's first axis is that axis itself, not a multiple of it
    unit: int  # elements that move together
    factors: Sequence[Factor] | None  # where the movement only exchanges digits of the position
    origin: np.ndarray | None  # which unit of the source each unit of the result is; left out where rows are short


def movement(region: Region, result: ir.Value, graph: Facts) -> Movement | None:
    """What a region does as a whole; None where a size or an index is not known or elements are lost."""
    shape = graph.shape(region.source)
    if not shape or any(not isinstance(dim, int) or dim < 1 for dim in shape[1:]):
        return None
    rest = tuple(dim for dim in shape[1:] if isinstance(dim, int))
    first = shape[0]
    free = not isinstance(first, int)
    start = (first, *rest) if isinstance(first, int) else (1, *rest)
    if 0 in start:
        return None
    sizes = Steps(graph, free)
    sizes.shapes[region.source] = start
    order = sorted(region.nodes, key=_Place(region.nodes))
    units = [sizes.unit(node) for node in order]
    if None in units:
        return None
    unit = math.gcd(math.prod(start), *(each for each in units if each is not None))
    out = sizes.shapes[result]
    if math.prod(out) != math.prod(start):
        return None
    whole = not free or out[0] == 1
    place = (rest if free else start, out[1:] if free and whole else out, free, whole)
    if all(node.op_type in KEEPS_SIZE for node in order):
        return _exchange(place, order, sizes)
    origin = _worked_out(region.source, result, order, sizes, unit)
    return None if origin is None else Movement(*place, unit, found_in(origin, unit), origin)


def _exchange(
    place: tuple[tuple[int, ...], tuple[int, ...], bool, bool], order: Sequence[ir.Node], sizes: Steps
) -> Movement | None:
    """What views and Transposes do."""
    size = math.prod(place[0])
    factors = [Factor(size, 1)] if size > 1 else list[Factor]()
    for node in order:
        if node.op_type != "Transpose":
            continue
        shape = sizes.before(node)
        perm = node.attributes.get_ints("perm") or range(len(shape))[::-1]
        permutation = permuted(factors, shape, perm)
        if permutation is None:
            return None
        factors = permutation
    unit = factors[-1].size if factors and factors[-1].stride == 1 else 1
    origin = numbered(factors, unit) if size // unit <= MOST_ROWS else None
    return Movement(*place, unit, factors, origin)


def _worked_out(
    source: ir.Value, result: ir.Value, order: Sequence[ir.Node], sizes: Steps, unit: int
) -> np.ndarray | None:
    """The origin of each unit of the result, by moving their numbers."""
    units = math.prod(sizes.shapes[source]) // unit
    if units > MOST_ROWS:
        return None
    flat: dict[ir.Value, np.ndarray] = {source: np.arange(units)}
    for node in order:
        moved = sizes.move(node, flat, unit)
        if moved is None:
            return None
        flat.update(zip(node.outputs, moved, strict=True))
    return flat[result]


class _Place:
    """Makers before users: the region was gathered the other way round, but a maker may have been met early."""

    def __init__(self, nodes: Sequence[ir.Node]) -> None:
        self._places: dict[ir.Node, int] = {}
        members = set(nodes)

        def visit(node: ir.Node) -> None:
            if node in self._places:
                return
            for maker in node.predecessors():
                if maker in members:
                    visit(maker)
            self._places[node] = len(self._places)

        for node in nodes:
            visit(node)

    def __call__(self, node: ir.Node) -> int:
        return self._places[node]
