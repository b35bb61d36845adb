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
from sardonyx.ir.scopes import has_references, operator
from sardonyx.ir.shapes.movement import slice_ranges
from sardonyx.ir.shapes.node_view import NodeView
from sardonyx.passes._matching import axes_of, operand_producer, optional, producer_of, require, required, static

MAX_TABLE_BYTES = 1 << 26  # of a constant table that is read
SIZES_AS_INPUT_SINCE = 13
Ranges = Mapping[int, tuple[int, int, int]]  # start, end and step by axis


class Piece(Struct, frozen=True):
    """The elements at some positions along an axis of that size of a value."""

    source: ir.Value
    axis: int
    size: int
    positions: range
    node: ir.Node


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


@optional
def piece_of(value: ir.Value | None, graph: Facts) -> Piece:
    """Return which part of another value along one axis of static size a Slice or Split takes."""
    value = required(value)
    node = required(value.producer())
    require(operator(node) in ("Slice", "Split") and not has_references(node))
    source = required(node.inputs[0])
    shape = required(graph.shape(source) or None)
    if node.op_type == "Slice":
        taken = required(ranges(node, graph))
        require(len(taken) == 1)
        ((axis, bounds),) = taken.items()
    else:
        axis = node.attributes.get_int("axis", 0) % len(shape)
        until = [required(graph.shape(output))[axis] for output in node.outputs[: (value.index() or 0) + 1]]
        *before, length = map(static, until)
        bounds = sum(before), sum(before) + length, 1
    size = static(shape[axis])
    require(bounds[2] > 0)
    return Piece(source, axis, size, range(*slice(*bounds).indices(size)), node)


@optional
def halves(first: ir.Value | None, second: ir.Value | None, graph: Facts) -> tuple[ir.Value, Pair]:
    """Return the value whose halves the two are, in this order: left and right half, or even and odd elements."""
    left, right = required(piece_of(first, graph)), required(piece_of(second, graph))
    first, second = required(first), required(second)
    size, step = left.size, left.positions.step
    require(left.source is right.source and is_last(left.axis, left.source, graph) and left.axis == right.axis)
    half = range(size // 2)
    parts = (half, range(size // 2, size)) if step == 1 else (range(0, size, 2), range(1, size, 2))
    require(size > 0 and size % 2 == 0 and (left.positions, right.positions) == parts)
    return left.source, Pair(first, second, step == 2, tuple(dict.fromkeys((left.node, right.node))))


@optional
def pair_of(value: ir.Value | None, graph: Facts) -> Pair:
    """Return the two values of equal width that are joined along the last axis to form this one."""
    node = required(required(value).producer())
    require(operator(node) in ("Concat", "Reshape", "Flatten"))
    if node.op_type == "Concat":
        require(len(node.inputs) == 2 and is_last(node.attributes.get_int("axis", 0), value, graph))
        first, second = map(required, node.inputs)
        require(first is second or width(first, graph) == width(second, graph) is not None)
        return Pair(first, second, False, (node,))
    # The elements in turn: Reshape(Concat(a[..., None], b[..., None])), or Reshape(Expand(a[..., None])).
    joint = required(operand_producer(node, 0, ("Concat", *REPEATS)))
    joined = joint.inputs if joint.op_type == "Concat" else joint.inputs[:1]
    added = [required(producer_of(each, joint, ("Unsqueeze",))) for each in joined]
    first, second = (required(added[place].inputs[0]) for place in (0, -1))
    shape = required(graph.shape(first) or None)
    require(len(joined) <= 2 and all(axes_of(each, graph) == (len(shape),) for each in added))
    require(graph.shape(second) == shape and graph.shape(joint.outputs[0]) == (*shape, 2))
    require(graph.shape(value) == (*shape[:-1], 2 * static(shape[-1])))
    return Pair(first, second, True, (*added, joint, node))


def repeated(value: ir.Value, interleaved: bool, graph: Facts) -> ir.Value | np.ndarray | None:
    """Return the half that a value contains twice along its last axis, otherwise None.

    The halves are (h, h) side by side, or if `interleaved` every element of h twice: (h0, h0, h1, h1, …).
    """
    table = graph.array(value, MAX_TABLE_BYTES)
    if table is None:
        pair = pair_of(value, graph)
        return pair.first if pair and pair.first is pair.second and pair.interleaved == interleaved else None
    half, odd = divmod(table.shape[-1] if table.ndim else 1, 2)
    first, second = (table[..., 0::2], table[..., 1::2]) if interleaved else (table[..., :half], table[..., half:])
    return first if not odd and np.array_equal(first, second) else None


def split_into(source: ir.Value, axis: int, sizes: Sequence[int], op: Builder) -> tuple[ir.Value, ...]:
    """Build a Split of a value along an axis, in the form of the opset."""
    if op.scope.opset < SIZES_AS_INPUT_SINCE:
        return op.node("Split", (source,), {"axis": axis, "split": list(sizes)}, outputs=len(sizes))
    lengths = op.constant(np.array(sizes, np.int64), "sizes")
    return op.node("Split", (source, lengths), {"axis": axis}, outputs=len(sizes))


def ranges(node: ir.Node, graph: Facts) -> Ranges | None:
    """Return the constant ranges of a Slice by axis, or None if one is computed or the rank is unknown."""
    written = slice_ranges(NodeView(node, graph.shapes))
    by_axis = {
        axis: (start, end, step)
        for axis, start, end, step in written or ()
        if isinstance(start, int) and isinstance(end, int) and step
    }
    return by_axis if written is not None and len(by_axis) == len(written) else None
