"""What operators that only move elements do: which element of the source each element of the result is.

A region of such operators between one source and one result is worked out on numbers, once, in units of elements that
always move together. The first axis may have any size, where nothing moves along it: then all is said of one of its
slices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.graph.facts import Facts
from sardonyx.passes.layout.parts.digits import Factor, found_in, numbered, permuted
from sardonyx.passes.shared.matching import given, ints, operand
from sardonyx.passes.shared.views import VIEWS

LONGEST = 24  # nodes of a region; a longer one is taken in parts
MOST_ROWS = 1 << 16  # units to be worked out one by one

MOVING = (*VIEWS, "Transpose", "Slice", "Concat", "Split", "Gather", "GatherND")


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Nodes that do nothing but move elements of one value, users before makers."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value


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


def regions_before(root: ir.Node, graph: Facts) -> list[Region]:
    """Regions that end in a node, small ones first: each has one source, and nothing else reads what is inside."""
    inside: dict[ir.Node, None] = {root: None}
    found: list[Region] = []
    while len(inside) < LONGEST:
        edge = list(dict.fromkeys(value for node in inside for value in _moved(node) if value.producer() not in inside))
        if len(edge) == 1:
            found.append(Region(tuple(inside), edge[0]))
        more = next((node for value in edge if (node := _enclosed_maker(value, root, inside)) is not None), None)
        if more is None:
            break
        inside[more] = None
    return found


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
    sizes = _Sizes(graph, free)
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
    if all(node.op_type in (*VIEWS, "Transpose") for node in order):
        return _exchange(place, order, sizes)
    origin = _worked_out(region.source, result, order, sizes, unit)
    return None if origin is None else Movement(*place, unit, found_in(origin, unit), origin)


def _exchange(
    place: tuple[tuple[int, ...], tuple[int, ...], bool, bool], order: Sequence[ir.Node], sizes: _Sizes
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
    source: ir.Value, result: ir.Value, order: Sequence[ir.Node], sizes: _Sizes, unit: int
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


def _moved(node: ir.Node) -> Iterator[ir.Value]:
    """The values whose elements a node moves."""
    values = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return (value for value in values if value is not None)


def _enclosed_maker(value: ir.Value, root: ir.Node, inside: Mapping[ir.Node, None]) -> ir.Node | None:
    """The maker of a value, where it only moves elements too and nothing outside reads its results."""
    node = value.producer()
    if node is None or node.domain or node.op_type not in MOVING or node.graph is not root.graph:
        return None
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    for output in node.outputs:
        if output.is_graph_output() or any(use.node not in inside for use in output.uses()):
            return None
    return node


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


class _Sizes:
    """Shapes inside a region, for one slice of its free axis, and what each node does to them."""

    def __init__(self, graph: Facts, free: bool) -> None:
        self.shapes: dict[ir.Value, tuple[int, ...]] = {}
        self._graph = graph
        self._free = free

    def unit(self, node: ir.Node) -> int | None:
        """How many elements at the end of the axes a node moves as one; learns the shapes of its results."""
        source = self.shapes.get(node.inputs[0]) if node.inputs[0] is not None else None
        if source is None:
            return None
        size = math.prod(source)
        axes = self._axes(node, source)
        if axes is None or any(not 0 <= axis < len(source) for axis in axes) or (self._free and 0 in axes):
            return None
        for output in node.outputs:
            shape = self._local(output, size if node.op_type in (*VIEWS, "Transpose") else None)
            if shape is None:
                return None
            self.shapes[output] = shape
        return self._together(node, source, axes) if axes else size

    def _together(self, node: ir.Node, shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
        """Elements that stay neighbours: those behind the axes, and of whole parts also those along the axis."""
        behind = math.prod(shape[max(axes) + 1 :])
        if node.op_type not in ("Concat", "Split"):
            return behind
        parts = node.inputs if node.op_type == "Concat" else node.outputs
        return behind * math.gcd(*(self.shapes[part][axes[0]] for part in parts if part in self.shapes))

    def before(self, node: ir.Node) -> tuple[int, ...]:
        """The shape of what a node moves."""
        source = node.inputs[0]
        assert source is not None
        return self.shapes[source]

    def _local(self, value: ir.Value, size: int | None) -> tuple[int, ...] | None:
        """A value's shape; its free axis is told by how many elements there are."""
        shape = self._graph.shape(value)
        if shape is None:
            return None
        if not self._free:
            known = tuple(dim for dim in shape if isinstance(dim, int) and dim > 0)
            return known if len(known) == len(shape) else None
        rest = tuple(dim for dim in shape[1:] if isinstance(dim, int) and dim > 0)
        if len(rest) != len(shape) - 1 or isinstance(shape[0], int):
            return None
        if size is None:  # a part of its input along another axis
            maker = value.producer()
            first = maker.inputs[0] if maker is not None else None
            return (self.shapes[first][0], *rest) if first is not None else None
        return (size // math.prod(rest), *rest) if size % math.prod(rest) == 0 else None

    def _axes(self, node: ir.Node, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The axes along which a node moves anything."""
        rank = len(shape)
        match node.op_type:
            case "Transpose":
                perm = tuple(node.attributes.get_ints("perm") or range(rank)[::-1])
                if len(perm) != rank:
                    return None
                return tuple(axis for axis, goal in enumerate(perm) if axis != goal)
            case "Slice":
                if given(node, "axes", 3):
                    axes = ints(node, "axes", 3, self._graph)
                else:
                    starts = ints(node, "starts", 1, self._graph)
                    axes = None if starts is None else tuple(range(len(starts)))
                return None if axes is None else tuple(axis % rank for axis in axes)
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
        """The results of a node on numbered units."""
        source = node.inputs[0]
        assert source is not None
        shape = self.before(node)
        axes = self._axes(node, shape)
        if not axes:
            return [flat[source] for _ in node.outputs]
        if node.op_type in ("Concat", "Split"):
            moved = self._parted(node, flat, axes[0], unit)
            return None if moved is None else [each.reshape(-1) for each in moved]
        end = max(axes) + 1
        grid = flat[source].reshape(*shape[:end], -1)
        match node.op_type:
            case "Transpose":
                perm = node.attributes.get_ints("perm") or range(len(shape))[::-1]
                moved = [grid.transpose(*perm[:end], end)]
            case "Slice":
                moved = self._sliced(node, grid, axes)
            case "Gather":
                moved = self._gathered(node, grid, axes[0])
            case _:
                moved = self._picked(node, grid)
        if moved is None:
            return None
        results = [each.reshape(-1) for each in moved]
        wanted = [math.prod(self.shapes[output]) // unit for output in node.outputs]
        return results if [each.size for each in results] == wanted else None

    def _sliced(self, node: ir.Node, grid: np.ndarray, axes: tuple[int, ...]) -> list[np.ndarray] | None:
        starts, ends = ints(node, "starts", 1, self._graph), ints(node, "ends", 2, self._graph)
        steps = self._graph.ints(operand(node, 4)) if operand(node, 4) is not None else (1,) * len(axes)
        if starts is None or ends is None or steps is None or any(step < 1 for step in steps):
            return None
        ranges = [slice(None)] * grid.ndim
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            ranges[axis] = slice(start, end, step)
        return [grid[tuple(ranges)]]

    def _parted(
        self, node: ir.Node, flat: Mapping[ir.Value, np.ndarray], axis: int, unit: int
    ) -> list[np.ndarray] | None:
        """Parts joined or taken apart: along the axis and all behind it."""
        if node.op_type == "Concat":
            parts = [value for value in node.inputs if value is not None and value in flat]
            if len(parts) != len(node.inputs):
                return None
            return [np.concatenate([flat[part].reshape(*self.shapes[part][:axis], -1) for part in parts], axis)]
        shape = self.before(node)
        lengths = [math.prod(self.shapes[output][axis:]) // unit for output in node.outputs]
        if sum(lengths) * unit != math.prod(shape[axis:]) or node.inputs[0] is None:
            return None
        return np.split(flat[node.inputs[0]].reshape(*shape[:axis], -1), np.cumsum(lengths)[:-1], axis)

    def _gathered(self, node: ir.Node, grid: np.ndarray, axis: int) -> list[np.ndarray] | None:
        index = self._index(node)
        inside = index.size and -grid.shape[axis] <= index.min() and index.max() < grid.shape[axis]
        return [np.take(grid, index, axis)] if inside else None

    def _picked(self, node: ir.Node, grid: np.ndarray) -> list[np.ndarray] | None:
        index = self._index(node)
        bounds = np.array(grid.shape[: index.shape[-1]])
        if not index.size or (index < -bounds).any() or (index >= bounds).any():
            return None
        return [grid[tuple(np.moveaxis(index, -1, 0))]]

    def _index(self, node: ir.Node) -> np.ndarray:
        """The rows a Gather names; none where they are not known or too many."""
        index = self._graph.array(operand(node, 1), 8 * MOST_ROWS)
        return np.zeros(0, np.int64) if index is None or index.dtype.kind not in "iu" else index.astype(np.int64)
