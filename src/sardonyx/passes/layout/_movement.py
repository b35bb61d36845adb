"""Regions of nodes that only move the elements of one value, and which source element each result element is.

What a region does is computed on element numbers, once, in units of elements that always move together. The first axis
may be dynamic if nothing moves along it; then the movement is that of one slice of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import SELECTS, VIEWS
from sardonyx.ir.scopes import is_used_outside, operand
from sardonyx.passes._layout import Axis, Part, flat, joined, regroup, size
from sardonyx.passes._matching import producer_of
from sardonyx.passes._parts import ranges

Parts = tuple[Axis, Axis]  # in the order of the source and of the result


def parts_of(origin: np.ndarray, unit: int) -> Parts | None:
    """Return the parts that a movement given by element numbers permutes, or None if it does more than that.

    The element at the index (i_1, i_2, …) along the parts of the result is element i_1 * stride_1 + … of the source.
    """
    remaining, strides = origin, {Part(unit): 1} if unit > 1 else dict[Part, int]()
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
        strides[Part(length)] = stride * unit
        remaining = remaining[::length]
    source = sorted(strides, key=strides.__getitem__)[::-1]
    if any(strides[part] != size(source[place + 1 :]) for place, part in enumerate(source)):
        return None
    return joined(source, list(strides)[::-1])


def _exchange(count: int, order: Sequence[ir.Node], sizes: RegionShapes) -> Parts | None:
    """Return the parts that views and Transposes permute, or None if a view joins pieces of several."""
    source = result = [Part(count)] if count > 1 else list[Part]()
    for node in order:
        if node.op_type == "Transpose":
            shape = sizes.before(node)
            axes = regroup(result, shape)
            if axes is None:
                return None
            perm = node.attributes.get_ints("perm") or range(len(shape))[::-1]
            source, result = joined(source, flat(axes[axis] for axis in perm))
    return source, result


def _numbered(count: int, source: Axis, result: Axis) -> tuple[int, np.ndarray | None]:
    """Return how many elements move together as a unit, and which unit of the source each one of the result is."""
    dims = [part.size for part in source if isinstance(part.size, int)]
    unit = dims[-1] if source and source[-1] is result[-1] else 1
    if count // unit > MOST_ROWS:
        return unit, None
    numbers = np.arange(count // unit).reshape(*dims[:-1], -1) if unit > 1 else np.arange(count).reshape(dims)
    return unit, numbers.transpose([source.index(part) for part in result]).reshape(-1)


LONGEST = 24  # nodes of a region; a longer one is processed in parts
KEEPS_SIZE = VIEWS | {"Transpose"}
MOVING = KEEPS_SIZE | SELECTS - {"GatherElements"} | {"Concat"}  # those that `RegionShapes` supports
MOST_ROWS = 1 << 16  # units that are numbered one by one


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
    while len(inside) < LONGEST:
        boundary = list(
            dict.fromkeys(value for node in inside for value in _moved(node) if value.producer() not in inside)
        )
        if len(boundary) == 1:
            regions.append(Region(tuple(inside), boundary[0]))
        producer = next(
            (node for value in boundary if (node := _enclosed_producer(value, root, inside)) is not None), None
        )
        if producer is None:
            break
        inside[producer] = None
    return regions


def _moved(node: ir.Node) -> Iterator[ir.Value]:
    """Return the values whose elements a node moves."""
    values = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return (value for value in values if value is not None)


def _enclosed_producer(value: ir.Value, root: ir.Node, inside: Mapping[ir.Node, None]) -> ir.Node | None:
    """Return the producer of a value if it only moves elements too and nothing outside reads its results."""
    node = producer_of(value, root, MOVING)
    return None if node is None or any(is_used_outside(output, inside) for output in node.outputs) else node


class RegionShapes:
    """The shapes inside a region, for one slice of its free axis, and what each node does to them."""

    def __init__(self, graph: Facts, free: bool) -> None:
        self.shapes: dict[ir.Value, tuple[int, ...]] = {}
        self._graph = graph
        self._free = free

    def unit(self, node: ir.Node) -> int | None:
        """Return how many trailing elements a node moves as one, and record the shapes of its results."""
        source = self.shapes.get(node.inputs[0]) if node.inputs[0] is not None else None
        if source is None:
            return None
        size = math.prod(source)
        axes = self._axes(node, source)
        if axes is None or any(not 0 <= axis < len(source) for axis in axes) or (self._free and 0 in axes):
            return None
        for output in node.outputs:
            shape = self._local(output, size if node.op_type in KEEPS_SIZE else None)
            if shape is None:
                return None
            self.shapes[output] = shape
        return self._together(node, source, axes) if axes else size

    def _together(self, node: ir.Node, shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
        """Return how many elements stay adjacent: those after the moved axes, times whole parts along the axis."""
        after = math.prod(shape[max(axes) + 1 :])
        if node.op_type not in ("Concat", "Split"):
            return after
        parts = node.inputs if node.op_type == "Concat" else node.outputs
        return after * math.gcd(*(self.shapes[part][axes[0]] for part in parts if part in self.shapes))

    def before(self, node: ir.Node) -> tuple[int, ...]:
        """Return the shape of the value that a node moves."""
        source = node.inputs[0]
        assert source is not None
        return self.shapes[source]

    def _local(self, value: ir.Value, size: int | None) -> tuple[int, ...] | None:
        """Return the shape of a value; the size of its free axis follows from the number of elements."""
        shape = self._graph.shape(value)
        if shape is None:
            return None
        if not self._free:
            static = tuple(dim for dim in shape if isinstance(dim, int) and dim > 0)
            return static if len(static) == len(shape) else None
        rest = tuple(dim for dim in shape[1:] if isinstance(dim, int) and dim > 0)
        if len(rest) != len(shape) - 1 or isinstance(shape[0], int):
            return None
        if size is None:  # a part of the input along another axis
            producer = value.producer()
            first = producer.inputs[0] if producer is not None else None
            return (self.shapes[first][0], *rest) if first is not None else None
        return (size // math.prod(rest), *rest) if size % math.prod(rest) == 0 else None

    def _axes(self, node: ir.Node, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the axes along which a node moves elements."""
        rank = len(shape)
        match node.op_type:
            case "Transpose":
                perm = tuple(node.attributes.get_ints("perm") or range(rank)[::-1])
                if len(perm) != rank:
                    return None
                return tuple(axis for axis, goal in enumerate(perm) if axis != goal)
            case "Slice":
                taken = ranges(node, self._graph)
                return None if taken is None else tuple(taken)
            case "Concat" | "Split" | "Gather":
                return (node.attributes.get_int("axis", 0) % rank,)
            case "GatherND":
                index = self._graph.tensor(operand(node, 1))
                if index is None or not len(index.shape) or node.attributes.get_int("batch_dims", 0):
                    return None
                return tuple(range(index.shape.numpy()[-1]))
            case _:
                return ()

    def move(self, node: ir.Node, flat: Mapping[ir.Value, np.ndarray], unit: int) -> list[np.ndarray] | None:
        """Apply a node to numbered units."""
        source = node.inputs[0]
        assert source is not None
        shape = self.before(node)
        axes = self._axes(node, shape)
        if not axes:
            return [flat[source] for _ in node.outputs]
        axis = axes[0]
        if node.op_type == "Concat":
            parts = [flat[part].reshape(*self.shapes[part][:axis], -1) for part in node.inputs if part is not None]
            return [np.concatenate(parts, axis).reshape(-1)]
        if node.op_type == "Split":
            lengths = [math.prod(self.shapes[output][axis:]) // unit for output in node.outputs]
            pieces = np.split(flat[source].reshape(*shape[:axis], -1), np.cumsum(lengths)[:-1], axis)
            return [piece.reshape(-1) for piece in pieces]
        end = max(axes) + 1
        grid = flat[source].reshape(*shape[:end], -1)
        if node.op_type == "Transpose":
            perm = node.attributes.get_ints("perm") or range(len(shape))[::-1]
            moved = grid.transpose(*perm[:end], end)
        elif node.op_type == "Slice":
            taken = ranges(node, self._graph) or {}
            if any(step < 1 for _, _, step in taken.values()):
                return None
            moved = grid[tuple(slice(*taken[axis]) if axis in taken else slice(None) for axis in range(grid.ndim))]
        else:
            index = self._graph.array(operand(node, 1), 8 * MOST_ROWS)
            if index is None or index.dtype.kind not in "iu" or not index.size:
                return None
            try:
                moved = (
                    np.take(grid, index, axis)
                    if node.op_type == "Gather"
                    else grid[tuple(np.moveaxis(index.astype(np.int64), -1, 0))]
                )
            except IndexError:
                return None
        (output,) = node.outputs
        return [moved.reshape(-1)] if moved.size == math.prod(self.shapes[output]) // unit else None


class Movement(Struct, frozen=True, eq=False):
    """Where the elements of a result come from."""

    source: tuple[int, ...]  # without the first axis if that is free
    result: tuple[int, ...]
    free: bool  # the first axis may have any size
    whole: bool  # the first axis of the result is the free axis itself, not a multiple of it
    unit: int  # elements that move together
    origin: np.ndarray | None  # which unit of the source each unit of the result is; None if rows are short
    parts: Parts | None  # if the movement only permutes parts


def movement(region: Region, result: ir.Value, graph: Facts) -> Movement | None:
    """Return what a region does as a whole, or None if a size or index is unknown or elements are lost."""
    shape = graph.shape(region.source)
    if not shape or any(not isinstance(dim, int) or dim < 1 for dim in shape[1:]):
        return None
    trailing = tuple(dim for dim in shape[1:] if isinstance(dim, int))
    first = shape[0]
    free = not isinstance(first, int)
    start = (first, *trailing) if isinstance(first, int) else (1, *trailing)
    if 0 in start:
        return None
    sizes = RegionShapes(graph, free)
    sizes.shapes[region.source] = start
    order = graph.in_order(region.nodes)
    units = [sizes.unit(node) for node in order]
    if None in units:
        return None
    unit = math.gcd(math.prod(start), *(unit for unit in units if unit is not None))
    result_shape, count = sizes.shapes[result], math.prod(start)
    if math.prod(result_shape) != count:
        return None
    whole = not free or result_shape[0] == 1
    place = (trailing if free else start, result_shape[1:] if free and whole else result_shape, free, whole)
    if all(node.op_type in KEEPS_SIZE for node in order):
        parts = _exchange(count, order, sizes)
        return None if parts is None else Movement(*place, *_numbered(count, *parts), parts)
    origin = _origin(region.source, result, order, sizes, unit)
    return None if origin is None else Movement(*place, unit, origin, parts_of(origin, unit))


def _origin(
    source: ir.Value, result: ir.Value, order: Sequence[ir.Node], sizes: RegionShapes, unit: int
) -> np.ndarray | None:
    """Return the origin of each unit of the result, computed by moving unit numbers."""
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
