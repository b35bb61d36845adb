"""Definitions of elementwise ATen operators in exact arithmetic."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, TensorProto

from sardonyx.ir.exact.arithmetic import converted
from sardonyx.ir.exact.call import FLOATS, Invalid, Undecided, Value, dtype_of, numpy_type
from sardonyx.ir.exact.evaluate import Evaluator
from sardonyx.ir.exact.reals import Numbers, Real, chosen

Definition = Callable[..., Any]
DEFINITIONS: dict[str, Definition] = {}
_FORMATS: dict[int, Any] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.DOUBLE: np.float64,
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
}


def defines(*names: str) -> Callable[[Definition], Definition]:
    """Enter a function as the definition of operators; it gets the name of the operator if it has such a parameter."""

    def enter(definition: Definition) -> Definition:
        takes_name = "name" in inspect.signature(definition).parameters
        for name in names:
            DEFINITIONS[name] = functools.partial(definition, name=name) if takes_name else definition
        return definition

    return enter


def standard(n: Numbers, name: str, *operands: Value, **attributes: Any) -> Value:
    """Return what an operator of ONNX computes: many of torch's have the same definition."""
    return Evaluator(ModelProto(), n).standard(name, operands, attributes)[0]


def is_scalar(value: Value) -> bool:
    """Return whether a value is a number of Python."""
    return isinstance(value, bool | int | float)


class SingleNumbers(Numbers):
    """Arithmetic in which numbers of Python are rounded to float32 first, whatever the type of the tensor."""


def number(n: Numbers, value: Any, dtype: int) -> Value:
    """Return a number of Python as a tensor of a type, to which it is rounded."""
    if dtype in FLOATS and isinstance(n, SingleNumbers):
        return n.literal(np.asarray(value, np.float32), TensorProto.FLOAT).typed(dtype)
    if dtype in FLOATS:
        return n.literal(np.asarray(value, _FORMATS[dtype]), dtype)
    return np.asarray(value, numpy_type(dtype))


def typed(n: Numbers, value: Value, dtype: int) -> Value:
    """Return a tensor or number in another type."""
    return number(n, value, dtype) if is_scalar(value) else converted(n, value, dtype)


_DEFAULTS = {bool: TensorProto.BOOL, int: TensorProto.INT64, float: TensorProto.FLOAT}


def _category(dtype: int) -> int:
    return 2 if dtype in FLOATS else int(dtype != TensorProto.BOOL)


def promoted(n: Numbers, *operands: Value) -> tuple[Value, ...]:
    """Return operands in their common type: a number or a tensor without axes counts if its kind is higher."""
    types = [_DEFAULTS[type(each)] if is_scalar(each) else dtype_of(each) for each in operands]
    ranks = [-1 if is_scalar(each) else min(len(each.shape), 1) for each in operands]
    highest = max(map(_category, types))
    strongest = max(rank for rank, dtype in zip(ranks, types, strict=True) if _category(dtype) == highest)
    found = {d for r, d in zip(ranks, types, strict=True) if r == strongest and _category(d) == highest}
    if len(found) > 1:
        raise Undecided("operands of different types")
    return tuple(typed(n, each, *found) for each in operands)


_LOGICAL = {"Add": np.logical_or, "Mul": np.logical_and}  # of truth values


def _combined(n: Numbers, name: str, a: Value, b: Value) -> Value:
    a, b = promoted(n, a, b)
    if not isinstance(a, Real) and a.dtype == bool:
        return _LOGICAL[name](a, b)
    return standard(n, name, a, b)


_BINARY = {"add": "Add", "sub": "Sub", "subtract": "Sub", "rsub": "Sub", "maximum": "Max", "minimum": "Min"}


@defines(*_BINARY)
def _binary(n: Numbers, a: Value, b: Value, *, name: str, alpha: Any = 1) -> Value:
    """Return a + alpha · b, a - alpha · b, b - alpha · a (`rsub`), or the larger or smaller one of each pair."""
    a, b = (b, a) if name == "rsub" else (a, b)
    return _combined(n, _BINARY[name], a, b if alpha == 1 else _mul(n, b, alpha))


