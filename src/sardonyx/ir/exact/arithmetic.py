"""Operators on single elements, comparisons, casts, and reductions."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from sardonyx.ir.exact.call import (
    FLOATS,
    Array,
    Invalid,
    OperatorCall,
    Undecided,
    Value,
    axis_of,
    both,
    defines,
    dtype_of,
    moved,
    numpy_type,
)  # fmt: skip
from sardonyx.ir.exact.reals import FUNCTIONS, Numbers, Real, chosen, snapped


def _divided(a: Array, b: Array) -> Array:
    """Divide integers as C does: towards zero."""
    if bool(np.any(b == 0)):
        raise Invalid("a division of integers by 0")
    floor = np.floor_divide(a, b)
    return np.where((floor < 0) & (floor * b != a), floor + 1, floor).astype(a.dtype)


def combined(call: OperatorCall, name: str, a: Value, b: Value) -> Value:
    """Return the result of a binary operator on two tensors."""
    a, b = both(a, b)
    operations: dict[str, Callable[[Any, Any], Any]] = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul}
    if isinstance(a, Real):
        operations |= {"Div": Real.__truediv__, "Max": call.numbers.largest, "Min": call.numbers.smallest}
    else:
        operations |= {"Div": _divided, "Max": np.maximum, "Min": np.minimum}
    try:
        return operations[name](a, b)
    except ValueError as error:
        raise Invalid(str(error)) from None


def _placed(call: OperatorCall, a: Value, b: Value) -> Value:
    """Return the second operand with the axes that very old versions name in an attribute."""
    axis = call.get("axis")
    if not call.get("broadcast", 0) or axis is None:
        return b
    sizes = (*b.shape, *[1] * (len(a.shape) - axis - len(b.shape)))
    return moved(b, lambda x: x.reshape(sizes))


@defines("Max", "Min", "Sum", "Mean")
def _variadic(call: OperatorCall) -> Value:
    name = {"Sum": "Add", "Mean": "Add"}.get(call.node.op_type, call.node.op_type)
    result = functools.reduce(lambda a, b: combined(call, name, a, b), call.operands)
    return result / len(call.operands) if call.node.op_type == "Mean" else result


@defines("Abs", "Relu", "Sign")
def _against_zero(call: OperatorCall) -> Value:
    name, x, n = call.node.op_type, call[0], call.numbers
    if not isinstance(x, Real):
        whole = np.maximum(x, 0) if name == "Relu" else np.abs(x) if name == "Abs" else np.sign(x)
        return whole.astype(x.dtype)
    zero = x.like(0)
    if name == "Sign":
        return Real.of(n.less(zero, x).astype(np.int64) - n.less(x, zero), x.dtype)
    return n.largest(x, -x if name == "Abs" else zero)


@defines("Pow")
def _power(call: OperatorCall) -> Value:
    """Return powers; the exponent may have another type."""
    base, exponent = call[0], call[1]
    if not isinstance(base, Real):
        by = exponent.doubles if isinstance(exponent, Real) else exponent
        powers = np.power(base.astype(object) if base.dtype.kind in "iu" else base, by)
        try:
            return powers.astype(base.dtype)
        except OverflowError:
            raise Undecided("a power beyond the range of its type") from None
    return call.numbers.power(base, exponent if isinstance(exponent, Real) else Real.of(exponent, base.dtype))


@defines("Mod")
def _modulo(call: OperatorCall) -> Value:
    """Return the rest of a division: with the sign of the divisor, or of the dividend."""
    a, b = both(call[0], call[1])
    if not isinstance(a, Real):
        if bool(np.any(b == 0)):
            raise Invalid("a division of integers by 0")
        return np.fmod(a, b) if call.get("fmod", 0) else np.mod(a, b)
    n, quotient = call.numbers, a / b
    whole = n.whole("Floor", quotient)
    if call.get("fmod", 0):
        whole = chosen(n.less(quotient, a.like(0)), n.whole("Ceil", quotient), whole)
    return a - whole * b


@defines("Clip")
def _clip(call: OperatorCall) -> Value:
    x = call[0]
    for index, name, key in ((1, "Max", "min"), (2, "Min", "max")):
        bound = call[index] if call.get(key) is None else call.numbers.attribute(call.get(key), x.dtype)
        if bound is not None:
            x = combined(call, name, x, moved(bound, lambda v: v.reshape(())))
    return x


@defines(
    "LeakyRelu", "PRelu", "ThresholdedRelu", "Elu", "Celu", "Selu", "HardSigmoid", "HardSwish", "Softsign", "Shrink"
)
def _activation(call: OperatorCall) -> Value:
    """Return an activation of each element; the standard gives these definitions."""
    name, x, n = call.node.op_type, call.real(0), call.numbers
    zero = x.like(0)

    def attribute(key: str, default: float) -> Real:
        return n.attribute(call.get(key, default), x.dtype)

    if name in ("LeakyRelu", "PRelu"):
        slope = attribute("alpha", 0.01) if name == "LeakyRelu" else call.real(1)
        return chosen(n.less(x, zero), slope * x, x)
    if name == "ThresholdedRelu":
        return chosen(n.less(attribute("alpha", 1.0), x), x, zero)
    if name in ("Elu", "Celu", "Selu"):
        alpha = attribute("alpha", 1.67326319217681884765625 if name == "Selu" else 1.0)
        below = alpha * (n.apply("Exp", x / alpha if name == "Celu" else x) - 1)
        result = chosen(n.less(x, zero), below, x)
        return attribute("gamma", 1.05070102214813232421875) * result if name == "Selu" else result
    if name in ("HardSigmoid", "HardSwish"):
        swish = name == "HardSwish"  # of which 1 / 6 is exactly that
        alpha, beta = (1 / x.like(6), x.like(0.5)) if swish else (attribute("alpha", 0.2), attribute("beta", 0.5))
        gate = n.smallest(n.largest(alpha * x + beta, zero), x.like(1))
        return x * gate if swish else gate
    if name == "Softsign":
        return x / (n.largest(x, -x) + 1)
    bias, limit = attribute("bias", 0.0), attribute("lambd", 0.5)
    return chosen(n.less(x, -limit), x + bias, chosen(n.less(limit, x), x - bias, zero))


@defines("And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift")
def _logic(call: OperatorCall) -> Value:
    a, b = call[0], _placed(call, call[0], call[1])
    name = call.node.op_type
    if name == "BitShift":
        return np.left_shift(a, b) if call.text("direction", "") == "LEFT" else np.right_shift(a, b)
    if name.endswith("And"):
        return a & b
    return a | b if name in ("Or", "BitwiseOr") else a ^ b


@defines("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
def _comparison(call: OperatorCall) -> Value:
    """Return where a relation holds; for numbers that are not NaN, one order answers all."""
    name = call.node.op_type
    a, b = both(call[0], _placed(call, call[0], call[1]))
    if not isinstance(a, Real):
        relations = {"Equal": operator.eq, "Less": operator.lt, "Greater": operator.gt}
        relations |= {"LessOrEqual": operator.le, "GreaterOrEqual": operator.ge}
        return np.asarray(relations[name](a, b))
    numbers = call.numbers
    if name == "Equal":
        return numbers.equal(a, b)
    left, right = (a, b) if name.startswith("Less") else (b, a)
    result = numbers.less(left, right)
    return result | numbers.equal(a, b) if name.endswith("OrEqual") else result


@defines("IsNaN", "IsInf")
def _special(call: OperatorCall) -> Value:
    x = call.real(0).doubles
    if call.node.op_type == "IsNaN":
        return np.isnan(x)
    positive, negative = call.get("detect_positive", 1), call.get("detect_negative", 1)
    return (np.isposinf(x) & bool(positive)) | (np.isneginf(x) & bool(negative))


@defines("Cast", "CastLike")
def _cast(call: OperatorCall) -> Value:
    """Return the elements in another type; all floating-point types hold the same real numbers here."""
    to = call.get("to") if call.node.op_type == "Cast" else dtype_of(call[1])
    return converted(call.numbers, call[0], to)


def converted(numbers: Numbers, x: Value, to: int) -> Value:
    """Return a tensor in another type."""
    if to in FLOATS:
        if isinstance(x, Real):
            return x.typed(to)
        if np.asarray(x).dtype.kind in "OUS":
            raise Undecided("a cast of strings")
        return Real.of(x, to)
    if to == TensorProto.STRING:
        raise Undecided("a cast to strings")
    target = numpy_type(to)
    if not isinstance(x, Real):
        return np.asarray(x).astype(target)
    if to == TensorProto.BOOL:
        return np.where(np.isfinite(x.doubles), x.residues != 0, True)
    numbers.compared = True
    truncated = np.trunc(snapped(x.doubles))
    fits = np.abs(truncated) < 2.0**62
    if not fits.all():  # the standard does not say what they become
        truncated = np.where(fits, truncated, numbers.arbitrary)
    return truncated.astype(np.int64).astype(target)


def _axes(call: OperatorCall, rank: int) -> tuple[int, ...] | None:
    """Return the axes of a reduction; None if nothing is reduced."""
    axes = call.integers(1, "axes")
    if not axes:
        return None if call.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({axis_of(axis, rank) for axis in axes}))


@defines("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
def _reduce_sum(call: OperatorCall) -> Value:
    name, x, n = call.node.op_type, call[0], call.numbers
    axes, keepdims = _axes(call, len(x.shape)), bool(call.get("keepdims", 1))
    if not isinstance(x, Real):
        if axes is None:
            return x
        if name not in ("ReduceSum", "ReduceSumSquare"):
            raise Undecided(f"{name} of integers")
        return np.sum(x if name == "ReduceSum" else x * x, axis=axes, keepdims=keepdims, dtype=x.dtype)
    if name in ("ReduceSumSquare", "ReduceL2"):
        x = x * x
    elif name == "ReduceL1":
        x = n.largest(x, -x)
    elif name == "ReduceLogSumExp":
        x = n.apply("Exp", x)
    if axes is None:
        return x
    result = x.total(axes, keepdims=keepdims)
    if name == "ReduceMean":
        return result / math.prod(x.shape[axis] for axis in axes)
    if name == "ReduceL2":
        return result.root()
    return n.apply("Log", result) if name.startswith("ReduceLog") else result


@defines("ReduceMax", "ReduceMin")
def _reduce_order(call: OperatorCall) -> Value:
    x, least = call[0], call.node.op_type == "ReduceMin"
    axes, keepdims = _axes(call, len(x.shape)), bool(call.get("keepdims", 1))
    if axes is None:
        return x
    if any(x.shape[axis] == 0 for axis in axes):
        raise Undecided(f"{call.node.op_type} of nothing")
    if not isinstance(x, Real):
        return np.min(x, axes, keepdims=keepdims) if least else np.max(x, axes, keepdims=keepdims)
    return extreme(call.numbers, x, axes, keepdims=keepdims, least=least)


def extreme(numbers: Numbers, x: Real, axes: tuple[int, ...], *, keepdims: bool, least: bool = False) -> Real:
    """Return the largest or smallest element along axes."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    rows = x.moved(lambda v: np.transpose(v, (*kept, *axes)).reshape(*(x.shape[axis] for axis in kept), -1))
    keys = numbers.keys(rows)
    places = np.expand_dims(np.argmin(keys, -1) if least else np.argmax(keys, -1), -1)
    sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape) if keepdims or axis not in axes]
    return rows.moved(lambda v: np.take_along_axis(v, places, -1).reshape(sizes))


