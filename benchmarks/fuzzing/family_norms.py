"""Normalisations, activations and clips, written out in every way."""

from __future__ import annotations

import numpy as np

from fuzzing.draft import F32, FLOATS, LOWEST, Draft, Value

EPSILONS = (1e-5, 1e-6, 1e-12, 1e-3, 0.0, 1.0, 1e-45)
OTHERS = (np.float64, np.float32, np.float16, np.int32, np.int64)


def _cast(draft: Draft, value: Value, probability: float) -> Value:
    return draft.cast(value, draft.rng.choice(OTHERS)) if draft.chance(probability) else value


def norms(draft: Draft) -> None:
    """A layer or RMS norm, maybe after a residual sum, maybe with an affine on top, maybe two in a row."""
    rng = draft.rng
    dtype = rng.choice((F32, F32, F32, np.float16, np.float64))
    width = rng.choice((4, 8, 3))
    dims = [draft.dim("B", 2), draft.dim("S", 3), width][rng.choice((0, 0, 1)) :]
    x = draft.input(dtype, dims)
    if draft.chance(0.3):
        skip = draft.input(dtype, dims)
        x = draft.op("Add", x, skip)
        if draft.chance(0.5):
            x = draft.op("Add", x, draft.normal((width,), dtype))
        if draft.chance(0.5):
            draft.outputs.append(x.name)
    for _ in range(rng.choice((1, 1, 2))):
        x = _norm(draft, x, width)
        if x.dtype not in FLOATS:
            x = draft.cast(x, dtype)
    if draft.chance(0.3):
        draft.op("MatMul", x, draft.normal((x.shape[-1], 5), x.dtype))


def _norm(draft: Draft, x: Value, width: int) -> Value:
    kind = draft.rng.choice(("layer", "layer", "rms", "rms", "operator"))
    if kind == "operator" and draft.opset >= 17:
        scale = draft.normal((width,), x.dtype)
        made = draft.op("LayerNormalization", x, scale, axis=-1, epsilon=draft.rng.choice(EPSILONS))
    elif kind == "layer":
        made = _layer(draft, x)
    else:
        made = _rms(draft, x)
    return _affine(draft, made, width)


def _mean(draft: Draft, x: Value, axes: list[int] | None, keepdims: int) -> Value:
    if draft.chance(0.85) or axes is None:
        return draft.reduce("ReduceMean", x, axes, keepdims)
    return draft.op("Div", draft.reduce("ReduceSum", x, axes, keepdims), draft.scalar(x.shape[axes[0]], x.dtype))


def _axes(draft: Draft, x: Value) -> list[int] | None:
    choices: list[list[int] | None] = [[-1], [-1], [-1], [x.rank - 1], [0], None]
    if x.rank > 2:
        choices += [[1, 2], [-2], [-1, -2]]
    return draft.rng.choice(choices)


def _square(draft: Draft, x: Value) -> Value:
    if draft.chance(0.5):
        return draft.op("Mul", x, x)
    power = draft.const(
        draft.rng.choice((2, 2, 2, 3)), draft.rng.choice((x.dtype, x.dtype, np.dtype(F32), np.dtype(np.int64)))
    )
    return draft.op("Pow", x, power)


def _root(draft: Draft, x: Value, x0: Value) -> Value:
    """x0 / sqrt(x + eps), in one of its forms."""
    if not draft.chance(0.07):
        x = draft.op("Add", x, draft.scalar(draft.rng.choice(EPSILONS), x.dtype))
    if draft.chance(0.1):
        x = _cast(draft, x, 1.0)
    kind = draft.rng.choice(("sqrt", "sqrt", "sqrt", "power", "reciprocal", "negative power"))
    if kind in ("sqrt", "power"):
        root = draft.op("Sqrt", x) if kind == "sqrt" else draft.op("Pow", x, draft.const(0.5, F32))
        return draft.op("Div", x0, _alike(draft, root, x0))
    if kind == "reciprocal":
        inverse = draft.op("Reciprocal", draft.op("Sqrt", x))
    else:
        inverse = draft.op("Pow", x, draft.const(-0.5, F32))
    inverse = _alike(draft, inverse, x0)
    return draft.op("Mul", x0, inverse) if draft.chance(0.6) else draft.op("Mul", inverse, x0)


def _alike(draft: Draft, value: Value, other: Value) -> Value:
    return value if value.dtype == other.dtype else draft.cast(value, other.dtype)


def _layer(draft: Draft, x: Value) -> Value:
    x = _cast(draft, x, 0.12)
    axes, keepdims = _axes(draft, x), 0 if draft.chance(0.05) else 1
    centred = draft.op("Sub", x, _alike(draft, _mean(draft, _cast(draft, x, 0.04), axes, keepdims), x))
    again = centred
    if draft.chance(0.15):
        again = draft.op("Sub", x, _mean(draft, x, axes, keepdims))
    power = _square(draft, _cast(draft, again, 0.08))
    variance = _mean(draft, power, axes if draft.chance(0.95) else _axes(draft, x), keepdims)
    return _root(draft, _alike(draft, variance, centred) if draft.chance(0.9) else variance, centred)


def _rms(draft: Draft, x: Value) -> Value:
    inner = _cast(draft, x, 0.25)
    axes = _axes(draft, x)
    mean = _mean(draft, _square(draft, _cast(draft, inner, 0.06)), axes, 0 if draft.chance(0.05) else 1)
    top = inner if draft.chance(0.7) else x
    return _root(draft, _alike(draft, mean, top) if draft.chance(0.9) else mean, top)


