"""What Reshape, Squeeze, Unsqueeze and Flatten do to a shape: the algebra several passes share.

They move no data, so each is told by the shape it makes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.ir.facts import Facts, Shape
from sardonyx.passes._matching import given, ints, operand


def normal_axes(axes: Sequence[int], rank: int | None) -> tuple[int, ...] | None:
    """Axes counted from the front, in order; None where one counts from an end that is not known."""
    if rank is None and any(axis < 0 for axis in axes):
        return None
    return tuple(sorted(axis if axis >= 0 else axis + (rank or 0) for axis in axes))


def viewed_shape(node: ir.Node, shape: tuple[int, ...], graph: Facts) -> tuple[int, ...] | None:
    """The shape a view makes of a fully known one; None where that is not certain."""
    match node.op_type:
        case "Reshape":
            target = graph.ints(operand(node, 1))
            return None if target is None else _reshaped(shape, target, node.attributes.get_int("allowzero", 0) == 1)
        case "Squeeze":
            return _squeezed(node, shape, graph)
        case "Unsqueeze":
            return _unsqueezed(node, shape, graph)
        case "Flatten":
            axis = node.attributes.get_int("axis", 1)
            axis = axis if axis >= 0 else axis + len(shape)
            return math.prod(shape[:axis]), math.prod(shape[axis:])
        case _:
            return None


def reshape_target(source: Shape | None, result: Shape | None, *, open_at: int | None = None) -> tuple[int, ...] | None:
    """A constant Reshape target that makes `result` of `source` whatever the symbolic dims are, if there is one.

    A dim that stays in its place is written 0. One other may be left to -1, but only beside numbers: next to a dim of
    size zero, -1 has no meaning; but a model that has a -1 in the same place itself (`open_at`) has none there either.
    """
    if source is None or result is None or 0 in result:
        return None
    target: list[int] = []
    for index, dim in enumerate(result):
        if isinstance(dim, int):
            target.append(dim)
        else:
            target.append(0 if index < len(source) and source[index] == dim else -1)
    open_dims = target.count(-1)
    if open_dims > 1 or (open_dims and 0 in target and target.index(-1) != open_at):
        return None
    return tuple(target)


def _reshaped(shape: tuple[int, ...], target: tuple[int, ...], allow_zero: bool) -> tuple[int, ...] | None:
    if not allow_zero:
        if any(dim == 0 and index >= len(shape) for index, dim in enumerate(target)):
            return None
        target = tuple(shape[index] if dim == 0 else dim for index, dim in enumerate(target))
    if -1 in target:
        others = math.prod(dim for dim in target if dim != -1)
        if others <= 0:
            return None
        target = tuple(math.prod(shape) // others if dim == -1 else dim for dim in target)
    valid = all(dim >= 0 for dim in target) and math.prod(target) == math.prod(shape)
    return target if valid else None


def _squeezed(node: ir.Node, shape: tuple[int, ...], graph: Facts) -> tuple[int, ...] | None:
    if not given(node, "axes", 1):
        return tuple(dim for dim in shape if dim != 1)
    axes = ints(node, "axes", 1, graph)
    if not axes:  # computed, or an empty list, which engines read in two ways
        return None
    axes = normal_axes(axes, len(shape))
    if axes is None or any(not 0 <= axis < len(shape) or shape[axis] != 1 for axis in axes):
        return None
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


def _unsqueezed(node: ir.Node, shape: tuple[int, ...], graph: Facts) -> tuple[int, ...] | None:
    named = ints(node, "axes", 1, graph)
    if named is None:
        return None
    rank = len(shape) + len(named)
    axes = normal_axes(named, rank)
    if axes is None or len(set(axes)) != len(axes) or any(not 0 <= axis < rank for axis in axes):
        return None
    left = iter(shape)
    return tuple(1 if axis in axes else next(left) for axis in range(rank))