@defines("ReduceProd")
def _reduce_product(call: OperatorCall) -> Value:
    x = call[0]
    axes, keepdims = _axes(call, len(x.shape)), bool(call.get("keepdims", 1))
    if axes is None:
        return x
    if not isinstance(x, Real):
        return np.prod(x, axis=axes, keepdims=keepdims, dtype=x.dtype)
    for axis in axes:
        factors = [x.moved(lambda v, at=at, axis=axis: np.take(v, [at], axis)) for at in range(x.shape[axis])]
        one = Real.of(np.ones([1 if i == axis else size for i, size in enumerate(x.shape)]), x.dtype)
        x = functools.reduce(operator.mul, factors, one)
    return x if keepdims else x.moved(lambda v: v.squeeze(axes))


@defines("ArgMax", "ArgMin")
def _arg_extreme(call: OperatorCall) -> Value:
    x = call[0]
    axis = axis_of(call.get("axis", 0), len(x.shape))
    keys = call.numbers.keys(x) if isinstance(x, Real) else x
    find = np.argmax if call.node.op_type == "ArgMax" else np.argmin
    if call.get("select_last_index", 0):
        places = keys.shape[axis] - 1 - find(np.flip(keys, axis), axis)
    else:
        places = find(keys, axis)
    return np.asarray(np.expand_dims(places, axis) if call.get("keepdims", 1) else places, np.int64)


