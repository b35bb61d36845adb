"""Shape rules for operators that rearrange, repeat or create elements: Transpose, Reshape, Expand, Range and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import attributes, number, numbers
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.operators import OutputShapes, Rule, broadcast_shapes
from sardonyx.ir.shapes.queries import Contents, Shape, ShapeQueries


def _sizes(contents: Contents | None, ask: ShapeQueries) -> Shape | None:
    """Return the shape that a tensor holds, or None if its contents are unknown."""
    if contents is None:
        return None
    return tuple(ask.unknown() if item is None or item == -1 else item for item in contents)


def _unknown_dims(value: ir.Value | None, ask: ShapeQueries) -> Shape | None:
    """Return as many unknown dimensions as the tensor has elements, or None if that number is unknown."""
    shape = ask.shape(value)
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
        return None
    return tuple(ask.unknown() for _ in range(shape[0]))


def _transpose(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape, perm = ask.shape(node.inputs[0]), numbers(node, "perm")
    if shape is None:
        return (None if perm is None else tuple(ask.unknown() for _ in perm),)
    if perm is None:
        return (tuple(reversed(shape)),)
    return (tuple([shape[axis] for axis in perm]) if sorted(perm) == list(range(len(shape))) else None,)


def _reshape(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    if "shape" in attributes(node):  # before opset 5
        target: Contents | None = tuple(numbers(node, "shape") or ())
    else:
        target = ask.contents(node.inputs[1])
    if target is None:
        return (_unknown_dims(operand(node, 1), ask),)
    source, zeros = ask.shape(node.inputs[0]), number(node, "allowzero", 0) == 1
    if source is not None and not zeros:
        _resolve_copies(node, source, target, ask)
    return (resolve_target(source, target, ask, zeros=zeros),)


def _resolve_copies(node: ir.Node, source: Shape, target: Contents, ask: ShapeQueries) -> None:
    """Resolve dimensions "size or copied" of the input whose `size` is also in the target beyond the rank of the input.

    There a 0 has nothing to copy and is an error, so `size` is never 0 and the dimension is `size`.
    """
    for size in target[len(source) :]:
        for dim in source:
            atom = expr.only_atom(dim)
            if atom is not None and atom.kind == "or" and atom.args[0] == size:
                ask.resolve(node, atom, atom.args[0])


def resolve_target(source: Shape | None, target: Contents, ask: ShapeQueries, *, zeros: bool) -> Shape:
    """Return the shape that a Reshape target results in: 0 copies a dimension (unless `zeros` is set), -1 is inferred.

    A symbolic size that may be 0 becomes the atom "size or copied". The inferred dimension is
    product(source) / product(others), which is known only if the others are not 0; next to a -1 they never are, or the
    model is not valid.
    """
    dims: list[Size | None] = [_read_size(source, index, dim, zeros) for index, dim in enumerate(target)]
    inferred = [index for index, dim in enumerate(dims) if dim is None or dim == -1]
    if not inferred and source is not None:
        copies = [index for index, dim in enumerate(target) if dim != dims[index] and isinstance(dim, expr.Expr)]
        if len(copies) == 1 and all(expr.at_least(dim, 1) for dim in _others(dims, copies[0])):
            inferred = copies  # the number of elements determines it, copied or not
    if len(inferred) == 1 and source is not None:
        (position,) = inferred
        others = expr.product(_others(dims, position))
        is_left_over = target[position] == -1 or expr.at_least(others, 1)
        quotient = expr.exact_quotient(expr.product(source), others) if is_left_over and others != 0 else None
        if quotient is not None:
            dims[position] = quotient
        elif target[position] == -1 and others != 0 and not _has_unknowns((*source, others)):
            dims[position] = expr.floor_quotient(expr.product(source), others)
    return tuple([ask.unknown() if dim is None or dim == -1 else dim for dim in dims])


def _read_size(source: Shape | None, index: int, dim: Size | None, zeros: bool) -> Size | None:
    """Return one dimension of a target as Reshape reads it, or None if it is unknown and may be -1."""
    if dim is None or isinstance(dim, int):
        copies = dim == 0 and not zeros
        return dim if not copies else source[index] if source is not None and index < len(source) else None
    if not expr.at_least(dim, 0):
        return None
    if zeros or expr.at_least(dim, 1):
        return dim
    if source is None:
        return None
    return (
        expr.copied_if_zero(dim, source[index]) if index < len(source) else dim
    )  # a 0 without a dimension to copy is an error


def _others(dims: Sequence[Size | None], position: int) -> list[Size]:
    return [dim for index, dim in enumerate(dims) if index != position and dim is not None]


def _has_unknowns(sizes: Sequence[Size]) -> bool:
    return any(isinstance(size, expr.Expr) and size.is_vague for size in sizes)


def _squeeze(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return (None,)
    if "axes" not in attributes(node) and operand(node, 1) is None:
        return (tuple(dim for dim in shape if dim != 1) if all(isinstance(dim, int) for dim in shape) else None,)
    axes = ask.ints(node, "axes", 1)
    if not axes:  # implementations differ on an empty list
        return (None,)
    removed = {axis % len(shape) for axis in axes}
    return (tuple([dim for axis, dim in enumerate(shape) if axis not in removed]),)


def _unsqueeze(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape, axes = ask.shape(node.inputs[0]), ask.ints(node, "axes", 1)
    if shape is None or axes is None:
        return (None,)
    rank = len(shape) + len(axes)
    new, remaining = {axis % rank for axis in axes}, iter(shape)
    return (tuple([1 if axis in new else next(remaining) for axis in range(rank)]) if len(new) == len(axes) else None,)


def _flatten(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return ((ask.unknown(), ask.unknown()),)
    axis = number(node, "axis", 1)
    axis = axis if axis >= 0 else axis + len(shape)
    return ((expr.product(shape[:axis]), expr.product(shape[axis:])),)


def _expand(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    target = _sizes(ask.contents(node.inputs[1]), ask)
    shape = ask.shape(node.inputs[0])
    if target is None or shape is None:
        count = _unknown_dims(node.inputs[1], ask)
        return (None if count is None or shape is None or len(shape) > len(count) else count,)
    return (broadcast_shapes((shape, target)),)


def _tile(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None or len(node.inputs) > 2:  # opset 1 has a repeat count and an axis as inputs
        return (None if shape is None else tuple(ask.unknown() for _ in shape),)
    repeats = _sizes(ask.contents(node.inputs[1]), ask)
    if repeats is None or len(repeats) != len(shape):
        return (tuple(ask.unknown() for _ in shape),)
    return (tuple(expr.multiply(dim, by) for dim, by in zip(shape, repeats, strict=True)),)


def _constant_of_shape(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    sizes = _sizes(ask.contents(node.inputs[0]), ask)
    return (_unknown_dims(node.inputs[0], ask) if sizes is None else sizes,)


def _range(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    start, limit, step = ((ask.contents(value) or (None,))[0] for value in node.inputs)
    if start is None or limit is None or not isinstance(step, int) or not step:
        return ((ask.unknown(),),)
    if step < 0:  # as many elements as in the opposite direction
        start, limit, step = limit, start, -step
    length = expr.larger(expr.subtract(limit, start), 0)
    return ((expr.floor_quotient(expr.add(length, step - 1), step) if step != 1 else length,),)


def _shape(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return ((ask.unknown(),),)
    return ((len(shape[shape_window(node, len(shape))]),),)


def shape_window(node: ir.Node, rank: int) -> slice:
    """Return the slice of the dimensions that a Shape node returns."""
    start, end = number(node, "start", 0), number(node, "end", rank)
    first, last = (min(max(place + rank if place < 0 else place, 0), rank) for place in (start, end))
    return slice(first, max(first, last))


def _size(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    return ((),)


def _random(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    sizes = numbers(node, "shape")
    return (None if sizes is None else tuple(sizes),)


RULES: Mapping[str, Rule] = {
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "Expand": _expand,
    "Tile": _tile,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Shape": _shape,
    "Size": _size,
    "RandomNormal": _random,
    "RandomUniform": _random,
}
