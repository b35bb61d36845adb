"""Regions of nodes that only move the elements of one value, and which source element each result element is.

What a region does is computed on element numbers, once, in units of elements that always move together. The first axis
may be dynamic if nothing moves along it; then the movement is that of one slice of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import SELECTS, VIEWS
from sardonyx.ir.rules import NoMatch
from sardonyx.ir.scopes import is_used_outside, operand
from sardonyx.passes._layout import Axis, AxisPart, flat, joined, regroup, size
from sardonyx.passes._matching import optional, permutation, producer_of, require, required, static
from sardonyx.passes._parts import ranges

Parts = tuple[Axis, Axis]  # in the order of the source and of the result


def parts_of(origin: np.ndarray, unit: int) -> Parts | None:
    """Return the parts that a movement given by element numbers permutes, or None if it does more than that.

    The element at the index (i_1, i_2, …) along the parts of the result is element i_1 * stride_1 + … of the source.
    """
    remaining, strides = origin, {AxisPart(unit): 1} if unit > 1 else dict[AxisPart, int]()
    if remaining[0] != 0:
        return None
    while remaining.size > 1:
        stride = int(remaining[1] - remaining[0])
        breaks = np.flatnonzero(np.diff(remaining) != stride)
        length = int(breaks[0]) + 1 if breaks.size else remaining.size
        if (
            remaining.size % length
            or (remaining.reshape(-1, length) != remaining[::length, None] + stride * np.arange(length)).any()
        ):
            return None
        strides[AxisPart(length)] = stride * unit
        remaining = remaining[::length]
    source = sorted(strides, key=strides.__getitem__)[::-1]
    if any(strides[part] != size(source[place + 1 :]) for place, part in enumerate(source)):
        return None
    return joined(source, list(strides)[::-1])


def _exchange(count: int, order: Sequence[ir.Node], sizes: RegionShapes) -> Parts | None:
    """Return the parts that views and Transposes permute, or None if a view joins pieces of several."""
    source = result = [AxisPart(count)] if count > 1 else list[AxisPart]()
    for node in order:
        if node.op_type == "Transpose":
            axes = regroup(result, sizes.shapes[node.inputs[0]])
            if axes is None:
                return None
            perm = node.attributes.get_ints("perm") or range(len(axes))[::-1]
            source, result = joined(source, flat(axes[axis] for axis in perm))
    return source, result


def _numbered(count: int, source: Axis, result: Axis) -> tuple[int, np.ndarray | None]:
    """Return how many elements move together as a unit, and which unit of the source each one of the result is."""
    dims = [part.size for part in source if isinstance(part.size, int)]
    unit = dims[-1] if source and source[-1] is result[-1] else 1
    if count // unit > MAX_NUMBERED_UNITS:
        return unit, None
    numbers = np.arange(count // unit).reshape(*dims[:-1], -1) if unit > 1 else np.arange(count).reshape(dims)
    return unit, numbers.transpose([source.index(part) for part in result]).reshape(-1)


MAX_REGION_NODES = 24  # nodes of a region; a longer one is processed in parts
KEEPS_SIZE = VIEWS | {"Transpose"}
MOVING = KEEPS_SIZE | SELECTS - {"GatherElements"} | {"Concat"}  # those that `RegionShapes` supports
MAX_NUMBERED_UNITS = 1 << 16  # units that are numbered one by one


class Region(Struct, frozen=True, eq=False):
    """Nodes that only move the elements of one value, consumers before producers."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value


def regions_before(root: ir.Node) -> list[Region]:
    """Return the regions that end in a node, small ones first.

    Each has one source, and nothing else reads its inner values.
    """
    inside: dict[ir.Node, None] = {root: None}
    regions: list[Region] = []
    while len(inside) < MAX_REGION_NODES:
        moved = (value for node in inside for value in (node.inputs if node.op_type == "Concat" else node.inputs[:1]))
        boundary = dict.fromkeys(value for value in moved if value is not None and value.producer() not in inside)
        if len(boundary) == 1:
            regions.append(Region(tuple(inside), *boundary))
        producers = (node for value in boundary if (node := producer_of(value, root, MOVING)) is not None)
        enclosed = (node for node in producers if not any(is_used_outside(value, inside) for value in node.outputs))
        producer = next(enclosed, None)
        if producer is None:
            break
        inside[producer] = None
    return regions