@defines("TopK")
def _top_k(call: OperatorCall) -> tuple[Value, Value]:
    x, count = call[0], (call.integers(1, "k") or [0])[0]
    axis = axis_of(call.get("axis", -1), len(x.shape))
    if not call.get("sorted", 1):
        raise Undecided("TopK in no order")
    keys: Array = call.numbers.keys(x) if isinstance(x, Real) else x
    if keys.dtype.kind in "iub":
        keys = keys.astype(np.int64)
    order = np.argsort(-keys if call.get("largest", 1) else keys, axis, kind="stable")
    places = np.take(order, range(count), axis)

    def take(v: Array) -> Array:
        return np.take_along_axis(v, places, axis)

    return x.moved(take) if isinstance(x, Real) else take(x), places.astype(np.int64)


@defines("CumSum")
def _cumulative_sum(call: OperatorCall) -> Value:
    x = call[0]
    axis = axis_of((call.integers(1) or [0])[0], len(x.shape))
    backwards, exclusive = bool(call.get("reverse", 0)), bool(call.get("exclusive", 0))

    def flipped(v: Array) -> Array:
        return np.flip(v, axis) if backwards else v

    def later(v: Array) -> Array:
        rolled = np.roll(v, 1, axis)
        rolled[(slice(None),) * axis + (slice(0, 1),)] = 0
        return rolled

    x = moved(x, flipped)
    sums = x.running_total(axis) if isinstance(x, Real) else np.cumsum(x, axis, dtype=x.dtype)
    return moved(moved(sums, later) if exclusive else sums, flipped)


