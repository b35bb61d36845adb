"""Pieces of a value's last axis: which part a Slice or Split takes, how two are put together, what repeats one.

Rotations of positions are written with these in several ways; each question here has one answer for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import REPEATS
from sardonyx.passes._matching import given, ints, maker, operand
from sardonyx.passes._views import normal_axes

CACHE = 1 << 26  # bytes of a constant table that is looked into


@dataclass(frozen=True, slots=True)
class Piece:
    """The elements start, start + step, … below stop of a value's last axis."""

    source: ir.Value
    start: int
    stop: int
    step: int
    node: ir.Node

    @property
    def width(self) -> int:
        """How many elements it has."""
        return len(range(self.start, self.stop, self.step))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two values of equal width side by side, or element by element in turn."""

    first: ir.Value
    second: ir.Value
    interleaved: bool
    nodes: tuple[ir.Node, ...]


def width(value: ir.Value | None, graph: Facts) -> int | None:
    """The size of the last axis, where it is a number."""
    shape = graph.shape(value)
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def is_last(axis: int, value: ir.Value | None, graph: Facts) -> bool:
    """Whether an axis is the last one of a value."""
    return axis == -1 or (graph.rank(value) or 0) - 1 == axis >= 0


def piece_of(value: ir.Value | None, graph: Facts) -> Piece | None:
    """The part of another value's last axis that this one is, taken by a Slice or a Split."""
    node = None if value is None else value.producer()
    source = None if node is None else operand(node, 0)
    if value is None or node is None or source is None or node.domain or (total := width(source, graph)) is None:
        return None
    if node.op_type == "Slice":
        return _sliced(node, source, total, graph)
    if node.op_type != "Split" or not is_last(node.attributes.get_int("axis", 0), source, graph):
        return None
    sizes = ints(node, "split", 1, graph) if given(node, "split", 1) else _even(total, len(node.outputs))
    if sizes is None:
        return None
    start = sum(sizes[: value.index()])
    return Piece(source, start, start + sizes[value.index() or 0], 1, node)


def _even(total: int, count: int) -> tuple[int, ...] | None:
    return (total // count,) * count if total % count == 0 else None


def _sliced(node: ir.Node, source: ir.Value, total: int, graph: Facts) -> Piece | None:
    starts, ends = ints(node, "starts", 1, graph), ints(node, "ends", 2, graph)
    axes = ints(node, "axes", 3, graph) if given(node, "axes", 3) else (0,)
    steps = (1,) if operand(node, 4) is None else graph.ints(operand(node, 4))
    if not starts or not ends or not axes or not steps or len(starts) != 1 or not is_last(axes[0], source, graph):
        return None
    if steps[0] < 1:
        return None
    start, stop, step = slice(starts[0], ends[0], steps[0]).indices(total)
    return Piece(source, start, stop, step, node)


def halves(first: ir.Value | None, second: ir.Value | None, graph: Facts) -> tuple[ir.Value, Pair] | None:
    """The value that two others are the halves of, in this order: left and right, or even and odd elements."""
    one, two = piece_of(first, graph), piece_of(second, graph)
    if first is None or second is None or one is None or two is None or one.source is not two.source:
        return None
    total = width(one.source, graph) or 0
    if total % 2 or total == 0:
        return None
    nodes = tuple(dict.fromkeys((one.node, two.node)))
    half = total // 2
    if one.width != half or two.width != half:
        return None
    if (one.step, two.step) == (1, 1) and (one.start, two.start) == (0, half):
        return one.source, Pair(first, second, False, nodes)
    if (one.step, two.step) == (2, 2) and (one.start, two.start) == (0, 1):
        return one.source, Pair(first, second, True, nodes)
    return None


def pair_of(value: ir.Value | None, graph: Facts) -> Pair | None:
    """The two values of equal width that this one is made of, along its last axis."""
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
    """Reshape(Concat(a[..., None], b[..., None])): the elements of a and b in turn."""
    concat = maker(node, 0, ("Concat",)) if node.op_type in ("Reshape", "Flatten") else None
    if concat is None or len(concat.inputs) != 2:
        return None
    if not is_last(concat.attributes.get_int("axis", 0), concat.outputs[0], graph):
        return None
    parts = [_unsqueezed_last(concat, index, graph) for index in (0, 1)]
    first, second = (None if part is None else operand(part, 0) for part in parts)
    if first is None or second is None:
        return None
    shape, made = graph.shape(first), graph.shape(value)
    if not shape or made is None or None in shape or not isinstance(shape[-1], int):
        return None
    if made != (*shape[:-1], 2 * shape[-1]) or graph.shape(second) != shape:
        return None
    return Pair(first, second, True, (*(part for part in parts if part is not None), concat, node))


def _unsqueezed_last(node: ir.Node, index: int, graph: Facts) -> ir.Node | None:
    made_by = maker(node, index, ("Unsqueeze",))
    if made_by is None:
        return None
    rank = graph.rank(made_by.outputs[0])
    axes = normal_axes(ints(made_by, "axes", 1, graph) or (), rank)
    return made_by if rank is not None and axes == (rank - 1,) else None


def repeated(value: ir.Value, interleaved: bool, graph: Facts) -> ir.Value | np.ndarray | None:
    """The half that a value has twice along its last axis, side by side or every element twice; None where not so."""
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
    one, two = (table[..., 0::2], table[..., 1::2]) if interleaved else (table[..., :half], table[..., half:])
    return one if np.array_equal(one, two) else None


def _expanded(value: ir.Value, graph: Facts) -> ir.Value | None:
    """Reshape(Expand(a[..., None])) or Reshape(Tile(a[..., None])): every element of a twice."""
    view = value.producer()
    repeat = None if view is None or view.op_type != "Reshape" else maker(view, 0, REPEATS)
    unsqueeze = None if repeat is None else _unsqueezed_last(repeat, 0, graph)
    half = None if unsqueeze is None else operand(unsqueeze, 0)
    shape = graph.shape(half)
    if repeat is None or half is None or not shape or None in shape or not isinstance(shape[-1], int):
        return None
    twice = graph.shape(repeat.outputs[0]) == (*shape, 2)
    return half if twice and graph.shape(value) == (*shape[:-1], 2 * shape[-1]) else None
