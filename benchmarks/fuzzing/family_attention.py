"""Attention in every written form: masks, fills, scales, casts, layouts, grouped heads, and as an operator."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from fuzzing.draft import CONTRIB, F32, LOWEST, Dim, Draft, Rejected, Value

FILLS = (-np.inf, LOWEST, -1e4, -1e9, -3.4e38, -65504.0, 0.0, 1.0)
SCALES = (0.5, 0.25, 0.3, 1.0, -0.5, 2.0, 8.0)


def attention(draft: Draft) -> None:
    """One attention, or two that share inputs."""
    rng = draft.rng
    dtype = rng.choice((F32, F32, F32, F32, np.float16, np.float64))
    heads, width = rng.choice(((2, 4), (1, 8), (4, 2), (2, 3)))
    batch, length = draft.dim("B", 2), draft.dim("S", 5)
    other = length if draft.chance(0.6) else draft.dim("T", 6)
    if draft.chance(0.5):
        x = draft.input(dtype, (batch, length, heads * width))
        y = x if other == length else draft.input(dtype, (batch, other, heads * width))
        query, key, value = (_projected(draft, each, heads, width) for each in (x, y, y))
    else:
        groups = rng.choice([each for each in (1, heads) if heads % each == 0])
        query = draft.input(dtype, (batch, heads, length, width))
        key = draft.input(dtype, (batch, groups, other, width))
        value = draft.input(dtype, (batch, groups, other, rng.choice((width, width, 5))))
        if groups != heads:
            key, value = _repeated(draft, key, heads), _repeated(draft, value, heads)
    made = _written(draft, query, key, value, batch, length, other)
    if draft.chance(0.6):
        joined = draft.transpose(made, 0, 2, 1, 3)
        merged = draft.reshape(joined, 0, 0, made.shape[1] * made.shape[3])
        if draft.chance(0.4):
            inner = merged.shape[-1]
            draft.op(
                "Add", draft.op("MatMul", merged, draft.normal((inner, inner), dtype)), draft.normal((inner,), dtype)
            )
    elif draft.chance(0.3):
        draft.op("Mul", made, draft.scalar(2.0, dtype))


def _projected(draft: Draft, x: Value, heads: int, width: int) -> Value:
    """x W + b, reshaped to heads and moved to the front."""
    made = x
    if draft.chance(0.8):
        made = draft.op("MatMul", x, draft.normal((heads * width, heads * width), x.dtype, 0.4))
        if draft.chance(0.7):
            bias = draft.normal((heads * width,), x.dtype)
            made = draft.op("Add", made, bias) if draft.chance(0.7) else draft.op("Add", bias, made)
    target = (0, 0, heads, width) if draft.chance(0.6) else (0, -1, heads, width)
    return draft.transpose(draft.reshape(made, *target), 0, 2, 1, 3)


def _repeated(draft: Draft, value: Value, heads: int) -> Value:
    """Every group of keys or values for as many heads as use it."""
    times, width = heads // value.shape[1], value.shape[3]
    if draft.chance(0.3):
        return draft.op("Concat", *[value] * times, axis=1)
    if draft.chance(0.3):
        return draft.op("Tile", value, draft.ints(1, times, 1, 1))
    wide = draft.op("Expand", draft.unsqueeze(value, 2), draft.ints(1, 1, times, 1, 1))
    return _flattened(draft, wide, heads, width)


def _flattened(draft: Draft, value: Value, heads: int, width: int) -> Value:
    shape = draft.op("Shape", value)
    batch = draft.op("Gather", shape, draft.ints(0), axis=0)
    return draft.op("Reshape", value, draft.op("Concat", batch, draft.ints(heads, -1, width), axis=0))


def _written(draft: Draft, query: Value, key: Value, value: Value, batch: Dim, length: Dim, other: Dim) -> Value:
    if draft.opset >= 23 and draft.chance(0.25):
        return _standard(draft, query, key, value, batch, length, other)
    dtype = query.dtype
    if draft.chance(0.35):
        query = _scaled(draft, query)
    turned = draft.transpose(key, 0, 1, 3, 2)
    if draft.chance(0.25):
        turned = _scaled(draft, turned)
    if draft.chance(0.25):
        value = _scaled(draft, value)
    scores = draft.op("MatMul", query, turned)
    if draft.chance(0.6):
        scores = _scaled(draft, scores)
    for _ in range(draft.rng.choice((0, 1, 1, 1, 2))):
        scores = _masked(draft, scores, batch, length, other)
        if draft.chance(0.15):
            scores = _scaled(draft, scores)
    chances = draft.softmax(_through(draft, scores, 0.15))
    if draft.chance(0.1):
        chances = draft.op("Dropout", chances)
    if draft.chance(0.08):  # what exporters write for rows that are hidden whole
        chances = draft.op("Where", draft.op("IsNaN", chances), draft.scalar(0, dtype), chances)
    if draft.chance(0.08):
        chances = _scaled(draft, chances)
    if draft.chance(0.1):
        draft.outputs.append(chances.name)
    return draft.op("MatMul", _through(draft, chances, 0.12), value)


def _scaled(draft: Draft, value: Value) -> Value:
    """Multiplied or divided by a number, or by a constant with axes."""
    number = draft.rng.choice(SCALES)
    scale = draft.scalar(number, value.dtype)
    if draft.chance(0.15):
        shape = [size if draft.chance(0.5) and axis in (1, 3) else 1 for axis, size in enumerate(value.shape)]
        scale = draft.normal(shape, value.dtype)
    op_type = draft.rng.choice(("Mul", "Mul", "Div"))
    if op_type == "Mul" and draft.chance(0.5):
        return draft.op("Mul", scale, value)
    return draft.op(op_type, value, scale)


def _through(draft: Draft, value: Value, probability: float) -> Value:
    """Cast to another type and back."""
    if not draft.chance(probability):
        return value
    kinds = (np.float64, np.float32, np.float16, np.int32, np.bool_)
    return draft.cast(draft.cast(value, draft.rng.choice(kinds)), value.dtype)


# ---------------------------------------------------------------------------------------------- masks


def _masked(draft: Draft, scores: Value, batch: Dim, length: Dim, other: Dim) -> Value:
    dtype, fill = scores.dtype, draft.rng.choice(FILLS)
    kind = draft.rng.choice(("float", "float", "where", "where", "where constants", "padding", "causal", "constant"))
    if kind == "float":
        dims = draft.rng.choice(
            ((batch, 1, length, other), (length, other), (1, 1, length, other), (batch, 1, 1, other))
        )
        return _added(draft, scores, draft.input(dtype, dims, "mask"))
    if kind == "where":
        seen = _seen(draft, scores, batch, length, other)
        if draft.chance(0.2):
            return draft.op("Where", draft.op("Not", seen), draft.scalar(fill, dtype), scores)
        return draft.op("Where", seen, scores, draft.scalar(fill, dtype))
    if kind == "where constants":
        seen = _seen(draft, scores, batch, length, other)
        rank = draft.rng.choice((0, 1, 4))
        low, high = (
            draft.const(np.full((1,) * rank, each).astype(dtype)) for each in (fill, draft.rng.choice((0, 0, fill)))
        )
        return _added(draft, scores, draft.op("Where", seen, high, low))
    if kind == "padding":
        given = draft.input(draft.rng.choice((np.int64, np.int64, np.float32)), (batch, other), "binary")
        ones = draft.cast(draft.unsqueeze(given, 1, 2), dtype)
        hidden = draft.op("Sub", draft.scalar(1, dtype), ones)
        return _added(draft, scores, draft.op("Mul", hidden, draft.scalar(max(fill, LOWEST), dtype)))
    if kind == "causal":
        return _added(draft, scores, _causal(draft, scores, fill))
    shape = draft.rng.choice((scores.shape[-2:], scores.shape[-1:], (1, scores.shape[1], 1, 1)))
    levels = np.array([0, fill, -1.0, draft.rng.choice(FILLS)])
    with np.errstate(over="ignore"):
        return _added(draft, scores, draft.const(levels[draft.arrays.integers(0, 4, shape)].astype(dtype)))


def _added(draft: Draft, scores: Value, mask: Value) -> Value:
    return draft.op("Add", scores, mask) if draft.chance(0.7) else draft.op("Add", mask, scores)


def _seen(draft: Draft, scores: Value, batch: Dim, length: Dim, other: Dim) -> Value:
    """A condition: an input, a comparison, or a conjunction of several."""
    dims = draft.rng.choice(((batch, 1, length, other), (length, other), (batch, 1, 1, other), (1, 1, length, other)))
    kind = draft.rng.choice(("bool", "bool", "cast", "compare", "tril", "and", "or"))
    if kind == "bool":
        return draft.input(np.bool_, dims, "mask")
    if kind == "cast":
        return draft.cast(draft.input(draft.rng.choice((np.int64, np.float32, np.int32)), dims, "binary"), np.bool_)
    if kind == "compare":
        return draft.op("Greater", draft.input(np.float32, dims, "plain"), draft.scalar(0.0))
    if kind == "tril":
        if draft.chance(0.5) or draft.opset < 14:
            rows, columns = scores.shape[-2:]
            return draft.const(np.tril(np.ones((rows, columns), bool), draft.rng.choice((0, 0, 1, -1))))
        return _triangle(draft, scores)
    more = _seen(draft, scores, batch, length, other)
    return draft.op("And" if kind == "and" else "Or", draft.input(np.bool_, dims, "mask"), more)


def _triangle(draft: Draft, scores: Value) -> Value:
    """tril of ones as large as the scores."""
    shape = draft.op("Shape", scores)
    last = draft.slice(shape, [-2], [2**31 - 1], [0], [1])
    ones = draft.op("ConstantOfShape", last, value=_one_element(np.float32(1)))
    return draft.cast(draft.op("Trilu", ones, upper=0), np.bool_)


def _one_element(number: np.generic) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array([number]), "value")


def _causal(draft: Draft, scores: Value, fill: float) -> Value:
    """A causal mask: by Trilu, by comparing ranges, or stored."""
    dtype, rows, columns = scores.dtype, *scores.shape[-2:]
    if draft.chance(0.4):
        shape = draft.op("Shape", scores)
        length = draft.op("Gather", shape, draft.const(-2, np.int64), axis=0)
        keys = draft.op("Gather", shape, draft.const(-1, np.int64), axis=0)
        zero, one = draft.const(0, np.int64), draft.const(1, np.int64)
        row = draft.unsqueeze(draft.op("Range", zero, length, one), 1)
        column = draft.unsqueeze(draft.op("Range", zero, keys, one), 0)
        seen = draft.op(draft.rng.choice(("LessOrEqual", "Less")) if draft.opset >= 12 else "Less", column, row)
        return draft.op("Where", seen, draft.scalar(0, dtype), draft.scalar(fill, dtype))
    if draft.opset >= 14 and draft.chance(0.5):
        low = draft.const(np.full((rows, columns), fill).astype(dtype))
        return draft.op("Trilu", low, draft.const(1, np.int64), upper=1)
    with np.errstate(invalid="ignore"):
        return draft.const(np.where(np.tril(np.ones((rows, columns))) > 0, 0, fill).astype(dtype))


# ---------------------------------------------------------------------------------------------- operators


def _standard(draft: Draft, query: Value, key: Value, value: Value, batch: Dim, length: Dim, other: Dim) -> Value:
    """The standard operator, with a mask, is_causal, a past and its extra outputs."""
    dtype = query.dtype
    mask = None
    if draft.chance(0.6):
        kind = draft.rng.choice((np.bool_, dtype))
        mask = draft.input(kind, draft.rng.choice(((batch, 1, length, other), (length, other))), "mask")
    attributes = {"is_causal": 1} if draft.chance(0.3) else {}
    if draft.chance(0.5):
        attributes["scale"] = draft.rng.choice((0.5, 0.3, 1.0))
    if draft.chance(0.3):
        attributes["softcap"] = 2.0
    inputs, outputs = [query, key, value, mask], 1
    if draft.chance(0.4):
        past = [draft.input(dtype, (batch, each.shape[1], draft.dim("P", 2), each.shape[3])) for each in (key, value)]
        inputs, outputs = [query, key, value, None, *past], 3
    elif draft.chance(0.3):
        outputs, attributes["qk_matmul_output_mode"] = 4, draft.rng.choice((0, 1, 2, 3))
    made = draft.ops("Attention", *inputs, outputs=outputs, **attributes)
    draft.outputs += [each.name for each in made[1:]]
    return made[0]


def contrib_attention(draft: Draft) -> None:
    """The runtime's own attentions, as sources."""
    rng, heads, width = draft.rng, 2, 4
    batch, length = draft.dim("B", 2), draft.dim("S", 5)
    size = heads * width
    if draft.chance(0.5):
        x = draft.input(F32, (batch, length, size))
        mask = draft.input(np.int32, (batch, length), "mask") if draft.chance(0.5) else None
        weights = draft.normal((size, 3 * size), F32, 0.4)
        made = draft.ops(
            "Attention", x, weights, draft.normal((3 * size,)), mask, domain=CONTRIB, num_heads=heads,
            unidirectional=rng.choice((0, 1)),
        )[0]  # fmt: skip
    else:
        parts = [draft.input(F32, (batch, length, size)) for _ in range(3)]
        if draft.chance(0.5):
            parts[rng.randrange(3)] = _scaled(draft, parts[0])
        made = draft.ops("MultiHeadAttention", *parts, domain=CONTRIB, num_heads=heads)[0]
    draft.op("Add", made, draft.normal((size,)))