@defines("Softmax", "LogSoftmax", "Hardmax")
def _softmax(call: OperatorCall) -> Value:
    """Return each row as positive numbers that add up to 1; before opset 13, a row is all axes from one on."""
    x, numbers, shape = call.real(0), call.numbers, call.real(0).shape
    old = call.opset < 13
    axis = axis_of(call.get("axis", 1 if old else -1), max(x.ndim, 1))
    if old:
        sizes = (int(np.prod(shape[:axis], dtype=np.int64)), int(np.prod(shape[axis:], dtype=np.int64)))
        x, axis = x.moved(lambda v: v.reshape(sizes)), 1
    if call.node.op_type == "Hardmax":
        places = np.expand_dims(np.argmax(numbers.keys(x), axis), axis)
        counts = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        return Real.of((counts == places).astype(np.int64), x.dtype).moved(lambda v: v.reshape(shape))
    if not x.size:
        return call[0]
    # Any number of the row would do in place of the largest; the largest double keeps masked elements at 0.
    places = np.expand_dims(np.argmax(x.doubles, axis), axis)
    highest = x.moved(lambda v: np.take_along_axis(v, places, axis))
    powers = numbers.apply("Exp", x - highest)
    total = powers.total(axis, keepdims=True)
    log = call.node.op_type == "LogSoftmax"
    result = x - highest - numbers.apply("Log", total) if log else powers / total
    return result.moved(lambda v: v.reshape(shape))


defines("Add", "Sub", "Mul", "Div")(
    lambda call: combined(call, call.node.op_type, call[0], _placed(call, call[0], call[1]))
)
defines(*FUNCTIONS)(lambda call: call.numbers.apply(call.node.op_type, call.real(0)))
defines("Floor", "Ceil", "Round")(lambda call: call.numbers.whole(call.node.op_type, call.real(0)))
defines("Neg")(lambda call: -call[0])
defines("Reciprocal")(lambda call: 1 / call.real(0))
defines("Sqrt")(lambda call: call.real(0).root())
defines("Not", "BitwiseNot")(lambda call: np.invert(call[0]))
