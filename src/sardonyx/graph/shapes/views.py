"""What operators that move or copy elements make of shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from sardonyx.graph.shapes import expr
from sardonyx.graph.shapes.expr import Size
from sardonyx.graph.shapes.operators import Rule, broadcast_shapes

if TYPE_CHECKING:
    from sardonyx.graph.shapes.engine import Contents, Shape, Shapes

END = 2**31 - 1  # what the standard recommends for "up to the end, however far that is"


def _sizes(contents: Contents | None, ask: Shapes) -> Shape | None:
    """A shape held in a tensor."""
    if contents is None:
        return None
    return tuple(ask.unknown() if item is None else item for item in contents)


def _unknown_dims(value: ir.Value | None, ask: Shapes) -> Shape | None:
    """As many dims as a tensor has elements, where that is all that is known."""
    shape = ask.shape(value)
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
        return None
    return tuple(ask.unknown() for _ in range(shape[0]))


def _transpose(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape = ask.shape(node.inputs[0])
    perm = node.attributes.get_ints("perm")
    if shape is None:
        return [None if perm is None else tuple(ask.unknown() for _ in perm)]
    if perm is None:
        return [tuple(reversed(shape))]
    return [tuple(shape[axis] for axis in perm)] if len(perm) == len(shape) else None


def _reshape(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    if "shape" in node.attributes:  # before opset 5
        target: Contents | None = tuple(node.attributes["shape"].as_ints())
    else:
        target = ask.contents(node.inputs[1])
    if target is None:
        return [_unknown_dims(node.inputs[1] if len(node.inputs) > 1 else None, ask)]
    return [resolve_target(ask.shape(node.inputs[0]), target, ask, zeros=node.attributes.get_int("allowzero", 0) == 1)]


def resolve_target(source: Shape | None, target: Contents, ask: Shapes, *, zeros: bool) -> Shape:
    """The shape a Reshape target makes: 0 copies a dim, -1 is what is left over."""
    dims: list[Size | None] = list(target)
    for index, dim in enumerate(target):
        if dim == 0 and not zeros:
            dims[index] = source[index] if source is not None and index < len(source) else ask.unknown()
        elif dim is None or (isinstance(dim, expr.Expr) and not expr.at_least(dim, 0)):
            dims[index] = None  # may be -1 as well as a size
    open_dims = [index for index, dim in enumerate(dims) if dim is None or dim == -1]
    if len(open_dims) == 1 and source is not None:  # certain elements make the one open dim certain, whatever it says
        others = expr.product(dim for dim in dims if dim is not None and dim != -1)
        left = expr.exact_quotient(expr.product(source), others) if others != 0 else None
        if left is not None:
            dims[open_dims[0]] = left
        elif dims[open_dims[0]] == -1 and others != 0 and not _is_vague((*source, others)):
            dims[open_dims[0]] = expr.floor_quotient(expr.product(source), others)
    return tuple(ask.unknown() if dim is None or dim == -1 else dim for dim in dims)


def _is_vague(sizes: Sequence[Size]) -> bool:
    return any(isinstance(size, expr.Expr) and size.is_vague for size in sizes)


def _squeeze(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return [None]
    if "axes" not in node.attributes and (len(node.inputs) < 2 or node.inputs[1] is None):
        return [tuple(dim for dim in shape if dim != 1)] if all(isinstance(dim, int) for dim in shape) else [None]
    axes = ask.ints(node, "axes", 1)
    if not axes:  # an empty list is read in two ways
        return [None]
    gone = {axis % len(shape) for axis in axes}
    return [tuple(dim for axis, dim in enumerate(shape) if axis not in gone)]


def _unsqueeze(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape, axes = ask.shape(node.inputs[0]), ask.ints(node, "axes", 1)
    if shape is None or axes is None:
        return [None]
    rank = len(shape) + len(axes)
    new, left = {axis % rank for axis in axes}, iter(shape)
    return [tuple(1 if axis in new else next(left) for axis in range(rank))] if len(new) == len(axes) else None


def _flatten(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return [(ask.unknown(), ask.unknown())]
    axis = node.attributes.get_int("axis", 1)
    axis = axis if axis >= 0 else axis + len(shape)
    return [(expr.product(shape[:axis]), expr.product(shape[axis:]))]


def _expand(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    target = _sizes(ask.contents(node.inputs[1]), ask)
    shape = ask.shape(node.inputs[0])
    if target is None or shape is None:
        count = _unknown_dims(node.inputs[1], ask)
        return [None if count is None or shape is None or len(shape) > len(count) else count]
    return [broadcast_shapes([shape, target])]


def _tile(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape, repeats = ask.shape(node.inputs[0]), _sizes(ask.contents(node.inputs[1]), ask)
    if shape is None:
        return [None]
    if repeats is None or len(repeats) != len(shape):
        return [tuple(ask.unknown() for _ in shape)]
    return [tuple(expr.multiply(dim, by) for dim, by in zip(shape, repeats, strict=True))]


def _concat(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shapes = [ask.shape(value) for value in node.inputs]
    known = [shape for shape in shapes if shape is not None]
    if not known or not known[0]:
        return [None]
    rank = len(known[0])
    if any(len(shape) != rank for shape in known):
        return [None]
    axis = node.attributes.get_int("axis", 1) % rank
    dims: list[Size] = []
    for index in range(rank):
        if index == axis:
            complete = len(known) == len(shapes)
            dims.append(expr.total(shape[index] for shape in known) if complete else ask.unknown())
        else:  # all must be alike: the best known one tells
            dims.append(min((shape[index] for shape in known), key=_vagueness))
    return [tuple(dims)]


def _vagueness(size: Size) -> int:
    return 0 if isinstance(size, int) else 1 + size.is_vague


def _split(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape, count = ask.shape(node.inputs[0]), len(node.outputs)
    if shape is None:
        return [None] * count
    axis = node.attributes.get_int("axis", 0) % len(shape)
    has_parts = "split" in node.attributes or (len(node.inputs) > 1 and node.inputs[1] is not None)
    whole = shape[axis]
    parts: Sequence[Size] | None = None
    if has_parts:
        parts = ask.ints(node, "split", 1)
    elif isinstance(whole, int):
        step = -(-whole // count)
        parts = [max(0, min(step, whole - index * step)) for index in range(count)]
    elif (part := expr.exact_quotient(whole, count)) is not None:
        parts = [part] * count
    if parts is None or len(parts) != count:
        parts = [ask.unknown() for _ in range(count)]
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]


def slice_ranges(node: ir.Node, ask: Shapes) -> list[tuple[int, Size | None, Size | None, int | None]] | None:
    """(axis, start, end, step) of a Slice, as they are written; None where its axes are not known."""
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return None
    if "starts" in node.attributes:
        starts: Contents | None = tuple(node.attributes["starts"].as_ints())
        ends: Contents | None = tuple(node.attributes["ends"].as_ints())
    else:
        starts, ends = (ask.contents(value) for value in node.inputs[1:3])
    if starts is None or ends is None or len(starts) != len(ends):
        return None
    named = "axes" in node.attributes or (len(node.inputs) > 3 and node.inputs[3] is not None)
    axes = ask.ints(node, "axes", 3) if named else tuple(range(len(starts)))
    steps = ask.contents(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else (1,) * len(starts)
    if axes is None or steps is None or len(axes) != len(starts) or len(steps) != len(starts):
        return None
    whole = [step if isinstance(step, int) else None for step in steps]
    ranges = zip(axes, starts, ends, whole, strict=True)
    return [(axis % len(shape), start, end, step) for axis, start, end, step in ranges]


def _slice(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return [None]
    ranges = slice_ranges(node, ask)
    if ranges is None:
        return [tuple(ask.unknown() for _ in shape)]
    dims = list(shape)
    for axis, start, end, step in ranges:
        dims[axis] = _sliced(shape[axis], start, end, step, ask)
    return [tuple(dims)]


def _sliced(size: Size, start: Size | None, end: Size | None, step: int | None, ask: Shapes) -> Size:
    if start is None or end is None or not step:
        return ask.unknown()
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(*slice(start, end, step).indices(size)))
    if step < 0:
        return ask.unknown()
    first, last = _clamped(start, size), _clamped(end, size)
    if first is None or last is None:
        return ask.unknown()
    length = expr.larger(expr.subtract(last, first), 0)
    return length if step == 1 else expr.floor_quotient(expr.add(length, step - 1), step)


def _clamped(place: Size, size: Size) -> Size | None:
    """A place on an axis, as a Slice reads it: negative counts from the end, and none is outside."""
    if isinstance(place, int) and place >= END:
        return size
    if expr.at_least(place, 0):
        return expr.smaller(place, size)
    if expr.at_least(expr.multiply(place, -1), 1):
        return expr.larger(expr.add(size, place), 0)
    return None


def _gather(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape, indices = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    if shape is None or indices is None or not shape:
        return [None]
    axis = node.attributes.get_int("axis", 0) % len(shape)
    return [(*shape[:axis], *indices, *shape[axis + 1 :])]


def _gather_elements(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    return [ask.shape(node.inputs[1])]


def _gather_nd(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape, indices = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    batch = node.attributes.get_int("batch_dims", 0)
    if shape is None or not indices or not isinstance(indices[-1], int):
        return [None]
    return [(*indices[:-1], *shape[batch + indices[-1] :])]


def _pad(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape = ask.shape(node.inputs[0])
    if "pads" in node.attributes:
        pads: Contents | None = tuple(node.attributes["pads"].as_ints())
    else:
        pads = ask.contents(node.inputs[1]) if len(node.inputs) > 1 else None
    if shape is None:
        return [None]
    has_axes = len(node.inputs) > 3 and node.inputs[3] is not None
    axes = ask.ints(node, "", 3) if has_axes else tuple(range(len(shape)))
    dims: list[Size] = list(shape)
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return [tuple(ask.unknown() for _ in shape)]
    for index, axis in enumerate(axes):
        before, after, place = pads[index], pads[index + len(axes)], axis % len(shape)
        if before is None or after is None:
            dims[place] = ask.unknown()
        else:
            dims[place] = expr.total((dims[place], before, after))
    return [tuple(dims)]


def _constant_of_shape(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    return [_sizes(ask.contents(node.inputs[0]), ask) or _unknown_dims(node.inputs[0], ask)]


def _range(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    start, limit, step = ((ask.contents(value) or (None,))[0] for value in node.inputs)
    if start is None or limit is None or not isinstance(step, int) or step < 1:
        return None if isinstance(step, int) and step < 0 else [(ask.unknown(),)]
    length = expr.larger(expr.subtract(limit, start), 0)
    return [(expr.floor_quotient(expr.add(length, step - 1), step) if step != 1 else length,)]


def _shape(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return [(ask.unknown(),)]
    return [(len(shape[shape_window(node, len(shape))]),)]


def shape_window(node: ir.Node, rank: int) -> slice:
    """The part of the dims a Shape node tells."""
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", rank)
    first, last = (min(max(place + rank if place < 0 else place, 0), rank) for place in (start, end))
    return slice(first, max(first, last))


def _size(node: ir.Node, ask: Shapes) -> Sequence[Shape | None] | None:
    return [()]


RULES: Mapping[str, Rule] = {
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "Expand": _expand,
    "Tile": _tile,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Pad": _pad,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Shape": _shape,
    "Size": _size,
}