@defines("mul", "multiply")
def _mul(n: Numbers, a: Value, b: Value) -> Value:
    return _combined(n, "Mul", a, b)


@defines("div", "divide", "true_divide")
def _div(n: Numbers, a: Value, b: Value, *, rounding_mode: str | None = None) -> Value:
    """Return a / b: real numbers, or rounded down or towards zero."""
    a, b = promoted(n, a, b)
    if isinstance(a, Real) or rounding_mode is None:
        quotient = _real(n, a) / _real(n, b)
        if rounding_mode is None:
            return quotient
        down = n.whole("Floor", quotient)
        if rounding_mode == "floor":
            return down
        return chosen(n.less(quotient, number(n, 0, quotient.dtype)), n.whole("Ceil", quotient), down)
    return standard(n, "Div", a - np.mod(a, b) if rounding_mode == "floor" else a, b)


@defines("floor_divide")
def _floor_divide(n: Numbers, a: Value, b: Value) -> Value:
    return _div(n, a, b, rounding_mode="floor")


@defines("remainder")
def _remainder(n: Numbers, a: Value, b: Value) -> Value:
    """Return the rest of a division, with the sign of the divisor."""
    return _combined(n, "Sub", a, _mul(n, b, _floor_divide(n, a, b)))


def _real(n: Numbers, x: Value) -> Real:
    return typed(n, x, TensorProto.FLOAT) if not isinstance(x, Real) else x


_ON_INTEGERS = {"neg": "Neg", "abs": "Abs", "sign": "Sign", "relu": "Relu"}
_UNARY = _ON_INTEGERS | {
    name: name.capitalize()
    for name in (
        *("acos", "asin", "atan", "cos", "cosh", "erf", "exp", "log", "reciprocal", "sigmoid", "sin", "sinh"),
        *("softplus", "sqrt", "tan", "tanh"),
    )
}


@defines(*_UNARY)
def _unary(n: Numbers, x: Value, *args: Any, name: str) -> Value:
    if args:  # of softplus
        raise Undecided(f"{name} has no definition")
    return standard(n, _UNARY[name], x if name in _ON_INTEGERS else _real(n, x))


@defines("floor", "ceil", "round")
def _whole(n: Numbers, x: Value, *, name: str, decimals: int = 0) -> Value:
    """Return the whole number below, above or next to each element."""
    if decimals:
        raise Undecided("round to decimals")
    return n.whole(name.capitalize(), x) if isinstance(x, Real) else x


@defines("square")
def _square(n: Numbers, x: Value) -> Value:
    return standard(n, "Mul", x, x)


@defines("rsqrt")
def _rsqrt(n: Numbers, x: Value) -> Value:
    return _unary(n, _unary(n, x, name="sqrt"), name="reciprocal")


@defines("pow")
def _power(n: Numbers, base: Value, exponent: Value) -> Value:
    if is_scalar(exponent) and not isinstance(base, Real) and isinstance(exponent, float):
        base = _real(n, base)
    if isinstance(base, Real) and is_scalar(exponent):
        return n.power(base, number(n, exponent, base.dtype))
    base, exponent = promoted(n, base, exponent)
    return n.power(base, exponent) if isinstance(base, Real) else np.power(base, exponent)


@defines("silu", "gelu", "hardsigmoid", "hardswish", "leaky_relu", "elu", "log1p", "exp2", "mish")
def _activation(n: Numbers, x: Real, *args: Any, name: str, approximate: str = "none") -> Value:
    constant = functools.partial(number, n, dtype=x.dtype)
    zero, half = constant(0), constant(0.5)
    if name == "silu":
        return x * n.apply("Sigmoid", x)
    if name == "gelu" and approximate == "none":
        return half * x * (n.apply("Erf", x / constant(2).root()) + 1)
    if name == "gelu":
        inner = constant(math.sqrt(2 / math.pi)) * (x + constant(0.044715) * x * x * x)
        return half * x * (n.apply("Tanh", inner) + 1)
    if name in ("hardsigmoid", "hardswish"):
        gate = n.smallest(n.largest(x / 6 + half, zero), x.like(1))
        return gate if name == "hardsigmoid" else x * gate
    if name == "leaky_relu":
        return chosen(n.less(x, zero), constant(args[0] if args else 0.01) * x, x)
    if name == "elu":
        alpha, scale, input_scale = (constant(value) for value in (*args, *(1.0, 1.0, 1.0)[len(args) :]))
        below = alpha * (n.apply("Exp", x * input_scale) - 1)
        return scale * chosen(n.less(x, zero), below, x)
    if name == "log1p":
        return n.apply("Log", x + 1)
    raise Undecided(f"{name} has no definition")