def _affine(draft: Draft, x: Value, width: int) -> Value:
    if draft.chance(0.2):
        x = _cast(draft, x, 1.0)
    for op_type in draft.rng.choice(
        (("Mul", "Add"), ("Mul",), ("Mul", "Add", "Mul"), ("Add",), ("Mul", "Sub"), ("Div",), ())
    ):
        shape = draft.rng.choice(((width,), (width,), (width,), (), (1,), (1, width), (3, width), (1, 1, 1, width)))
        scale = draft.rng.choice((1.0, 1.0, 1.0, 1e-4, 3e4))
        other = draft.normal(shape, x.dtype, scale)
        x = draft.op(op_type, x, other) if draft.chance(0.7) else draft.op(op_type, other, x)
    return x


# ---------------------------------------------------------------------------------------------- activations


BOUNDS = (0.0, -0.0, 6.0, 1.0, -1.0, np.inf, -np.inf, LOWEST, -LOWEST, 3.0, np.nan, 65504.0)


def clips(draft: Draft) -> None:
    """Chains of Clip, Relu, Min and Max with special bounds, and hard activations."""
    rng = draft.rng
    dtype = rng.choice((F32, F32, F32, np.float16, np.float64, np.int32, np.int64))
    x = draft.input(dtype, (draft.dim("N", 4), 3))
    floats = np.dtype(dtype).kind == "f"
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4))):
        kind = rng.choice(("clip", "clip", "relu", "min", "max", "hard", "leaky", "pad"))
        if kind == "clip":
            bounds = BOUNDS if floats else (0, 6, -3, 2**31 - 1)
            x = draft.clip(x, *(rng.choice((*bounds, None)) for _ in range(2)))
        elif kind == "relu" and (floats or draft.opset >= 14):
            x = draft.op("Relu", x)
        elif kind in ("min", "max"):
            bounds = [b for b in BOUNDS if not np.isnan(b)] if floats else [0, 6, -3]
            other = draft.scalar(rng.choice(bounds), dtype)
            x = draft.op("Min" if kind == "min" else "Max", *((x, other) if draft.chance(0.7) else (other, x)))
        elif kind == "leaky" and floats:
            x = draft.op(rng.choice(("Neg", "Abs", "Tanh", "Sigmoid")), x)
        elif kind == "pad" and floats:
            fill = rng.choice((0.0, -0.0, -1.0))
            x = draft.pad(x, [0, 1, 0, 1], fill)
        elif floats:
            x = _hard(draft, x)


def _hard(draft: Draft, x: Value) -> Value:
    """x * clip(x + 3, 0, 6) / 6, or parts of it."""
    rng = draft.rng
    moved = draft.op("Add", x, draft.scalar(rng.choice((3.0, 3.0, 2.0)), x.dtype))
    cut = draft.clip(moved, rng.choice((0.0, 0.0, -0.0, 1.0)), rng.choice((6.0, 6.0, 1.0, np.inf)))
    if draft.chance(0.3):
        return draft.op("Mul", x, draft.op("Div", cut, draft.scalar(6.0, x.dtype)))
    if draft.chance(0.5):
        return draft.op("Div", draft.op("Mul", x, cut), draft.scalar(rng.choice((6.0, 6.0, 3.0)), x.dtype))
    return draft.op("Div", cut, draft.scalar(rng.choice((6.0, 6.0, 0.5)), x.dtype))


def activations(draft: Draft) -> None:
    """Gelu in its three forms with near misses, behind a product or a bias."""
    rng = draft.rng
    dtype = rng.choice((F32, F32, F32, np.float16, np.float64))
    x = draft.input(dtype, (draft.dim("N", 4), 3))
    if draft.chance(0.5):
        x = draft.op("MatMul", x, draft.normal((3, 4), dtype))
    if draft.chance(0.5):
        x = draft.op("Add", x, draft.normal(rng.choice(((x.shape[-1],), (), (1, x.shape[-1]))), dtype))
    kind = rng.choice(("erf", "tanh", "quick", "operator", "swish"))
    half, one = draft.scalar(rng.choice((0.5, 0.5, 0.5, 2.0)), dtype), draft.scalar(1.0, dtype)
    if kind == "erf":
        inner = draft.op("Div", x, draft.scalar(rng.choice((1.4142135, 1.4142135, 1.4)), dtype))
        y = draft.op("Mul", x, draft.op("Add", draft.op("Erf", inner), one))
        y = draft.op("Mul", y, half)
    elif kind == "tanh":
        cube = (
            draft.op("Pow", x, draft.scalar(3.0, dtype))
            if draft.chance(0.5)
            else draft.op("Mul", x, draft.op("Mul", x, x))
        )
        inner = draft.op("Add", x, draft.op("Mul", cube, draft.scalar(0.044715, dtype)))
        wave = draft.op("Tanh", draft.op("Mul", inner, draft.scalar(0.7978845608, dtype)))
        y = draft.op("Mul", draft.op("Mul", x, half), draft.op("Add", wave, one))
    elif kind == "operator" and draft.opset >= 20:
        y = draft.op("Gelu", x, approximate=rng.choice(("none", "tanh")))
    else:
        alpha = draft.scalar(rng.choice((1.702, 1.0, -1.0)), dtype)
        y = draft.op("Mul", x, draft.op("Sigmoid", draft.op("Mul", x, alpha) if draft.chance(0.8) else x))
    if draft.chance(0.3):
        draft.op(rng.choice(("Relu", "Neg", "Exp")), y)
