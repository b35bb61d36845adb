"""Shape rules for operators that rearrange, repeat, create, select, join or pad elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from sardonyx.ir.scopes import operand, operator
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import Contents, Shape, attributes, number, numbers, tensor
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.operators import OutputShapes, Rule, broadcast_shapes

if TYPE_CHECKING:
    from sardonyx.ir.shapes.engine import Shapes


def _sizes(contents: Contents | None, ask: Shapes) -> Shape | None:
    """Return the shape that a tensor holds, or None if its contents are unknown."""
    if contents is None:
        return None
    return tuple(ask.unknown() if item is None or item == -1 else item for item in contents)


def _unknown_dims(value: ir.Value | None, ask: Shapes) -> Shape | None:
    """Return as many unknown dimensions as the tensor has elements, or None if that number is unknown."""
    shape = ask.shape(value)
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
        return None
    return tuple(ask.unknown() for _ in range(shape[0]))


def _transpose(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape, perm = ask.shape(node.inputs[0]), numbers(node, "perm")
    if shape is None:
        return (None if perm is None else tuple(ask.unknown() for _ in perm),)
    if perm is None:
        return (tuple(reversed(shape)),)
    return (tuple([shape[axis] for axis in perm]) if sorted(perm) == list(range(len(shape))) else None,)


def _reshape(node: ir.Node, ask: Shapes) -> OutputShapes | None:
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


def _resolve_copies(node: ir.Node, source: Shape, target: Contents, ask: Shapes) -> None:
    """Resolve dimensions "size or copied" of the input whose `size` is also in the target beyond the rank of the input.

    There a 0 has nothing to copy and is an error, so `size` is never 0 and the dimension is `size`.
    """
    for size in target[len(source) :]:
        for dim in source:
            atom = expr.only_atom(dim)
            if atom is not None and atom.kind == "or" and atom.args[0] == size:
                ask.resolve(node, atom, atom.args[0])


def resolve_target(source: Shape | None, target: Contents, ask: Shapes, *, zeros: bool) -> Shape:
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


def _squeeze(node: ir.Node, ask: Shapes) -> OutputShapes | None:
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


def _unsqueeze(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape, axes = ask.shape(node.inputs[0]), ask.ints(node, "axes", 1)
    if shape is None or axes is None:
        return (None,)
    rank = len(shape) + len(axes)
    new, remaining = {axis % rank for axis in axes}, iter(shape)
    return (tuple([1 if axis in new else next(remaining) for axis in range(rank)]) if len(new) == len(axes) else None,)


def _flatten(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return ((ask.unknown(), ask.unknown()),)
    axis = number(node, "axis", 1)
    axis = axis if axis >= 0 else axis + len(shape)
    return ((expr.product(shape[:axis]), expr.product(shape[axis:])),)


def _expand(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    target = _sizes(ask.contents(node.inputs[1]), ask)
    shape = ask.shape(node.inputs[0])
    if target is None or shape is None:
        count = _unknown_dims(node.inputs[1], ask)
        return (None if count is None or shape is None or len(shape) > len(count) else count,)
    return (broadcast_shapes((shape, target)),)


def _tile(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None or len(node.inputs) > 2:  # opset 1 has a repeat count and an axis as inputs
        return (None if shape is None else tuple(ask.unknown() for _ in shape),)
    repeats = _sizes(ask.contents(node.inputs[1]), ask)
    if repeats is None or len(repeats) != len(shape):
        return (tuple(ask.unknown() for _ in shape),)
    return (tuple(expr.multiply(dim, by) for dim, by in zip(shape, repeats, strict=True)),)


def _constant_of_shape(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    sizes = _sizes(ask.contents(node.inputs[0]), ask)
    return (_unknown_dims(node.inputs[0], ask) if sizes is None else sizes,)


def _range(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    start, limit, step = ((ask.contents(value) or (None,))[0] for value in node.inputs)
    if start is None or limit is None or not isinstance(step, int) or not step:
        return ((ask.unknown(),),)
    if step < 0:  # as many elements as in the opposite direction
        start, limit, step = limit, start, -step
    length = expr.larger(expr.subtract(limit, start), 0)
    return ((expr.floor_quotient(expr.add(length, step - 1), step) if step != 1 else length,),)


def _shape(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return ((ask.unknown(),),)
    return ((len(shape[shape_window(node, len(shape))]),),)


def shape_window(node: ir.Node, rank: int) -> slice:
    """Return the slice of the dimensions that a Shape node returns."""
    start, end = number(node, "start", 0), number(node, "end", rank)
    first, last = (min(max(place + rank if place < 0 else place, 0), rank) for place in (start, end))
    return slice(first, max(first, last))


def _size(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    return ((),)


def _random(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    sizes = numbers(node, "shape")
    return (None if sizes is None else tuple(sizes),)


END = 2**31 - 1  # a Slice end that means "to the end of the axis"; the standard recommends it
_LARGEST = (2**31 - 1, 2**63 - 1)
Range = tuple[int, Size | None, Size | None, int | None]  # axis, start, end, step


def _concat(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shapes = [ask.shape(value) for value in node.inputs]
    known = [shape for shape in shapes if shape is not None]
    if not known or not known[0]:
        return (None,)
    rank = len(known[0])
    if any(len(shape) != rank for shape in known):
        return (None,)
    axis = number(node, "axis", 1) % rank
    dims: list[Size] = []
    for index in range(rank):
        if index == axis:
            complete = len(known) == len(shapes)
            dims.append(expr.total(shape[index] for shape in known) if complete else ask.unknown())
        else:  # all must be equal, so use the most precise one
            dims.append(min((shape[index] for shape in known), key=_uncertainty))
    return (tuple(dims),)


def _uncertainty(size: Size) -> int:
    return 0 if isinstance(size, int) else 1 + size.is_vague


def split_sizes(node: ir.Node, whole: Size, ask: Shapes) -> Sequence[Size] | None:
    """Return the sizes of the parts of a Split, or None if unknown."""
    count = len(node.outputs)
    if "split" in attributes(node) or operand(node, 1) is not None:
        parts: Sequence[Size | None] | None = numbers(node, "split") or ask.contents(operand(node, 1))
        if parts is None or len(parts) != count:
            return None
        return [ask.unknown() if part is None else part for part in parts]
    if isinstance(whole, int):
        step = -(-whole // count)
        return [max(0, min(step, whole - index * step)) for index in range(count)]
    part = expr.exact_quotient(whole, count)
    if part is None and "num_outputs" not in attributes(
        node
    ):  # before opset 18 all parts are equal, or the model cannot run
        part = expr.floor_quotient(whole, count)
    return None if part is None else [part] * count


def _split(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape, count = ask.shape(node.inputs[0]), len(node.outputs)
    if shape is None:
        return (None,) * count
    axis = number(node, "axis", 0) % len(shape)
    parts = split_sizes(node, shape[axis], ask) or [ask.unknown() for _ in range(count)]
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]


def slice_ranges(node: ir.Node, ask: Shapes) -> list[Range] | None:
    """Return the ranges of a Slice as they are written, or None if its axes are unknown."""
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return None
    starts: Contents | None
    ends: Contents | None
    if "starts" in attributes(node):
        starts, ends = tuple(numbers(node, "starts") or ()), tuple(numbers(node, "ends") or ())
    else:
        starts, ends = ask.contents(node.inputs[1]), ask.contents(node.inputs[2])
    if starts is None or ends is None or len(starts) != len(ends):
        return None
    named = "axes" in attributes(node) or operand(node, 3) is not None
    axes = ask.ints(node, "axes", 3) if named else range(len(starts))
    steps = ask.contents(operand(node, 4)) if operand(node, 4) is not None else (1,) * len(starts)
    if axes is None or steps is None or len(axes) != len(starts) or len(steps) != len(starts):
        return None
    whole = [step if isinstance(step, int) else None for step in steps]
    ranges = zip(axes, starts, ends, whole, strict=True)
    return [(axis % len(shape), start, end, step) for axis, start, end, step in ranges]


def slice_positions(size: int, start: int, end: int, step: int) -> range | None:
    """Return the positions that a Slice selects on an axis of a known size: as in Python, but clamped to the axis.

    None if implementations differ: with a negative step and the largest integer as the end, the result is empty by the
    standard but the whole axis in ONNX Runtime.
    """
    if step < 0 and end in _LARGEST:
        return None
    if step < 0 and start < -size:
        start = 0  # clamped, unlike in Python, where the result would be empty
    return range(*slice(start, None if step < 0 and end < -size else end, step).indices(size))


def _slice(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return (None,)
    ranges = slice_ranges(node, ask)
    if ranges is None:
        return (tuple(ask.unknown() for _ in shape),)
    dims = list(shape)
    for axis, start, end, step in ranges:
        dims[axis] = _sliced(shape[axis], start, end, step, ask)
    return (tuple(dims),)


def _sliced(size: Size, start: Size | None, end: Size | None, step: int | None, ask: Shapes) -> Size:
    if start is None or end is None or not step:
        return ask.unknown()
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        positions = slice_positions(size, start, end, step)
        return ask.unknown() if positions is None else len(positions)
    if step < 0:
        from_end = start == -1 or (isinstance(start, int) and start >= END)
        is_all = from_end and isinstance(end, int) and end <= -END
        return expr.floor_quotient(expr.add(size, -step - 1), -step) if is_all else ask.unknown()
    first = (
        start if expr.at_least(start, 0) else _clamped(start, size)
    )  # not clamped: a start past the end gives 0 either way
    last = _clamped(end, size)
    if first is None or last is None:
        return ask.unknown()
    length = expr.larger(expr.subtract(last, first), 0)
    return length if step == 1 else expr.floor_quotient(expr.add(length, step - 1), step)


def _clamped(bound: Size, size: Size) -> Size | None:
    """Return a bound of a Slice as a position in 0..size, or None if its sign is unknown.

    Negative bounds count from the end.
    """
    if isinstance(bound, int) and bound >= END:
        return size
    if expr.at_least(bound, 0):
        return expr.smaller(bound, size)
    if expr.at_least(expr.multiply(bound, -1), 1):
        return expr.larger(expr.add(size, bound), 0)
    if bound == expr.subtract(size, 1):  # negative only if the axis is empty, where it becomes 0
        return expr.larger(bound, 0)
    return None


def _gather(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape, indices = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    if shape is None or indices is None or not shape:
        return (None,)
    axis = number(node, "axis", 0) % len(shape)
    return ((*shape[:axis], *indices, *shape[axis + 1 :]),)


def _gather_elements(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    return (ask.shape(node.inputs[1]),)


def _gather_nd(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape, indices = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    batch = number(node, "batch_dims", 0)
    if shape is None or not indices or not isinstance(indices[-1], int):
        return (None,)
    return ((*indices[:-1], *shape[batch + indices[-1] :]),)


def _pad(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    attribute = numbers(node, "pads")
    pads: Contents | None = tuple(attribute) if attribute is not None else ask.contents(operand(node, 1))
    if shape is None:
        return (None,)
    axes = ask.ints(node, "", 3) if operand(node, 3) is not None else range(len(shape))
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return (tuple(ask.unknown() for _ in shape),)
    dims: list[Size] = list(shape)
    for index, axis in enumerate(axes):
        before, after = pads[index], pads[index + len(axes)]
        if before is None or after is None:
            dims[axis] = ask.unknown()
        else:
            dims[axis] = expr.total((dims[axis], before, after))
    return (tuple(dims),)


def _top_k(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return (None, None)
    attribute = attributes(node).get("k")
    count = (ask.contents(operand(node, 1)) or (None,))[0] if attribute is None else number(node, "k", 0)
    dims: list[Size] = list(shape)
    dims[number(node, "axis", -1)] = ask.unknown() if count is None else count
    return (tuple(dims),) * 2


def _one_hot(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    indices, depth = ask.shape(node.inputs[0]), (ask.contents(node.inputs[1]) or (None,))[0]
    if indices is None:
        return (None,)
    axis = number(node, "axis", -1) % (len(indices) + 1)
    return ((*indices[:axis], ask.unknown() if depth is None else depth, *indices[axis:]),)


def _non_zero(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    """Return (rank, count); the count is known if the operand was filled with one non-zero number."""
    value = node.inputs[0]
    shape, producer = ask.shape(value), None if value is None else value.producer()
    if shape is None:
        return (None,)
    filler = tensor(producer, "value") if producer is not None and producer.op_type == "ConstantOfShape" else None
    is_full = filler is not None and bool(filler.numpy().all())
    return ((len(shape), expr.product(shape) if is_full else ask.unknown()),)


def _sequence_at(node: ir.Node, ask: Shapes) -> OutputShapes | None:
    """Return the shape of one part of a split tensor, or of one element of a constructed sequence."""
    producer = node.inputs[0].producer() if node.inputs[0] is not None else None
    position = (ask.contents(operand(node, 1)) or (None,))[0]
    if producer is None or not isinstance(position, int):
        return (None,)
    if operator(producer) == "SequenceConstruct":
        return (ask.shape(producer.inputs[position]),)
    shape, parts = ask.shape(producer.inputs[0]), ask.contents(operand(producer, 1))
    if operator(producer) != "SplitToSequence" or shape is None:
        return (None,)
    axis = number(producer, "axis", 0) % len(shape)
    if operand(producer, 1) is None:
        split_axis = (1,) if number(producer, "keepdims", 1) else ()
        return ((*shape[:axis], *split_axis, *shape[axis + 1 :]),)
    size = _part(shape[axis], parts, position, is_list=bool(ask.shape(operand(producer, 1))))
    return ((*shape[:axis], ask.unknown() if size is None else size, *shape[axis + 1 :]),)


def _part(whole: Size, parts: Contents | None, position: int, *, is_list: bool) -> Size | None:
    """Return the size of one part: as listed, or the common size, of which the last part may have less."""
    if not parts:
        return None
    if is_list:
        return parts[position]
    step = parts[0]
    if step is None or (isinstance(step, int) and step < 1):
        return None
    if expr.exact_quotient(whole, step) is not None:
        return step
    if not isinstance(whole, int) or not isinstance(step, int):
        return None
    count = -(-whole // step)
    return min(step, whole - position % count * step)


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
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Pad": _pad,
    "TopK": _top_k,
    "OneHot": _one_hot,
    "NonZero": _non_zero,
    "SequenceAt": _sequence_at,
}
