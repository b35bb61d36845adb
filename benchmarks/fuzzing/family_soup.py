"""Operators at random over a pool of values of all types and ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuzzing import family_layout
from fuzzing.draft import F32, Draft, Rejected, Value

TYPES = (F32, F32, F32, np.float16, np.float64, np.int64, np.int32, np.bool_, np.uint8, np.int8)
FLOAT_UNARY = (
    "Abs", "Neg", "Relu", "Exp", "Sqrt", "Sigmoid", "Tanh", "Floor", "Ceil", "Reciprocal", "Erf", "Round", "Sign",
    "Softplus", "Identity", "Cos", "Sin", "LeakyRelu", "Elu", "HardSigmoid", "IsNaN", "HardSwish", "Softsign",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Less", "Greater", "Equal", "Mod")
LOGICAL = ("And", "Or", "Xor", "Equal")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd", "ReduceLogSumExp")
NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, 1e-5, 3.0, -0.0, 6.0, np.inf, -np.inf)


def soup(draft: Draft) -> None:
    """3 to 20 operators over one to three inputs."""
    rng = draft.rng
    rank = rng.choice((1, 2, 2, 3, 3, 4))
    base = [draft.dim("N", 3), draft.dim("M", 2), 4, 2][:rank]
    pool = [draft.input(rng.choice(TYPES), base) for _ in range(rng.choice((1, 2, 3)))]
    for _ in range(rng.choice((4, 8, 14, 22))):
        value = rng.choice(pool[-4:]) if draft.chance(0.7) else rng.choice(pool)
        try:
            made = rng.choice(STEPS)(draft, value, pool)
        except Rejected:
            continue
        if not isinstance(made.array, list) and made.array.size <= 3000 and made.rank <= 6:
            pool.append(made)


def _unary(draft: Draft, x: Value, _pool: list[Value]) -> Value:
    return draft.op("Not" if x.dtype == np.bool_ else draft.rng.choice(FLOAT_UNARY), x)


def _binary(draft: Draft, x: Value, pool: list[Value]) -> Value:
    others = [each for each in pool if each.dtype == x.dtype]
    op_type = draft.rng.choice(LOGICAL if x.dtype == np.bool_ else BINARY)
    y = draft.rng.choice(others)
    if op_type in ("Div", "Mod") and x.dtype.kind in "iu":
        y = draft.const(draft.rng.choice((2, 3, 1)), x.dtype)  # dividing by 0 is not defined
    if op_type == "Mod" and x.dtype.kind == "f":
        return draft.op("Mod", x, y, fmod=1)
    return draft.op(op_type, x, y)


def _constant(draft: Draft, x: Value, _pool: list[Value]) -> Value:
    """With a constant of any rank, also of a higher one than the value's."""
    rank = draft.rng.randrange(min(x.rank + 2, 6))
    own = (1, *x.shape) if rank > x.rank else x.shape[x.rank - rank :]
    shape = [size if draft.chance(0.5) else 1 for size in own]
    if x.dtype == np.bool_:
        return draft.op(
            draft.rng.choice(LOGICAL), x, draft.const(draft.arrays.random(shape) < draft.rng.choice((0.0, 0.5, 1.0)))
        )
    if draft.chance(0.5):
        numbers = [each for each in NUMBERS if np.isfinite(each)] if x.dtype.kind in "iu" else NUMBERS
        other = draft.const(
            np.full(shape, abs(draft.rng.choice(numbers)) if x.dtype.kind == "u" else draft.rng.choice(numbers)).astype(
                x.dtype
            )
        )
    else:
        other = draft.const(np.abs(draft.arrays.standard_normal(shape) * 3 + 1).astype(x.dtype))
    op_type = draft.rng.choice(BINARY)
    if op_type in ("Div", "Mod") and x.dtype.kind in "iu" and not other.array.all():
        raise Rejected("division by 0")
    pair = (x, other) if draft.chance(0.7) or op_type in ("Div", "Mod") else (other, x)
    return draft.op(op_type, *pair, fmod=1 if op_type == "Mod" and x.dtype.kind == "f" else None)


