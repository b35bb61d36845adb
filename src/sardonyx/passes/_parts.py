"""Parts of a value along an axis: what a Slice or Split takes, what a Concat joins, and what repeats a part.

Exporters write the rotation of positions with these operators in several ways; the functions here recognise all of
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import REPEATS
from sardonyx.ir.rules import Builder
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import ints, is_specified, normal_axes, operand_producer

CACHE = 1 << 26  # bytes of a constant table that is read
SIZES_AS_INPUT_SINCE = 13
Ranges = Mapping[int, tuple[int, int, int]]  # start, end and step by axis


class Piece(Struct, frozen=True):
    """The elements start, start + step, … below stop of the last axis of a value."""

    source: ir.Value
    start: int
    stop: int
    step: int
    node: ir.Node

    @property
    def width(self) -> int:
        """Return the number of elements."""
        return len(range(self.start, self.stop, self.step))


class Pair(Struct, frozen=True):
    """Two values of equal width joined along the last axis: concatenated, or interleaved element by element."""

    first: ir.Value
    second: ir.Value
    interleaved: bool
    nodes: tuple[ir.Node, ...]


def width(value: ir.Value | None, graph: Facts) -> int | None:
    """Return the size of the last axis if it is static, otherwise None."""
    shape = graph.shape(value)
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def is_last(axis: int, value: ir.Value | None, graph: Facts) -> bool:
    """Return whether an axis is the last one of a value."""
    return axis == -1 or (graph.rank(value) or 0) - 1 == axis >= 0


def piece_of(value: ir.Value | None, graph: Facts) -> Piece | None:
    """Return which part of the last axis of another value a Slice or Split takes, otherwise None."""
    node = None if value is None else value.producer()
    source = None if node is None else operand(node, 0)
    if value is None or node is None or source is None or node.domain or (total := width(source, graph)) is None:
        return None
    if node.op_type == "Slice":
        return _sliced(node, source, total, graph)
    if node.op_type != "Split" or not is_last(node.attributes.get_int("axis", 0), source, graph):
        return None
    count = len(node.outputs)
    sizes = ints(node, "split", 1, graph) if is_specified(node, "split", 1) else (total // count,) * count
    if sizes is None:
        return None
    start = sum(sizes[: value.index()])
    return Piece(source, start, start + sizes[value.index() or 0], 1, node)


def _sliced(node: ir.Node, source: ir.Value, total: int, graph: Facts) -> Piece | None:
    taken = ranges(node, graph)
    if taken is None or len(taken) != 1:
        return None
    ((axis, bounds),) = taken.items()
    if not is_last(axis, source, graph) or bounds[2] < 1:
        return None
    return Piece(source, *slice(*bounds).indices(total), node)


def halves(first: ir.Value | None, second: ir.Value | None, graph: Facts) -> tuple[ir.Value, Pair] | None:
    """Return the value whose halves the two are, in this order: left and right half, or even and odd elements."""
    left, right = piece_of(first, graph), piece_of(second, graph)
    if first is None or second is None or left is None or right is None or left.source is not right.source:
        return None
    total = width(left.source, graph) or 0
    if total % 2 or total == 0:
        return None
    nodes = tuple(dict.fromkeys((left.node, right.node)))
    half = total // 2
    if left.width != half or right.width != half:
        return None
    if (left.step, right.step) == (1, 1) and (left.start, right.start) == (0, half):
        return left.source, Pair(first, second, False, nodes)
    if (left.step, right.step) == (2, 2) and (left.start, right.start) == (0, 1):
        return left.source, Pair(first, second, True, nodes)
    return None


def pair_of(value: ir.Value | None, graph: Facts) -> Pair | None:
    """Return the two values of equal width that are joined along the last axis to form this one, otherwise None."""
    node = None if value is None else value.producer()
    if node is None or node.domain or value is None:
        return None
    if node.op_type == "Concat":
        first, second = (operand(node, 0), operand(node, 1)) if len(node.inputs) == 2 else (None, None)
        if first is None or second is None or not is_last(node.attributes.get_int("axis", 0), value, graph):
            return None
        equal = first is second or width(first, graph) == width(second, graph) is not None
        return Pair(first, second, False, (node,)) if equal else None
    return _stacked(node, value, graph)


def _stacked(node: ir.Node, value: ir.Value, graph: Facts) -> Pair | None:
    """Match Reshape(Concat(a[..., None], b[..., None])): the elements of a and b in turn."""
    concat = operand_producer(node, 0, ("Concat",)) if node.op_type in ("Reshape", "Flatten") else None
    if concat is None or len(concat.inputs) != 2:
        return None
    if not is_last(concat.attributes.get_int("axis", 0), concat.outputs[0], graph):
        return None
    parts = [_unsqueezed_last(concat, index, graph) for index in (0, 1)]
    first, second = (None if part is None else operand(part, 0) for part in parts)
    if first is None or second is None:
        return None
    shape, result = graph.shape(first), graph.shape(value)
    if not shape or result is None or None in shape or not isinstance(shape[-1], int):
        return None
    if result != (*shape[:-1], 2 * shape[-1]) or graph.shape(second) != shape:
        return None
    return Pair(first, second, True, (*(part for part in parts if part is not None), concat, node))


def _unsqueezed_last(node: ir.Node, index: int, graph: Facts) -> ir.Node | None:
    unsqueeze = operand_producer(node, index, ("Unsqueeze",))
    if unsqueeze is None:
        return None
    rank = graph.rank(unsqueeze.outputs[0])
    axes = normal_axes(ints(unsqueeze, "axes", 1, graph) or (), rank)
    return unsqueeze if axes == ((rank or 0) - 1,) else None


def repeated(value: ir.Value, interleaved: bool, graph: Facts) -> ir.Value | np.ndarray | None:
    """Return the half that a value contains twice along its last axis, otherwise None.

    The halves are (h, h) side by side, or if `interleaved` every element of h twice: (h0, h0, h1, h1, …).
    """
    table = graph.array(value, CACHE)
    if table is not None:
        return _repeated_numbers(table, interleaved)
    pair = pair_of(value, graph)
    if pair is not None:
        return pair.first if pair.first is pair.second and pair.interleaved == interleaved else None
    return _expanded(value, graph) if interleaved else None


def _repeated_numbers(table: np.ndarray, interleaved: bool) -> np.ndarray | None:
    if table.ndim == 0 or table.shape[-1] % 2:
        return None
    half = table.shape[-1] // 2
    first, second = (table[..., 0::2], table[..., 1::2]) if interleaved else (table[..., :half], table[..., half:])
    return first if np.array_equal(first, second) else None


def _expanded(value: ir.Value, graph: Facts) -> ir.Value | None:
    """Match Reshape(Expand(a[..., None])) or Reshape(Tile(a[..., None])): every element of a twice."""
    view = value.producer()
    repeat = None if view is None or view.op_type != "Reshape" else operand_producer(view, 0, REPEATS)
    unsqueeze = None if repeat is None else _unsqueezed_last(repeat, 0, graph)
    half = None if unsqueeze is None else operand(unsqueeze, 0)
    shape = graph.shape(half)
    if repeat is None or half is None or not shape or None in shape or not isinstance(shape[-1], int):
        return None
    twice = graph.shape(repeat.outputs[0]) == (*shape, 2)
    return half if twice and graph.shape(value) == (*shape[:-1], 2 * shape[-1]) else None


def split_into(source: ir.Value, axis: int, sizes: Sequence[int], op: Builder) -> tuple[ir.Value, ...]:
    """Build a Split of a value along an axis, in the form of the opset."""
    if op.scope.opset < SIZES_AS_INPUT_SINCE:
        return op.node("Split", (source,), {"axis": axis, "split": list(sizes)}, outputs=len(sizes))
    lengths = op.constant(np.array(sizes, np.int64), "sizes")
    return op.node("Split", (source, lengths), {"axis": axis}, outputs=len(sizes))


def ranges(node: ir.Node, graph: Facts) -> Ranges | None:
    """Return the constant ranges of a Slice by axis, or None if one is computed or the rank is unknown."""
    rank = graph.rank(node.inputs[0])
    starts, ends = ints(node, "starts", 1, graph), ints(node, "ends", 2, graph)
    if rank is None or starts is None or ends is None:
        return None
    sliced = ints(node, "axes", 3, graph) if is_specified(node, "axes", 3) else tuple(range(len(starts)))
    strides = (1,) * len(starts) if operand(node, 4) is None else graph.ints(operand(node, 4))
    if sliced is None or strides is None or not len(starts) == len(ends) == len(sliced) == len(strides) or 0 in strides:
        return None
    if any(not -rank <= axis < rank for axis in sliced):
        return None
    by_axis = {
        axis % rank: bounds for axis, bounds in zip(sliced, zip(starts, ends, strides, strict=True), strict=True)
    }
    return by_axis if len(by_axis) == len(sliced) else None