class RegionShapes:
    """The shapes inside a region, for one slice of its free axis, and what each node does to them."""

    def __init__(self, graph: Facts, free: bool) -> None:
        self.shapes: dict[ir.Value | None, tuple[int, ...]] = {}
        self._graph = graph
        self._free = free

    def unit(self, node: ir.Node) -> int:
        """Return how many trailing elements a node moves as one, and record the shapes of its results."""
        source = required(self.shapes.get(node.inputs[0]))
        size, axes = math.prod(source), self._axes(node, source)
        require(all(0 <= axis < len(source) for axis in axes) and not (self._free and 0 in axes))
        for output in node.outputs:
            self.shapes[output] = self._local(output, size if node.op_type in KEEPS_SIZE else None)
        if not axes:
            return size
        after = math.prod(source[max(axes) + 1 :])
        if node.op_type not in ("Concat", "Split"):
            return after
        parts = node.inputs if node.op_type == "Concat" else node.outputs
        return after * math.gcd(*(self.shapes[part][axes[0]] for part in parts if part in self.shapes))

    def _local(self, value: ir.Value, size: int | None) -> tuple[int, ...]:
        """Return the shape of a value; the size of its free axis follows from the number of elements."""
        shape = required(self._graph.shape(value))
        dims = tuple(map(static, shape[1:] if self._free else shape))
        require(0 not in dims)
        if not self._free:
            return dims
        require(len(shape) > 0 and not isinstance(shape[0], int))
        if size is None:  # a part of the input along another axis
            return (self.shapes[required(value.producer()).inputs[0]][0], *dims)
        require(size % math.prod(dims) == 0)
        return (size // math.prod(dims), *dims)

    def _axes(self, node: ir.Node, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the axes along which a node moves elements."""
        match node.op_type:
            case "Transpose":
                perm = required(permutation(node, self._graph))
                require(len(perm) == len(shape))
                return tuple(axis for axis, goal in enumerate(perm) if axis != goal)
            case "Slice":
                return tuple(required(ranges(node, self._graph)))
            case "Concat" | "Split" | "Gather":
                return (node.attributes.get_int("axis", 0) % len(shape),)
            case "GatherND":
                index = required(self._graph.tensor(operand(node, 1)))
                require(len(index.shape) > 0 and not node.attributes.get_int("batch_dims", 0))
                return tuple(range(index.shape.numpy()[-1]))
            case _:
                return ()

    def move(self, node: ir.Node, flat: Mapping[ir.Value | None, np.ndarray], unit: int) -> list[np.ndarray]:
        """Apply a node to numbered units."""
        source = node.inputs[0]
        shape = self.shapes[source]
        axes = self._axes(node, shape)
        if not axes:
            return [flat[source] for _ in node.outputs]
        axis, end = axes[0], max(axes) + 1
        if node.op_type == "Concat":
            parts = [flat[part].reshape(*self.shapes[part][:axis], -1) for part in node.inputs if part is not None]
            return [np.concatenate(parts, axis).reshape(-1)]
        if node.op_type == "Split":
            lengths = [math.prod(self.shapes[output][axis:]) // unit for output in node.outputs]
            pieces = np.split(flat[source].reshape(*shape[:axis], -1), np.cumsum(lengths)[:-1], axis)
            return [piece.reshape(-1) for piece in pieces]
        grid = flat[source].reshape(*shape[:end], -1)
        if node.op_type == "Transpose":
            moved = grid.transpose(*required(permutation(node, self._graph))[:end], end)
        elif node.op_type == "Slice":
            taken = required(ranges(node, self._graph))
            require(all(step > 0 for _, _, step in taken.values()))
            moved = grid[tuple(slice(*taken[axis]) if axis in taken else slice(None) for axis in range(grid.ndim))]
        else:
            index = required(self._graph.array(operand(node, 1), 8 * MAX_NUMBERED_UNITS))
            require(index.dtype.kind in "iu" and index.size > 0)
            try:
                if node.op_type == "Gather":
                    moved = np.take(grid, index, axis)
                else:
                    moved = grid[tuple(np.moveaxis(index.astype(np.int64), -1, 0))]
            except IndexError:
                raise NoMatch from None
        (output,) = node.outputs
        require(moved.size == math.prod(self.shapes[output]) // unit)
        return [moved.reshape(-1)]


class Movement(Struct, frozen=True, eq=False):
    """Where the elements of a result come from."""

    source: tuple[int, ...]  # without the first axis if that is free
    result: tuple[int, ...]
    free: bool  # the first axis may have any size
    whole: bool  # the first axis of the result is the free axis itself, not a multiple of it
    unit: int  # elements that move together
    origin: np.ndarray | None  # which unit of the source each unit of the result is; None if rows are short
    parts: Parts | None  # if the movement only permutes parts


@optional
def movement(region: Region, result: ir.Value, graph: Facts) -> Movement:
    """Return what a region does as a whole; nothing if a size or index is unknown or elements are lost."""
    first, *rest = required(graph.shape(region.source) or None)
    trailing, free = tuple(map(static, rest)), not isinstance(first, int)
    start = (1 if free else static(first), *trailing)
    require(all(dim > 0 for dim in start))
    sizes = RegionShapes(graph, free)
    sizes.shapes[region.source] = start
    order, count = graph.in_order(region.nodes), math.prod(start)
    unit = math.gcd(count, *(sizes.unit(node) for node in order))
    result_shape = sizes.shapes[result]
    require(math.prod(result_shape) == count)
    whole = not free or result_shape[0] == 1
    place = (trailing if free else start, result_shape[1:] if free and whole else result_shape, free, whole)
    if all(node.op_type in KEEPS_SIZE for node in order):
        parts = required(_exchange(count, order, sizes))
        return Movement(*place, *_numbered(count, *parts), parts)
    require(count // unit <= MAX_NUMBERED_UNITS)
    flat: dict[ir.Value | None, np.ndarray] = {region.source: np.arange(count // unit)}
    for node in order:
        flat.update(zip(node.outputs, sizes.move(node, flat, unit), strict=True))
    return Movement(*place, unit, flat[result], parts_of(flat[result], unit))
