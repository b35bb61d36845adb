"""What one node that only moves elements does: to shapes, and to numbered units of elements."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.passes._matching import given, ints, operand
from sardonyx.passes.layout._regions import KEEPS_SIZE

MOST_ROWS = 1 << 16  # units to be worked out one by one


class Steps:
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
            shape = self._local(output, size if node.op_type in KEEPS_SIZE else None)
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
