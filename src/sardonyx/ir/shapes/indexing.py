"""What operators that pick, join and surround elements make of shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import attributes, number, numbers, operand, tensor
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.operators import Rule, Shapely
from sardonyx.ir.shapes.queries import Ask, Contents

END = 2**31 - 1  # what the standard recommends for "up to the end, however far that is"
_LARGEST = (2**31 - 1, 2**63 - 1)
Range = tuple[int, Size | None, Size | None, int | None]  # axis, start, end, step


def _concat(node: ir.Node, ask: Ask) -> Shapely | None:
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
        else:  # all must be alike: the best known one tells
            dims.append(min((shape[index] for shape in known), key=_vagueness))
    return (tuple(dims),)


def _vagueness(size: Size) -> int:
    return 0 if isinstance(size, int) else 1 + size.is_vague


def split_sizes(node: ir.Node, whole: Size, ask: Ask) -> Sequence[Size] | None:
    """How long the parts of a Split are; None where that is not known."""
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
    if part is None and "num_outputs" not in attributes(node):  # else they are all alike, or the model cannot run
        part = expr.floor_quotient(whole, count)
    return None if part is None else [part] * count


def _split(node: ir.Node, ask: Ask) -> Shapely | None:
    shape, count = ask.shape(node.inputs[0]), len(node.outputs)
    if shape is None:
        return (None,) * count
    axis = number(node, "axis", 0) % len(shape)
    parts = split_sizes(node, shape[axis], ask) or [ask.unknown() for _ in range(count)]
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]


def slice_ranges(node: ir.Node, ask: Ask) -> list[Range] | None:
    """The ranges of a Slice, as they are written; None where its axes are not known."""
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


def window(size: int, start: int, end: int, step: int) -> range | None:
    """The places a Slice picks on an axis of a known size: as Python does, but never before the first place.

    None where engines differ: backwards up to the largest integer is nothing by the standard, and all of the axis to
    ONNX Runtime.
    """
    if step < 0 and end in _LARGEST:
        return None
    if step < 0 and start < -size:
        start = 0  # where counting backwards begins at the earliest
    return range(*slice(start, None if step < 0 and end < -size else end, step).indices(size))


def _slice(node: ir.Node, ask: Ask) -> Shapely | None:
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


def _sliced(size: Size, start: Size | None, end: Size | None, step: int | None, ask: Ask) -> Size:
    if start is None or end is None or not step:
        return ask.unknown()
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        places = window(size, start, end, step)
        return ask.unknown() if places is None else len(places)
    if step < 0:
        from_end = start == -1 or (isinstance(start, int) and start >= END)
        is_all = from_end and isinstance(end, int) and end <= -END
        return expr.floor_quotient(expr.add(size, -step - 1), -step) if is_all else ask.unknown()
    first = start if expr.at_least(start, 0) else _clamped(start, size)  # past the end it leaves nothing either way
    last = _clamped(end, size)
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
    if place == expr.subtract(size, 1):  # only an empty axis has it count from the end, and then it is the start
        return expr.larger(place, 0)
    return None


def _gather(node: ir.Node, ask: Ask) -> Shapely | None:
    shape, indices = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    if shape is None or indices is None or not shape:
        return (None,)
    axis = number(node, "axis", 0) % len(shape)
    return ((*shape[:axis], *indices, *shape[axis + 1 :]),)


def _gather_elements(node: ir.Node, ask: Ask) -> Shapely | None:
    return (ask.shape(node.inputs[1]),)


def _gather_nd(node: ir.Node, ask: Ask) -> Shapely | None:
    shape, indices = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    batch = number(node, "batch_dims", 0)
    if shape is None or not indices or not isinstance(indices[-1], int):
        return (None,)
    return ((*indices[:-1], *shape[batch + indices[-1] :]),)


def _pad(node: ir.Node, ask: Ask) -> Shapely | None:
    shape = ask.shape(node.inputs[0])
    given = numbers(node, "pads")
    pads: Contents | None = tuple(given) if given is not None else ask.contents(operand(node, 1))
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


def _top_k(node: ir.Node, ask: Ask) -> Shapely | None:
    shape = ask.shape(node.inputs[0])
    if shape is None:
        return (None, None)
    given = attributes(node).get("k")
    count = (ask.contents(operand(node, 1)) or (None,))[0] if given is None else number(node, "k", 0)
    dims: list[Size] = list(shape)
    dims[number(node, "axis", -1)] = ask.unknown() if count is None else count
    return (tuple(dims),) * 2


def _one_hot(node: ir.Node, ask: Ask) -> Shapely | None:
    indices, depth = ask.shape(node.inputs[0]), (ask.contents(node.inputs[1]) or (None,))[0]
    if indices is None:
        return (None,)
    axis = number(node, "axis", -1) % (len(indices) + 1)
    return ((*indices[:axis], ask.unknown() if depth is None else depth, *indices[axis:]),)


def _non_zero(node: ir.Node, ask: Ask) -> Shapely | None:
    """As many places as there are elements that are not zero: all of a tensor that was filled with one number."""
    value = node.inputs[0]
    shape, maker = ask.shape(value), None if value is None else value.producer()
    if shape is None:
        return (None,)
    filler = tensor(maker, "value") if maker is not None and maker.op_type == "ConstantOfShape" else None
    is_full = filler is not None and bool(filler.numpy().all())
    return ((len(shape), expr.product(shape) if is_full else ask.unknown()),)


def _sequence_at(node: ir.Node, ask: Ask) -> Shapely | None:
    """A part of what was split, or one of the values put together."""
    maker = node.inputs[0].producer() if node.inputs[0] is not None else None
    place = (ask.contents(operand(node, 1)) or (None,))[0]
    if maker is None or not isinstance(place, int):
        return (None,)
    if maker.op_type == "SequenceConstruct":
        return (ask.shape(maker.inputs[place]),)
    shape, parts = ask.shape(maker.inputs[0]), ask.contents(operand(maker, 1))
    if maker.op_type != "SplitToSequence" or shape is None:
        return (None,)
    axis = number(maker, "axis", 0) % len(shape)
    if operand(maker, 1) is None:
        kept = (1,) if number(maker, "keepdims", 1) else ()
        return ((*shape[:axis], *kept, *shape[axis + 1 :]),)
    size = _part(shape[axis], parts, place, is_list=bool(ask.shape(operand(maker, 1))))
    return ((*shape[:axis], ask.unknown() if size is None else size, *shape[axis + 1 :]),)


def _part(whole: Size, parts: Contents | None, place: int, *, is_list: bool) -> Size | None:
    """The size of one part: as listed, or all alike but for the last one."""
    if not parts:
        return None
    if is_list:
        return parts[place]
    step = parts[0]
    if step is None or (isinstance(step, int) and step < 1):
        return None
    if expr.exact_quotient(whole, step) is not None:
        return step
    if not isinstance(whole, int) or not isinstance(step, int):
        return None
    count = -(-whole // step)
    return min(step, whole - place % count * step)


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