def _cast(draft: Draft, x: Value, pool: list[Value]) -> Value:
    if draft.opset >= 15 and draft.chance(0.2):
        return draft.op("CastLike", x, draft.rng.choice(pool))
    return draft.cast(x, draft.rng.choice(TYPES))


def _reduce(draft: Draft, x: Value, _pool: list[Value]) -> Value:
    axes = draft.rng.sample(range(x.rank), draft.rng.randrange(x.rank + 1)) or None
    if draft.chance(0.15):
        return draft.op(
            draft.rng.choice(("ArgMax", "ArgMin")), x, axis=draft.rng.choice((0, -1)), keepdims=draft.rng.choice((0, 1))
        )
    return draft.reduce(draft.rng.choice(REDUCTIONS), x, axes, draft.rng.choice((0, 1)))


def _where(draft: Draft, x: Value, pool: list[Value]) -> Value:
    conditions = [each for each in pool if each.dtype == np.bool_]
    condition = draft.rng.choice(conditions) if conditions else draft.const(np.array([draft.chance(0.5)]))
    others = [each for each in pool if each.dtype == x.dtype]
    other = draft.rng.choice(others) if draft.chance(0.6) else draft.scalar(draft.rng.choice((0, 1, 2)), x.dtype)
    return draft.op("Where", condition, *((x, other) if draft.chance(0.5) else (other, x)))


def _product(draft: Draft, x: Value, pool: list[Value]) -> Value:
    others = [each for each in pool if each.dtype == x.dtype and each.rank >= 2]
    if others and draft.chance(0.3):
        return draft.op("MatMul", x, draft.rng.choice(others))
    return draft.op("MatMul", x, draft.normal((x.shape[-1] if x.rank else 1, draft.rng.choice((2, 3))), x.dtype))


def _softmax(draft: Draft, x: Value, _pool: list[Value]) -> Value:
    return draft.op(draft.rng.choice(("Softmax", "LogSoftmax")), x, axis=draft.rng.choice((-1, 0, 1)))


def _concat(draft: Draft, x: Value, pool: list[Value]) -> Value:
    others = [each for each in pool if each.dtype == x.dtype and each.rank == x.rank]
    return draft.op("Concat", x, draft.rng.choice(others), axis=draft.rng.choice((0, -1)))


def _rare(draft: Draft, x: Value, _pool: list[Value]) -> Value:
    """Operators that few passes know."""
    kind = draft.rng.choice(
        ("TopK", "CumSum", "Flatten", "NonZero", "OneHot", "DepthToSpace", "Size", "Trilu", "Range")
    )
    if kind == "TopK" and draft.opset >= 10:
        made = draft.ops("TopK", x, draft.ints(1), outputs=2, axis=-1)
        return made[draft.rng.randrange(2)]
    if kind == "CumSum" and draft.opset >= 11:
        return draft.op("CumSum", x, draft.const(0, np.int64))
    if kind == "OneHot":
        return draft.op("OneHot", x, draft.const(3, np.int64), draft.const([0.0, 1.0], F32))
    if kind == "DepthToSpace":
        return draft.op("DepthToSpace", x, blocksize=2)
    if kind == "Range" and draft.opset >= 11:
        return draft.op("Range", draft.const(0, np.int64), draft.op("Size", x), draft.const(2, np.int64))
    return draft.op(kind, x, **({"axis": draft.rng.choice((0, 1, -1))} if kind == "Flatten" else {}))


def _moved(draft: Draft, x: Value, _pool: list[Value]) -> Value:
    return draft.rng.choice(family_layout.MOVES)(draft, x)


STEPS: tuple[Callable[[Draft, Value, list[Value]], Value], ...] = (
    _unary, _unary, _binary, _binary, _constant, _constant, _cast, _reduce, _where, _product, _softmax, _concat, _rare,
    _moved, _moved, _moved, _moved,
)  # fmt: skip