@defines("clamp", "hardtanh", "clamp_min", "clamp_max", "relu6")
def _clamp(n: Numbers, x: Value, low: Value = None, high: Value = None, *, name: str, **named: Any) -> Value:
    """Return each element limited from below and from above."""
    defaults = {"hardtanh": (-1.0, 1.0), "relu6": (0.0, 6.0)}.get(name, (None, None))
    low, high = named.get("min", low), named.get("max", high)
    low, high = (None, low) if name == "clamp_max" else (low, high)
    low, high = (default if value is None else value for value, default in zip((low, high), defaults, strict=True))
    x = x if low is None else _combined(n, "Max", x, low)
    return x if high is None else _combined(n, "Min", x, high)


_RELATIONS = {"eq": "Equal", "ne": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}


@defines(*_RELATIONS)
def _comparison(n: Numbers, a: Value, b: Value, *, name: str) -> Value:
    result = standard(n, _RELATIONS[name], *promoted(n, a, b))
    return ~result if name == "ne" else result


_LOGIC: dict[str, Callable[..., Any]] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "__and__": np.bitwise_and,
    "__or__": np.bitwise_or,
    "bitwise_not": np.invert,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
}


@defines(*_LOGIC)
def _logic(n: Numbers, *operands: Value, name: str) -> Value:
    if name.startswith("logical"):
        operands = tuple(typed(n, each, TensorProto.BOOL) for each in operands)
    elif len(operands) > 1:
        operands = promoted(n, *operands)
    return np.asarray(_LOGIC[name](*operands))


@defines("isnan", "isinf")
def _special(_: Numbers, x: Value, *, name: str) -> Value:
    values = x.doubles if isinstance(x, Real) else np.zeros(x.shape)
    return np.isnan(values) if name == "isnan" else np.isinf(values)


@defines("where")
def _where(n: Numbers, condition: Value, *branches: Value) -> Value:
    if not branches:
        raise Undecided("where with one operand")
    a, b = promoted(n, *branches)
    return chosen(condition, a, b) if isinstance(a, Real) else np.where(condition, np.asarray(a), np.asarray(b))


