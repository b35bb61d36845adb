"""Shape rules for operators that select, join and pad: Concat, Split, Slice, Gather, Pad, TopK and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from sardonyx.ir.scopes import operand, operator
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import attributes, number, numbers, tensor
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.operators import OutputShapes, Rule
from sardonyx.ir.shapes.queries import Contents, ShapeQueries

END = 2**31 - 1  # a Slice end that means "to the end of the axis"; the standard recommends it
_LARGEST = (2**31 - 1, 2**63 - 1)
Range = tuple[int, Size | None, Size | None, int | None]  # axis, start, end, step


def _concat(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
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


def split_sizes(node: ir.Node, whole: Size, ask: ShapeQueries) -> Sequence[Size] | None:
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


def _split(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape, count = ask.shape(node.inputs[0]), len(node.outputs)
    if shape is None:
        return (None,) * count
    axis = number(node, "axis", 0) % len(shape)
    parts = split_sizes(node, shape[axis], ask) or [ask.unknown() for _ in range(count)]
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]


def slice_ranges(node: ir.Node, ask: ShapeQueries) -> list[Range] | None:
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


def _slice(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
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


def _sliced(size: Size, start: Size | None, end: Size | None, step: int | None, ask: ShapeQueries) -> Size:
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


def _gather(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape, indices = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    if shape is None or indices is None or not shape:
        return (None,)
    axis = number(node, "axis", 0) % len(shape)
    return ((*shape[:axis], *indices, *shape[axis + 1 :]),)


def _gather_elements(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    return (ask.shape(node.inputs[1]),)


def _gather_nd(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape, indices = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    batch = number(node, "batch_dims", 0)
    if shape is None or not indices or not isinstance(indices[-1], int):
        return (None,)
    return ((*indices[:-1], *shape[batch + indices[-1] :]),)


def _pad(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
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


def _top_k(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return (None, None)
    attribute = attributes(node).get("k")
    count = (ask.contents(operand(node, 1)) or (None,))[0] if attribute is None else number(node, "k", 0)
    dims: list[Size] = list(shape)
    dims[number(node, "axis", -1)] = ask.unknown() if count is None else count
    return (tuple(dims),) * 2


def _one_hot(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    indices, depth = ask.shape(node.inputs[0]), (ask.contents(node.inputs[1]) or (None,))[0]
    if indices is None:
        return (None,)
    axis = number(node, "axis", -1) % (len(indices) + 1)
    return ((*indices[:axis], ask.unknown() if depth is None else depth, *indices[axis:]),)


def _non_zero(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    """Return (rank, count); the count is known if the operand was filled with one non-zero number."""
    value = node.inputs[0]
    shape, producer = ask.shape(value), None if value is None else value.producer()
    if shape is None:
        return (None,)
    filler = tensor(producer, "value") if producer is not None and producer.op_type == "ConstantOfShape" else None
    is_full = filler is not None and bool(filler.numpy().all())
    return ((len(shape), expr.product(shape) if is_full else ask.unknown()),)


def _sequence_at(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
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