def rotary(draft: Draft) -> None:
    """x * cos + rotate_half(x) * sin, with tables of every kind, then attention."""
    rng = draft.rng
    heads, width = 2, 4
    batch, length = draft.dim("B", 2), draft.dim("S", 5)
    dtype = rng.choice((F32, F32, F32, np.float16))
    x = draft.input(dtype, (batch, length, heads * width))
    query = draft.transpose(draft.reshape(x, 0, 0, heads, width), 0, 2, 1, 3)
    if draft.chance(0.5):
        angles = draft.input(F32, (length, width // 2))
    else:
        steps = draft.cast(draft.input(np.int64, (length,), "ids", 9), F32)
        angles = draft.op("Mul", draft.unsqueeze(steps, 1), draft.const([[1.0, 0.3]], F32))
    doubled = draft.op("Concat", angles, angles if draft.chance(0.9) else draft.op("Neg", angles), axis=-1)
    cos, sin = draft.op("Cos", doubled), draft.op("Sin", doubled)
    if draft.chance(0.2):
        cos, sin = _scaled(draft, cos), _scaled(draft, sin)
    cos, sin = (draft.cast(draft.unsqueeze(each, 0, 1), dtype) for each in (cos, sin))
    half = width // 2
    first = draft.slice(query, [0], [half], [3], [1])
    second = draft.slice(query, [half], [rng.choice((width, 2**63 - 1))], [3], [1])
    rotated = draft.op("Concat", draft.op("Neg", second), first, axis=-1)
    turned = draft.op("Add", draft.op("Mul", query, cos), draft.op("Mul", rotated, sin))
    if draft.chance(0.5):
        turned = _scaled(draft, turned)
    if draft.chance(0.6):
        made = _written(draft, turned, query, query, batch, length, length)
        draft.reshape(draft.transpose(made, 0, 2, 1, 3), 0, 0, -1)
    elif dtype != F32:
        raise Rejected("a kernel is missing")