@defines("masked_fill")
def _masked_fill(n: Numbers, x: Value, mask: Value, value: Value) -> Value:
    fill = number(n, value, dtype_of(x)) if is_scalar(value) else typed(n, value, dtype_of(x))
    return _where(n, mask, fill, x)


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Return axes counted from the front; all if none is given."""
    given = (axes,) if isinstance(axes, int) else tuple(axes or ())
    return tuple(axis % max(rank, 1) for axis in given) if given else tuple(range(rank))


@defines("sum", "mean")
def _total(n: Numbers, x: Value, dim: Any = None, keepdim: bool = False, *, name: str, dtype: Any = None) -> Value:
    if not isinstance(x, Real) and dtype not in FLOATS:
        return np.sum(x, axis=axes_of(dim, x.ndim), keepdims=keepdim, dtype=numpy_type(dtype or TensorProto.INT64))
    x = typed(n, x, dtype or dtype_of(x))
    axes = axes_of(dim, x.ndim)
    result = x.total(axes, keepdims=keepdim) if axes else x
    return result / math.prod(x.shape[axis] for axis in axes) if name == "mean" else result


def mean(x: Real, axes: Sequence[int]) -> Real:
    """Return means along axes, which are kept."""
    return x.total(tuple(axes), keepdims=True) / math.prod(x.shape[axis] for axis in axes)


@defines("var", "std")
def _variance(
    n: Numbers,
    x: Real,
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    name: str,
    correction: Any = 1,
) -> Value:
    """Return variances along axes, or their roots."""
    axes = axes_of(dim, x.ndim)
    centred = x - mean(x, axes)
    count = math.prod(x.shape[axis] for axis in axes) - (correction if unbiased else 0)
    result = (centred * centred).total(axes, keepdims=keepdim) / count
    return result.root() if name == "std" else result


@defines("linalg_vector_norm")
def _norm(n: Numbers, x: Real, order: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
    """Return the root of the sum of squares along axes."""
    if order != 2:
        raise Undecided("a norm of another order")
    return (x * x).total(axes_of(dim, x.ndim), keepdims=keepdim).root()


@defines("amax", "amin", "max", "min")
def _extreme(n: Numbers, x: Value, dim: Any = None, keepdim: bool = False, *, name: str) -> Value:
    """Return the largest or smallest elements; along one axis also their places."""
    end = name[-3:].capitalize()
    if isinstance(dim, Real | np.ndarray):  # two tensors
        return _combined(n, end, x, dim)
    result = standard(n, f"Reduce{end}", x, np.array(axes_of(dim, len(x.shape))), keepdims=int(keepdim))
    if name in ("max", "min") and dim is not None:
        return result, _arg_extreme(n, x, dim, keepdim, name=f"arg{name}")
    return result


@defines("argmax", "argmin")
def _arg_extreme(n: Numbers, x: Value, dim: int | None = None, keepdim: bool = False, *, name: str) -> Value:
    """Return the place of the largest or smallest element."""
    if dim is None:
        raise Undecided(f"{name} of all elements")
    return standard(n, f"Arg{name[-3:].capitalize()}", x, axis=dim, keepdims=int(keepdim))


@defines("any", "all")
def _quantifier(n: Numbers, x: Value, dim: Any = None, keepdim: bool = False, *, name: str) -> Value:
    find = np.any if name == "any" else np.all
    return np.asarray(find(typed(n, x, TensorProto.BOOL), axis=axes_of(dim, len(x.shape)), keepdims=keepdim))


@defines("cumsum")
def _cumsum(n: Numbers, x: Value, dim: int, *, dtype: Any = None) -> Value:
    if not isinstance(x, Real):
        return np.cumsum(x, dim, dtype=numpy_type(dtype or TensorProto.INT64))
    return x.running_total(dim % x.ndim)


@defines("mm", "bmm", "matmul")
def _matmul(n: Numbers, a: Real, b: Real) -> Value:
    return n.matmul(a, b)


def _last(x: Real) -> Real:
    return x.moved(lambda v: np.swapaxes(v, -1, -2))


@defines("linear")
def _linear(n: Numbers, x: Real, weight: Real, bias: Real | None = None) -> Value:
    """Return x · weightᵀ + bias."""
    result = n.matmul(x, _last(weight))
    return result if bias is None else result + bias


@defines("addmm", "baddbmm")
def _addmm(n: Numbers, added: Real, a: Real, b: Real, *, beta: float = 1, alpha: float = 1) -> Value:
    """Return beta · added + alpha · a · b."""
    return _binary(n, _mul(n, added, beta), n.matmul(a, b), name="add", alpha=alpha)


@defines("einsum")
def _einsum(n: Numbers, equation: str, operands: Sequence[Real], **_: Any) -> Value:
    return standard(n, "Einsum", *operands, equation=equation)


@defines("softmax", "_softmax", "log_softmax", "_log_softmax")
def _softmax(n: Numbers, x: Real, dim: int, dtype: Any = None, *, name: str) -> Value:
    x = x.typed(dtype) if isinstance(dtype, int) and dtype in FLOATS and not isinstance(dtype, bool) else x
    return standard(n, "LogSoftmax" if "log" in name else "Softmax", x, axis=dim)


def _normalized(
    n: Numbers, x: Real, axes: Sequence[int], eps: float, *, centre: bool = True
) -> tuple[Real, Real, Real]:
    """Return a tensor with variance 1 along axes, its mean, and one over its deviation."""
    middle = mean(x, axes)
    centred = x - middle if centre else x
    scale = 1 / (mean(centred * centred, axes) + _epsilon(n, eps, x)).root()
    return centred * scale, middle, scale


def _epsilon(n: Numbers, eps: float, like: Real) -> Real:
    """Return an epsilon, which is a float in ONNX whatever the type of the tensor."""
    return number(n, eps, TensorProto.FLOAT).typed(like.dtype)


def _scaled(x: Real, weight: Real | None, bias: Real | None) -> Real:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@defines("layer_norm", "native_layer_norm")
def _layer_norm(
    n: Numbers,
    x: Real,
    sizes: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *args: Any,
    name: str,
) -> Value:
    axes = range(x.ndim - len(sizes), x.ndim)
    result, middle, scale = _normalized(n, x, axes, eps)
    result = _scaled(result, weight, bias)
    return result if name == "layer_norm" else (result, middle, scale)


@defines("rms_norm", "_fused_rms_norm")
def _rms_norm(
    n: Numbers, x: Real, sizes: Sequence[int], weight: Any = None, eps: float | None = None, *, name: str
) -> Value:
    """Return a tensor divided by the root of its mean square."""
    if eps is None or name != "rms_norm":
        raise Undecided(f"{name} with an epsilon of its own")
    return _scaled(_normalized(n, x, range(x.ndim - len(sizes), x.ndim), eps, centre=False)[0], weight, None)


@defines("group_norm", "instance_norm")
def _group_norm(
    n: Numbers, x: Real, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *args: Any, name: str
) -> Value:
    if name != "group_norm" or x.shape[1] % groups:
        raise Undecided("instance_norm with statistics") if name != "group_norm" else Invalid("groups")
    parts = x.moved(lambda v: v.reshape(v.shape[0], groups, -1))
    result = _normalized(n, parts, (2,), eps)[0].moved(lambda v: v.reshape(x.shape))
    return _scaled(result, *(each and per_channel(each, x.ndim) for each in (weight, bias)))


def per_channel(x: Real, rank: int) -> Real:
    """Return one number for each channel in a shape that broadcasts."""
    return x.moved(lambda v: v.reshape(-1, *[1] * (rank - 2)))


@defines("batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(n: Numbers, x: Real, weight: Any, bias: Any, middle: Any, square: Any, *args: Any, name: str) -> Value:
    training, eps = (args[0], args[2]) if name == "batch_norm" else (False, args[1])
    if training:
        raise Undecided("batch_norm in training mode")
    weight, bias, middle, square = (each and per_channel(each, x.ndim) for each in (weight, bias, middle, square))
    result = _scaled((x - middle) / (square + _epsilon(n, eps, x)).root(), weight, bias)
    empty = Real.of(np.zeros(0), TensorProto.FLOAT)
    return result if name == "batch_norm" else (result, empty, empty)


@defines("scaled_dot_product_attention")
def _attention(
    n: Numbers,
    query: Real,
    key: Real,
    value: Real,
    mask: Value = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Return _softmax(query · keyᵀ · scale + mask) · value."""
    if dropout_p:
        raise Undecided("attention with dropout")
    mask = attn_mask if mask is None else mask
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (each.moved(lambda v: np.repeat(v, times, -3)) for each in (key, value))
    factor = 1 / query.like(query.shape[-1]).root() if scale is None else number(n, scale, query.dtype)
    half = factor.root()  # of which a square is taken: the residue of a root is that of the number up to its sign
    scores = n.matmul(query, _last(key)) * (half * half)
    if is_causal:
        mask = np.tri(scores.shape[-2], scores.shape[-1], dtype=bool)
    if mask is not None and not isinstance(mask, Real):
        mask = chosen(mask, number(n, 0.0, query.dtype), number(n, -math.inf, query.dtype))
    scores = scores if mask is None else scores + mask
    return n.matmul(_softmax(n, scores, -1, name="softmax"), value)
