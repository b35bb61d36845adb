"""Shape rules for operators that rearrange, repeat, create, select, join or pad elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.ir.scopes import operator
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.node_view import Contents, NodeView, Shape, Unknown
from sardonyx.ir.shapes.operators import OutputShapes, Rule, broadcast_shapes


def _sizes(node: NodeView, index: int) -> Shape | None:
    """Return the shape that an operand holds; None if not even its rank is known."""
    contents, shape = node.contents(index), node.shape(index)
    if contents is not None:
        return tuple([node.ask.unknown() if item is None or item == -1 else item for item in contents])
    return node.unknowns(shape[0]) if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None


def _transpose(node: NodeView) -> OutputShapes | None:
    shape, perm = node.shape(), node.numbers("perm")
    if shape is None:
        return (None if perm is None else node.unknowns(len(perm)),)
    if perm is None:
        return (tuple(reversed(shape)),)
    return (tuple([shape[axis] for axis in perm]) if sorted(perm) == list(range(len(shape))) else None,)


def _reshape(node: NodeView) -> OutputShapes | None:
    before_5 = node.has("shape")
    target = tuple(node.numbers("shape") or ()) if before_5 else node.contents(1)
    if target is None:
        return (_sizes(node, 1),)
    source, zeros = node.shape(), node.number("allowzero", 0) == 1
    if source is not None and not zeros:
        # Beyond the rank of the input, a 0 in the target has nothing to copy and is an error. So where such a size is
        # that of a dimension "size or copied" of the input, it is never 0, and the dimension is `size`.
        for size in target[len(source) :]:
            for dim in source:
                atom = expr.only_atom(dim)
                if atom is not None and atom.kind == "or" and atom.args[0] == size:
                    node.ask.resolve(node.node, atom, atom.args[0])
    return (_resolved_target(node, source, target, zeros=zeros),)


def _resolved_target(node: NodeView, source: Shape | None, target: Contents, *, zeros: bool) -> Shape:
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
        is_vague = any(isinstance(size, expr.Expr) and size.is_vague for size in (*source, others))
        if quotient is not None:
            dims[position] = quotient
        elif target[position] == -1 and others != 0 and not is_vague:
            dims[position] = expr.floor_quotient(expr.product(source), others)
    return tuple([node.ask.unknown() if dim is None or dim == -1 else dim for dim in dims])


def _read_size(source: Shape | None, index: int, dim: Size | None, zeros: bool) -> Size | None:
    """Return one dimension of a target as Reshape reads it, or None if it is unknown and may be -1."""
    copied = source[index] if source is not None and index < len(source) else None
    if dim is None or isinstance(dim, int):
        return copied if dim == 0 and not zeros else dim
    if not expr.at_least(dim, 0):
        return None
    if zeros or expr.at_least(dim, 1):
        return dim
    if copied is None:  # a 0 without a dimension to copy is an error
        return None if source is None else dim
    return expr.copied_if_zero(dim, copied)


def _others(dims: Sequence[Size | None], position: int) -> list[Size]:
    return [dim for index, dim in enumerate(dims) if index != position and dim is not None]


def _squeeze(node: NodeView) -> OutputShapes | None:
    shape = node.known()
    if not node.has("axes") and node.operand(1) is None:
        return (tuple(dim for dim in shape if dim != 1) if all(isinstance(dim, int) for dim in shape) else None,)
    axes = node.ints("axes", 1)
    if not axes:  # implementations differ on an empty list
        return (None,)
    removed = {axis % len(shape) for axis in axes}
    return (tuple([dim for axis, dim in enumerate(shape) if axis not in removed]),)


def _unsqueeze(node: NodeView) -> OutputShapes | None:
    shape, axes = node.known(), node.ints("axes", 1)
    if axes is None:
        return (None,)
    rank = len(shape) + len(axes)
    new, remaining = {axis % rank for axis in axes}, iter(shape)
    return (tuple([1 if axis in new else next(remaining) for axis in range(rank)]) if len(new) == len(axes) else None,)


def _flatten(node: NodeView) -> OutputShapes | None:
    shape, axis = node.shape(), node.number("axis", 1)
    if shape is None:
        return (node.unknowns(2),)
    axis = axis if axis >= 0 else axis + len(shape)
    return ((expr.product(shape[:axis]), expr.product(shape[axis:])),)


def _expand(node: NodeView) -> OutputShapes | None:
    shape, target = node.known(), _sizes(node, 1)
    if target is None or node.contents(1) is not None:
        return (broadcast_shapes((shape, target)),)
    return (target if len(target) >= len(shape) else None,)


def _tile(node: NodeView) -> OutputShapes | None:
    shape, repeats = node.known(), node.contents(1)
    if repeats is None or len(repeats) != len(shape):  # in opset 1 it is one count, for an axis
        return (node.unknowns(len(shape)),)
    return (tuple(expr.multiply(dim, by) for dim, by in zip(shape, _sizes(node, 1) or (), strict=True)),)


def _range(node: NodeView) -> OutputShapes | None:
    start, limit, step = (node.scalar(index) for index in range(3))
    if start is None or limit is None or not isinstance(step, int) or not step:
        return (node.unknowns(1),)
    if step < 0:  # as many elements as in the opposite direction
        start, limit, step = limit, start, -step
    length = expr.larger(expr.subtract(limit, start), 0)
    return ((expr.floor_quotient(expr.add(length, step - 1), step) if step != 1 else length,),)


def _shape(node: NodeView) -> OutputShapes | None:
    shape = node.shape()
    return (node.unknowns(1) if shape is None else (len(shape[shape_window(node, len(shape))]),),)


def shape_window(node: NodeView, rank: int) -> slice:
    """Return the slice of the dimensions that a Shape node returns."""
    start, end = node.number("start", 0), node.number("end", rank)
    first, last = (min(max(place + rank if place < 0 else place, 0), rank) for place in (start, end))
    return slice(first, max(first, last))


def _random(node: NodeView) -> OutputShapes | None:
    sizes = node.numbers("shape")
    return (None if sizes is None else tuple(sizes),)


SLICE_END = 2**31 - 1  # a Slice end that means "to the end of the axis"; the standard recommends it
_LARGEST_INTEGERS = (2**31 - 1, 2**63 - 1)
Range = tuple[int, Size | None, Size | None, int | None]  # axis, start, end, step


def _concat(node: NodeView) -> OutputShapes | None:
    shapes = [node.ask.shape(value) for value in node.node.inputs]
    known = [shape for shape in shapes if shape is not None]
    if not known or not known[0] or any(len(shape) != len(known[0]) for shape in known):
        return (None,)
    axis = node.number("axis", 1) % len(known[0])
    dims: list[Size] = []
    for index, sizes in enumerate(zip(*known, strict=True)):
        if index == axis:
            dims.append(expr.total(sizes) if len(known) == len(shapes) else node.ask.unknown())
        else:  # all must be equal, so use the most precise one
            dims.append(min(sizes, key=lambda size: 0 if isinstance(size, int) else 1 + size.is_vague))
    return (tuple(dims),)


def split_sizes(node: NodeView, whole: Size) -> Sequence[Size] | None:
    """Return the sizes of the parts of a Split, or None if unknown."""
    count = len(node.node.outputs)
    if node.has("split") or node.operand(1) is not None:
        parts: Sequence[Size | None] | None = node.numbers("split") or node.contents(1)
        if parts is None or len(parts) != count:
            return None
        return [node.ask.unknown() if part is None else part for part in parts]
    if isinstance(whole, int):
        step = -(-whole // count)
        return [max(0, min(step, whole - index * step)) for index in range(count)]
    part = expr.exact_quotient(whole, count)
    if part is None and not node.has("num_outputs"):  # before opset 18 all parts are equal, or the model cannot run
        part = expr.floor_quotient(whole, count)
    return None if part is None else [part] * count


def _split(node: NodeView) -> OutputShapes | None:
    shape = node.known()
    axis = node.number("axis", 0) % len(shape)
    parts = split_sizes(node, shape[axis]) or node.unknowns(len(node.node.outputs))
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]


def slice_ranges(node: NodeView) -> list[Range] | None:
    """Return the ranges of a Slice as they are written, or None if its axes are unknown."""
    shape = node.shape()
    if node.has("starts"):
        starts, ends = tuple(node.numbers("starts") or ()), tuple(node.numbers("ends") or ())
    else:
        starts, ends = node.contents(1), node.contents(2)
    if shape is None or starts is None or ends is None or len(starts) != len(ends):
        return None
    axes = node.ints("axes", 3) if node.has("axes") or node.operand(3) is not None else range(len(starts))
    steps = node.contents(4) if node.operand(4) is not None else (1,) * len(starts)
    if axes is None or steps is None or len(axes) != len(starts) or len(steps) != len(starts):
        return None
    whole = [step if isinstance(step, int) else None for step in steps]
    return [
        (axis % len(shape), start, end, step) for axis, start, end, step in zip(axes, starts, ends, whole, strict=True)
    ]


def slice_positions(size: int, start: int, end: int, step: int) -> range | None:
    """Return the positions that a Slice selects on an axis of a known size: as in Python, but clamped to the axis.

    None if implementations differ (`support.LAST_SLICE`).
    """
    if step < 0 and end in _LARGEST_INTEGERS:
        return None
    if step < 0 and start < -size:
        start = 0  # clamped, unlike in Python, where the result would be empty
    return range(*slice(start, None if step < 0 and end < -size else end, step).indices(size))


def _slice(node: NodeView) -> OutputShapes | None:
    shape, ranges = node.known(), slice_ranges(node)
    if ranges is None:
        return (node.unknowns(len(shape)),)
    dims = list(shape)
    for axis, start, end, step in ranges:
        dims[axis] = _sliced(shape[axis], start, end, step, node)
    return (tuple(dims),)


def _sliced(size: Size, start: Size | None, end: Size | None, step: int | None, node: NodeView) -> Size:
    if start is None or end is None or not step:
        return node.ask.unknown()
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        positions = slice_positions(size, start, end, step)
        return node.ask.unknown() if positions is None else len(positions)
    if step < 0:
        from_end = start == -1 or (isinstance(start, int) and start >= SLICE_END)
        is_all = from_end and isinstance(end, int) and end <= -SLICE_END
        return expr.floor_quotient(expr.add(size, -step - 1), -step) if is_all else node.ask.unknown()
    # a start past the end gives 0 either way, so it need not be clamped
    first, last = start if expr.at_least(start, 0) else _clamped(start, size), _clamped(end, size)
    if first is None or last is None:
        return node.ask.unknown()
    length = expr.larger(expr.subtract(last, first), 0)
    return length if step == 1 else expr.floor_quotient(expr.add(length, step - 1), step)


def _clamped(bound: Size, size: Size) -> Size | None:
    """Return a bound of a Slice as a position in 0..size, or None if its sign is unknown.

    Negative bounds count from the end.
    """
    if isinstance(bound, int) and bound >= SLICE_END:
        return size
    if expr.at_least(bound, 0):
        return expr.smaller(bound, size)
    if expr.at_least(expr.multiply(bound, -1), 1):
        return expr.larger(expr.add(size, bound), 0)
    if bound == expr.subtract(size, 1):  # negative only if the axis is empty, where it becomes 0
        return expr.larger(bound, 0)
    return None


def _gather(node: NodeView) -> OutputShapes | None:
    shape, indices = node.known(), node.known(1)
    if not shape:
        return (None,)
    axis = node.number("axis", 0) % len(shape)
    return ((*shape[:axis], *indices, *shape[axis + 1 :]),)


def _gather_nd(node: NodeView) -> OutputShapes | None:
    shape, indices, batch = node.known(), node.known(1), node.number("batch_dims", 0)
    if not indices or not isinstance(indices[-1], int):
        return (None,)
    return ((*indices[:-1], *shape[batch + indices[-1] :]),)


def _pad(node: NodeView) -> OutputShapes | None:
    shape, attribute = node.known(), node.numbers("pads")
    pads: Contents | None = tuple(attribute) if attribute is not None else node.contents(1)
    axes = node.ints("", 3) if node.operand(3) is not None else range(len(shape))
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return (node.unknowns(len(shape)),)
    dims: list[Size] = list(shape)
    for axis, before, after in zip(axes, pads, pads[len(axes) :], strict=False):
        if before is None or after is None:
            dims[axis] = node.ask.unknown()
        else:
            dims[axis] = expr.total((dims[axis], before, after))
    return (tuple(dims),)


def _top_k(node: NodeView) -> OutputShapes | None:
    dims = list(node.known())
    count = node.number("k", 0) if node.has("k") else node.scalar(1)
    dims[node.number("axis", -1)] = node.ask.unknown() if count is None else count
    return (tuple(dims),) * 2


def _one_hot(node: NodeView) -> OutputShapes | None:
    indices, depth = node.known(), node.scalar(1)
    axis = node.number("axis", -1) % (len(indices) + 1)
    return ((*indices[:axis], node.ask.unknown() if depth is None else depth, *indices[axis:]),)


def _non_zero(node: NodeView) -> OutputShapes | None:
    """Return (rank, count); the count is known if the operand was filled with one non-zero number."""
    shape, value = node.known(), node.operand()
    producer = None if value is None else value.producer()
    filler = None
    if producer is not None and producer.op_type == "ConstantOfShape":
        filler = NodeView(producer, node.ask).tensor("value")
    is_full = filler is not None and bool(filler.numpy().all())
    return ((len(shape), expr.product(shape) if is_full else node.ask.unknown()),)


def _sequence_at(node: NodeView) -> OutputShapes | None:
    """Return the shape of one part of a split tensor, or of one element of a constructed sequence."""
    value, position = node.operand(), node.scalar(1)
    producer = None if value is None else value.producer()
    if producer is None or not isinstance(position, int):
        raise Unknown
    maker = NodeView(producer, node.ask)
    if operator(producer) == "SequenceConstruct":
        return (maker.shape(position),)
    if operator(producer) != "SplitToSequence":
        raise Unknown
    shape = maker.known()
    axis = maker.number("axis", 0) % len(shape)
    if maker.operand(1) is None:
        split_axis: Shape = (1,) if maker.number("keepdims", 1) else ()
    else:
        size = _part(shape[axis], maker.contents(1), position, is_list=bool(maker.shape(1)))
        split_axis = (node.ask.unknown() if size is None else size,)
    return ((*shape[:axis], *split_axis, *shape[axis + 1 :]),)


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
    "ConstantOfShape": lambda node: (_sizes(node, 0),),
    "Range": _range,
    "Shape": _shape,
    "Size": lambda _: ((),),
    "RandomNormal": _random,
    "RandomUniform": _random,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": lambda node: (node.shape(1),),
    "GatherND": _gather_nd,
    "Pad": _pad,
    "TopK": _top_k,
    "OneHot": _one_hot,
    "NonZero": _non_zero,
    "SequenceAt": _sequence_at,
}
