"""Products with what may be folded into their weights, also near the ends of the range."""

from __future__ import annotations

import numpy as np

from fuzzing.draft import F32, Draft, Rejected, Value

KINDS = ("scale", "scale", "shift", "relu", "clip", "activation", "residual", "turn", "reshape", "cast")
MAGNITUDES = (1.0, 1.0, 1.0, 1.0, 1e-3, 200.0, 1e-4, 1e4)


def products(draft: Draft) -> None:
    """A matrix product or a convolution, with arithmetic before and after."""
    rng = draft.rng
    dtype = rng.choice((F32, F32, F32, F32, F32, np.float16, np.float16, np.float64, np.int32, np.int64))
    made = _matrices(draft, dtype) if draft.chance(0.5) else _convolution(draft, dtype)
    channels = 1 if made.rank == 4 or (made.rank == 3 and draft.chance(0.3)) else -1
    for _ in range(rng.choice((1, 2, 3, 4))):
        try:
            made = _after(draft, made, channels)
        except Rejected:
            continue
        if draft.chance(0.1):
            draft.outputs.append(made.name)


def _magnitude(draft: Draft, dtype) -> float:
    return draft.rng.choice(
        (*MAGNITUDES, *((1e-7, 6e4) if dtype == np.float16 else (1e-38, 1e38) if dtype == F32 else ()))
    )


def _weights(draft: Draft, shape, dtype) -> Value:
    return draft.normal(shape, dtype, 3.0 if np.dtype(dtype).kind == "i" else min(_magnitude(draft, dtype), 2e4))


def _matrices(draft: Draft, dtype) -> Value:
    rng = draft.rng
    inner, outer = rng.choice((3, 4)), rng.choice((3, 5, 1))
    dims = rng.choice(((draft.dim("N", 3), inner), (draft.dim("N", 2), draft.dim("S", 3), inner)))
    x = draft.input(dtype, dims)
    if draft.chance(0.3):
        x = _after(draft, x, -1)
    if draft.chance(0.3) and x.rank == 2:
        weights = _weights(draft, (inner, outer), dtype)
        transposed = draft.chance(0.5)
        if transposed:
            weights = _weights(draft, (outer, inner), dtype)
        attributes = {"alpha": rng.choice((0.5, 2.0))} if draft.chance(0.3) else {}
        bias = [draft.normal(rng.choice(((outer,), (1, outer), (), (1,))), dtype)] if draft.chance(0.7) else []
        return draft.op("Gemm", x, weights, *bias, transB=int(transposed), **attributes)
    if draft.chance(0.2):
        return draft.op("MatMul", x, draft.transpose(_weights(draft, (outer, inner), dtype), 1, 0))
    if draft.chance(0.15):
        return draft.op("MatMul", x, draft.transpose(x, *range(x.rank - 2), x.rank - 1, x.rank - 2))
    return draft.op("MatMul", x, _weights(draft, (inner, outer), dtype))


def _convolution(draft: Draft, dtype) -> Value:
    rng = draft.rng
    group = rng.choice((1, 1, 2))
    if draft.chance(0.3):  # a pointwise product between two turns
        x = draft.input(dtype, (draft.dim("N", 2), 4, draft.dim("H", 5), 3))
        inner = draft.op("MatMul", draft.transpose(x, 0, 2, 3, 1), _weights(draft, (4, 6), dtype))
        if draft.chance(0.6):
            inner = draft.op("Add", inner, draft.normal((6,), dtype))
        return draft.transpose(inner, 0, 3, 1, 2)
    spatial = [draft.dim("H", 5), 4] if draft.chance(0.7) else [draft.dim("H", 6)]
    x = draft.input(dtype, (draft.dim("N", 2), 4, *spatial))
    kernel = [rng.choice((1, 3, 2))] * len(spatial)
    transposed = draft.chance(0.15) and group == 1
    shape = (4, 6, *kernel) if transposed else (6, 4 // group, *kernel)
    bias = (
        [draft.normal((6,), dtype, _magnitude(draft, dtype) if draft.chance(0.2) else 1.0)] if draft.chance(0.6) else []
    )
    pads = {"auto_pad": "SAME_UPPER"} if draft.chance(0.2) else {"pads": [kernel[0] // 2] * 2 * len(spatial)}
    return draft.op(
        "ConvTranspose" if transposed else "Conv", x, _weights(draft, shape, dtype), *bias, group=group, **pads
    )


def _after(draft: Draft, x: Value, channels: int) -> Value:
    rng, dtype = draft.rng, x.dtype
    count = x.shape[channels]
    kind = rng.choice(KINDS if channels == -1 else (*KINDS, "batch", "batch", "residual", "activation"))
    if kind == "scale":
        return draft.op(
            rng.choice(("Mul", "Mul", "Div")), x, _per_channel(draft, x, channels, _magnitude(draft, dtype))
        )
    if kind == "shift":
        other = _per_channel(draft, x, channels, 1.0)
        pair = (x, other) if draft.chance(0.7) else (other, x)
        return draft.op(rng.choice(("Add", "Add", "Sub")), *pair)
    if kind == "batch" and x.rank > 2 and channels == 1 and dtype.kind == "f":
        parts = [draft.normal((count,), dtype, scale) for scale in (_magnitude(draft, dtype), 1.0, 1.0)]
        variance = draft.const((draft.arrays.random(count) * rng.choice((1.0, 1e-6, 1e3)) + 0.01).astype(dtype))
        return draft.ops("BatchNormalization", x, *parts, variance, epsilon=rng.choice((1e-5, 1e-3)))[0]
    if kind == "relu":
        return draft.op("Relu", x)
    if kind == "clip":
        return draft.clip(x, 0.0, rng.choice((6.0, None)))
    if kind == "activation":
        return draft.op(rng.choice(("Tanh", "Sigmoid", "LeakyRelu", "HardSwish", "HardSigmoid")), x)
    if kind == "residual":
        if draft.chance(0.5):
            dims = [draft.dim(f"D{axis}", size) if axis != 1 else size for axis, size in enumerate(x.shape)]
            return draft.op("Add", x, draft.input(dtype, dims))
        return draft.op("Add", x, x if draft.chance(0.3) else draft.op("Neg", x))
    if kind == "turn":
        return draft.transpose(x, *rng.sample(range(x.rank), x.rank))
    if kind == "reshape":
        return draft.reshape(x, 0, -1)
    return draft.cast(x, rng.choice((np.float32, np.float64, np.float16)))


def _per_channel(draft: Draft, x: Value, channels: int, scale: float) -> Value:
    count = x.shape[channels]
    behind = 0 if channels == -1 else x.rank - 2
    shape = draft.rng.choice(
        ((count, *(1,) * behind), (count, *(1,) * behind), (), (1,), (1, count, *(1,) * behind), x.shape[-1:])
    )
    if scale == 1.0 or x.dtype.kind != "f":
        return draft.normal(shape, x.dtype, 2.0)
    with np.errstate(over="ignore", under="ignore"):
        return draft.const((np.full(shape, scale) * draft.rng.choice((1, -1))).astype(x.dtype))
