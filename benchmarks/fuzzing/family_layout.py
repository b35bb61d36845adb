"""Chains that only move elements, sizes computed from shapes, and masks made of comparisons."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from fuzzing.draft import F32, LOWEST, Draft, Rejected, Value

HUGE = (2**63 - 1, 2**31 - 1, -(2**63), -(2**31), 1000, -1000)


def layout(draft: Draft) -> None:
    """A chain of moves, with an elementwise operator here and there."""
    rng = draft.rng
    dims = [draft.dim("N", 2), draft.dim("S", 4), 6][: rng.choice((2, 3, 3))]
    if draft.chance(0.3):
        dims.append(2)
    x = draft.input(rng.choice((F32, F32, np.int64, np.float16, np.bool_)), dims)
    pool = [x]
    for _ in range(rng.choice((3, 4, 6, 9))):
        value = pool[-1] if draft.chance(0.8) else rng.choice(pool)
        try:
            made = rng.choice(MOVES)(draft, value)
        except Rejected:
            continue
        if made.array.size <= 4000 and made.rank <= 6:
            pool.append(made)


def _reshape(draft: Draft, x: Value) -> Value:
    sizes = list(x.shape)
    kind = draft.rng.choice(("join", "split", "flat", "computed", "same", "zero"))
    if kind == "join" and x.rank > 1:
        axis = draft.rng.randrange(x.rank - 1)
        sizes[axis : axis + 2] = [-1] if draft.chance(0.7) else [sizes[axis] * sizes[axis + 1]]
    elif kind == "split" and x.rank:
        axis = draft.rng.randrange(x.rank)
        parts = [each for each in (2, 3) if sizes[axis] % each == 0 and sizes[axis]]
        if parts:
            part = draft.rng.choice(parts)
            sizes[axis : axis + 1] = [-1, part] if draft.chance(0.5) else [sizes[axis] // part, part]
    elif kind == "flat":
        sizes = [-1] if draft.chance(0.5) else [1, -1]
    elif kind == "computed":
        return draft.op("Reshape", x, _target(draft, x))
    elif kind == "zero":
        sizes = [0 if draft.chance(0.6) else size for size in sizes]
    return draft.op("Reshape", x, draft.ints(*sizes), allowzero=1 if draft.opset >= 14 and draft.chance(0.1) else None)


def _target(draft: Draft, x: Value) -> Value:
    """A target from the sizes of x: permuted, joined, or with -1."""
    parts = [_size(draft, x, axis) for axis in range(x.rank)]
    if draft.chance(0.5) and len(parts) > 1:
        axis = draft.rng.randrange(len(parts) - 1)
        parts[axis : axis + 2] = [draft.op("Mul", parts[axis], parts[axis + 1])]
    if draft.chance(0.3):
        draft.rng.shuffle(parts)
    if draft.chance(0.3) and parts:
        parts[draft.rng.randrange(len(parts))] = draft.ints(-1)
    if draft.chance(0.2):
        parts.append(draft.ints(1))
    return draft.op("Concat", *parts, axis=0)


def _size(draft: Draft, x: Value, axis: int) -> Value:
    """One size as a vector of one, in one of the ways that exporters read it."""
    if draft.opset >= 15 and draft.chance(0.3):
        return draft.op("Shape", x, start=axis, end=axis + 1)
    shape = draft.op("Shape", x)
    if draft.chance(0.5):
        return draft.unsqueeze(draft.op("Gather", shape, draft.const(axis, np.int64), axis=0), 0)
    if draft.chance(0.5):
        return draft.slice(shape, [axis], [axis + 1], [0], [1])
    return draft.op("Gather", shape, draft.ints(axis), axis=0)


def _transpose(draft: Draft, x: Value) -> Value:
    return draft.transpose(x, *draft.rng.sample(range(x.rank), x.rank))


def _slice(draft: Draft, x: Value) -> Value:
    if not x.rank:
        raise Rejected("a scalar")
    axis = draft.rng.randrange(x.rank)
    size = x.shape[axis]
    step = draft.rng.choice((1, 1, 1, 2, -1, -2))
    places = (*range(-size - 1, size + 2), *HUGE)
    start, end = draft.rng.choice(places), draft.rng.choice(places)
    if draft.opset < 10:
        step = 1
    return draft.slice(x, [start], [end], [axis - x.rank if draft.chance(0.3) else axis], [step])


def _halves(draft: Draft, x: Value) -> Value:
    """Split, or Slices that tile an axis, and put together again."""
    axis = draft.rng.randrange(max(x.rank, 1))
    if not x.rank or x.shape[axis] < 2:
        raise Rejected("too small")
    size = x.shape[axis]
    cut = draft.rng.randrange(1, size)
    if draft.chance(0.5):
        parts = draft.split(x, [cut, size - cut], axis)
    else:
        end = draft.rng.choice((size, *HUGE[:2]))
        parts = [draft.slice(x, [0], [cut], [axis], [1]), draft.slice(x, [cut], [end], [axis], [1])]
    if draft.chance(0.3):
        parts.reverse()
    if draft.chance(0.3):
        parts[0] = draft.op(draft.rng.choice(("Neg", "Abs", "Identity")), parts[0])
    return draft.op("Concat", *parts, axis=axis if draft.chance(0.85) else 0)


def _gather(draft: Draft, x: Value) -> Value:
    axis = draft.rng.randrange(max(x.rank, 1))
    size = x.shape[axis] if x.rank else 0
    kind = draft.rng.choice(("all", "reversed", "row", "scalar", "matrix", "range"))
    if kind == "range" and draft.opset >= 11:
        end = draft.squeeze(_size(draft, x, axis), 0)
        index = draft.op("Range", draft.const(0, np.int64), end, draft.const(1, np.int64))
    elif kind == "scalar":
        index = draft.const(draft.rng.choice((0, -1, size - 1)), np.int64)
    elif kind == "matrix":
        index = draft.const(np.zeros((2, 2), np.int64))
    else:
        rows = np.arange(size)[:: -1 if kind == "reversed" else 1]
        index = draft.const(rows[:1] if kind == "row" else rows, np.int64)
    return draft.op("Gather", x, index, axis=axis)


def _expand(draft: Draft, x: Value) -> Value:
    kind = draft.rng.choice(("front", "one", "same", "tile"))
    if kind == "tile" and draft.opset >= 6:
        return draft.op("Tile", x, draft.ints(*(draft.rng.choice((1, 1, 2, 0)) for _ in x.shape)))
    if kind == "front":
        return draft.op("Expand", x, draft.ints(2, *(1 for _ in x.shape)))
    if kind == "one" and x.rank:
        axis = draft.rng.randrange(x.rank + 1)
        wide = draft.unsqueeze(x, axis)
        return draft.op("Expand", wide, draft.ints(*(3 if a == axis else 1 for a in range(x.rank + 1))))
    return draft.op("Expand", x, draft.op("Shape", x))


def _squeeze(draft: Draft, x: Value) -> Value:
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    if ones and draft.chance(0.6):
        return draft.squeeze(x, draft.rng.choice(ones))
    return draft.unsqueeze(x, draft.rng.choice((0, -1, x.rank)))


def _pad(draft: Draft, x: Value) -> Value:
    pads = [draft.rng.choice((0, 0, 0, 1, -1)) for _ in range(2 * x.rank)]
    return draft.pad(x, pads, draft.rng.choice((0.0, 0.0, -1.0)), draft.rng.choice(("constant", "constant", "edge")))


def _between(draft: Draft, x: Value) -> Value:
    """Something that computes, between the moves."""
    if x.dtype == np.bool_:
        return draft.op("Not", x)
    kind = draft.rng.choice(("Neg", "Abs", "Relu", "add", "softmax", "scale", "sequence"))
    if kind == "softmax" and x.dtype.kind == "f" and x.rank:
        return draft.softmax(x)
    if kind == "sequence" and draft.opset >= 11 and x.rank:
        pieces = draft.ops("SplitToSequence", x, axis=0, keepdims=draft.rng.choice((0, 1)))[0]
        return draft.ops("SequenceAt", pieces, draft.const(draft.rng.choice((0, -1, 1)), np.int64))[0]
    if kind in ("add", "scale", "softmax", "sequence"):
        shape = [size if draft.chance(0.4) else 1 for size in x.shape][draft.rng.randrange(x.rank + 1) :]
        return draft.op("Add" if kind == "add" else "Mul", x, draft.normal(shape, x.dtype, 3.0))
    return draft.op(kind, x)


MOVES = (_reshape, _reshape, _transpose, _slice, _slice, _halves, _gather, _expand, _squeeze, _pad, _between)


# ---------------------------------------------------------------------------------------------- sizes


def sizes(draft: Draft) -> None:
    """Sizes read, computed with and used."""
    rng = draft.rng
    dims = [draft.dim("N", 4), draft.dim("S", 6), rng.choice((2, 3))]
    x = draft.input(F32, dims)
    y = draft.input(F32, dims if draft.chance(0.5) else (draft.dim("M", 3), 2, 2))
    pool = [_size(draft, rng.choice((x, y)), axis) for axis in (0, 1, 2)]
    for _ in range(rng.choice((1, 2, 4, 6))):
        try:
            pool.append(_arithmetic(draft, pool))
        except Rejected:
            continue
    for _ in range(rng.choice((1, 2, 3))):
        try:
            _use(draft, rng.choice((x, y)), pool)
        except Rejected:
            continue
    draft.outputs.append(pool[-1].name)


def _arithmetic(draft: Draft, pool: list[Value]) -> Value:
    a, b = draft.rng.choice(pool), draft.rng.choice(pool)
    kind = draft.rng.choice(("Add", "Sub", "Mul", "Div", "constant", "float", "Max", "Mod", "where", "int32"))
    if kind == "constant":
        b = draft.const([draft.rng.choice((1, 2, -1, 0, 7))], np.int64)
        return draft.op(draft.rng.choice(("Add", "Sub", "Mul", "Div")), a, b)
    if kind == "float":
        wide = draft.cast(a, draft.rng.choice((np.float32, np.float64, np.float16)))
        other = (
            draft.cast(b, wide.dtype)
            if draft.chance(0.4)
            else draft.const([draft.rng.choice((2.0, 0.5, 3.0))], wide.dtype)
        )
        made = draft.op(draft.rng.choice(("Div", "Mul")), wide, other)
        if draft.chance(0.6):
            made = draft.op(draft.rng.choice(("Floor", "Ceil")), made)
        return draft.cast(made, np.int64)
    if kind == "int32":
        return draft.cast(draft.op("Add", draft.cast(a, np.int32), draft.const([1], np.int32)), np.int64)
    if kind == "where":
        return draft.op("Where", draft.op(draft.rng.choice(("Equal", "Less", "Greater")), a, b), a, draft.ints(-1))
    if kind in ("Div", "Mod") and (b.array == 0).any():
        raise Rejected("division by 0")
    return draft.op(kind, a, b)


def _use(draft: Draft, x: Value, pool: list[Value]) -> Value:
    size = draft.rng.choice(pool)
    if size.shape != (1,) or abs(int(size.array[0])) > 60:
        raise Rejected("too large")
    kind = draft.rng.choice(("reshape", "expand", "range", "fill", "slice", "tile", "split"))
    if kind == "reshape":
        rest = draft.ints(-1) if draft.chance(0.6) else draft.rng.choice(pool)
        return draft.op("Reshape", x, draft.op("Concat", size, rest, axis=0))
    if kind == "expand":
        return draft.op("Expand", draft.unsqueeze(x, 0), draft.op("Concat", size, draft.ints(1, 1, 1), axis=0))
    if kind == "range":
        start, step = draft.const(draft.rng.choice((0, 1)), np.int64), draft.const(draft.rng.choice((1, 2)), np.int64)
        counted = draft.op("Range", start, draft.squeeze(size, 0), step)
        return draft.op("Mul", counted, draft.const(draft.rng.choice((1, 2)), np.int64))
    if kind == "fill":
        filling = numpy_helper.from_array(
            np.array([draft.rng.choice((0, 1, 2))], draft.rng.choice((np.float32, np.int64)))
        )
        return draft.op("ConstantOfShape", draft.op("Concat", size, draft.ints(2), axis=0), value=filling)
    if kind == "slice" and draft.opset >= 10:
        return draft.op("Slice", x, draft.ints(0), size, draft.ints(draft.rng.choice((0, 1))))
    if kind == "tile":
        return draft.op("Tile", x, draft.op("Concat", size, draft.ints(1, 1), axis=0))
    if draft.opset < 13:
        raise Rejected("no such input")
    rest = draft.op("Sub", _size(draft, x, 0), size)
    return draft.ops("Split", x, draft.op("Concat", size, rest, axis=0), outputs=2, axis=0)[0]


# ---------------------------------------------------------------------------------------------- masks


def masks(draft: Draft) -> None:
    """Conditions from ranges, comparisons and inputs, combined, expanded and turned into numbers."""
    rng = draft.rng
    rows, columns = draft.dim("S", 4), draft.dim("T", 5)
    x = draft.input(rng.choice((F32, F32, np.float16)), (draft.dim("B", 2), 1, rows, columns))
    conditions = [draft.input(np.bool_, (rows, columns), "mask"), _ramp(draft, x)]
    for _ in range(rng.choice((1, 2, 4))):
        try:
            conditions.append(_combined(draft, x, conditions))
        except Rejected:
            continue
    made = x
    for _ in range(rng.choice((1, 2, 3))):
        try:
            made = _applied(draft, made, x, rng.choice(conditions))
        except Rejected:
            continue


def _ramp(draft: Draft, x: Value) -> Value:
    shape = draft.op("Shape", x)
    ends = [draft.op("Gather", shape, draft.const(axis, np.int64), axis=0) for axis in (2, 3)]
    zero, one = draft.const(0, np.int64), draft.const(1, np.int64)
    if draft.chance(0.3):
        ends[1] = draft.op("Sub", draft.op("Add", ends[1], one), one)
    row = draft.unsqueeze(draft.op("Range", zero, ends[0], one), 1)
    column = draft.unsqueeze(draft.op("Range", zero, ends[1], one), 0)
    if draft.chance(0.4):
        column = draft.op("Add", column, draft.const(draft.rng.choice((1, -1, 2)), np.int64))
    if draft.chance(0.3):
        return draft.op("GreaterOrEqual" if draft.opset >= 12 else "Greater", column, draft.const(0, np.int64))
    return draft.op(draft.rng.choice(("Less", "Greater", "Equal")), column, row)


def _combined(draft: Draft, x: Value, conditions: list[Value]) -> Value:
    a, b = draft.rng.choice(conditions), draft.rng.choice(conditions)
    kind = draft.rng.choice(("And", "Or", "Xor", "not", "expand", "true", "unsqueeze", "cast"))
    if kind == "not":
        return draft.op("Not", a)
    if kind == "expand":
        return draft.op("Expand", a, draft.op("Shape", x))
    if kind == "unsqueeze":
        return draft.unsqueeze(a, 0)
    if kind == "true":
        shape = draft.rng.choice(((), (1,), (1, 1), (1, 1, 1, 1), (1, 1, 1, 1, 1)))
        return draft.op(draft.rng.choice(("And", "Or")), a, draft.const(np.full(shape, draft.chance(0.6))))
    if kind == "cast":
        return draft.cast(draft.cast(a, draft.rng.choice((np.float32, np.int64))), np.bool_)
    return draft.op(kind, a, b)


def _applied(draft: Draft, made: Value, x: Value, condition: Value) -> Value:
    dtype = x.dtype
    fills = (0.0, -np.inf, LOWEST, -1e4, 1.0, -0.0)
    kind = draft.rng.choice(("where", "numbers", "multiply", "bounded", "softmax", "summed"))
    if kind == "where":
        return draft.op("Where", condition, made, draft.scalar(draft.rng.choice(fills), dtype))
    if kind == "softmax":
        return draft.softmax(made)
    if kind == "multiply":
        return draft.op("Mul", made, draft.cast(condition, dtype))
    rank = draft.rng.choice((0, 1, 2, 4, 5))
    chosen = [draft.const(np.full((1,) * rank, draft.rng.choice(fills)).astype(dtype)) for _ in range(2)]
    numbers = draft.op("Where", condition, *chosen)
    if kind == "bounded":
        op_type = draft.rng.choice(("Max", "Min", "Add", "Mul", "Sub"))
        numbers = draft.op(op_type, numbers, draft.scalar(draft.rng.choice((-9.0, 0.0, 2.0, LOWEST)), dtype))
    if kind == "summed":
        other = draft.op("Where", draft.op("Not", condition), draft.scalar(draft.rng.choice(fills), dtype), chosen[0])
        numbers = draft.op("Add", numbers, other)
    return draft.op("Add", made, numbers)
