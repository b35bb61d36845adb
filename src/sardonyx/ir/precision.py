"""Constants computed ahead of time, in the type they are stored in; refused if that type cannot represent them.

A product that is exact to rounding in the graph may overflow, or lose precision below the smallest normal number, once
it is stored. The checks apply to the product, not to its factors: a large factor of small weights is fine.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.expressions import Expression, definition_of, known
from sardonyx.ir.storage import Array
from sardonyx.ir.tensors import ExpressionTensor

GUARD = 64.0  # an error below 1/GUARD of a rounding error of the largest weight in the same sum is ignored
_SUMS = frozenset({"Add", "Sub"})
_MOVES = frozenset({"Expand", "Reshape", "Transpose"})
_UNIT = 2.0**-53  # of rounding to double precision, relative
HEADROOM = 128.0  # sums over a folded weight may be this many times larger than it


class Impossible(Exception):
    """A rewrite that must not be performed, with the reason; nothing was changed."""


class _Format(Struct, frozen=True):
    """The limits of a floating-point type."""

    roundoff: float  # the largest relative error of rounding to a normal number
    least: float  # the smallest number above 0
    most: float  # the largest finite number


_D = ir.DataType
FORMATS: Mapping[ir.DataType, _Format] = MappingProxyType(
    {
        _D.FLOAT16: _Format(2.0**-11, 2.0**-24, 65504.0),
        _D.BFLOAT16: _Format(2.0**-8, 2.0**-133, (2 - 2.0**-7) * 2.0**127),
        _D.FLOAT: _Format(2.0**-24, 2.0**-149, (2 - 2.0**-23) * 2.0**127),
        _D.DOUBLE: _Format(2.0**-53, 2.0**-1074, (2 - 2.0**-52) * 2.0**1023),
    }
)


def rounded(exact: Expression, dtype: ir.DataType) -> ExpressionTensor:
    """Return the values of a small expression, stored as `dtype`.

    Every stored number must satisfy |stored - exact| <= u * max(|exact|, |term|), where u is the unit roundoff of
    `dtype` and a term is one of the two numbers that `exact` is the sum of, if it is a sum.

    Raises:
        Impossible: if a number overflows or has a larger error.
    """
    values, beside = exact.numpy(), np.zeros(())
    if exact.op_type in _SUMS:
        beside = np.maximum(*(np.abs(term.numpy()) for term in exact.operands))
    return ExpressionTensor(exact.cast(dtype), dtype, values.shape, _stored(values, dtype, beside))


def _stored(exact: Array, dtype: ir.DataType, beside: Array | float) -> Array:
    """Return numbers rounded to a type; what they are added to is `beside` them."""
    with np.errstate(all="ignore"):  # refused below
        stored = np.asarray(exact).astype(dtype.numpy())
        error = np.abs(stored.astype(np.float64) - exact)
        allowed = FORMATS[dtype].roundoff * np.maximum(np.abs(exact), beside)
        fits = bool((error <= allowed).all())  # False for NaN and infinities as well
    if not fits:
        raise Impossible(_loss(dtype))
    return stored


def scaled(weight: ir.TensorProtocol, factor: Expression, shape: tuple[int, ...] | None = None) -> ExpressionTensor:
    """Return the weight times a factor, rounded once when it is read; `shape` is the shape in which the factor applies.

    The factor has as many axes as the weight, with size 1 along the axes over which weights are summed: there, a weight
    may lose precision if another one in the same sum is far larger.

    Raises:
        Impossible: as `rounded`.
    """
    dtype, own = weight.dtype, weight.shape.numpy()
    view = own if shape is None else shape
    exact = (known(weight) if view == own else known(weight).reshaped(view)) * factor
    if weight.size:
        _check_scaled(weight.numpy().reshape(view), factor.numpy(), exact, dtype)
    product = exact.cast(dtype)
    return ExpressionTensor(product if view == own else product.reshaped(own), dtype, own)


def _check_scaled(weight: Array, factor: Array, exact: Expression, dtype: ir.DataType) -> None:
    """Check the largest product of each sum, and all products only if that one is small.

    With largest = max |weight| over the summed axes and peak = largest * |factor|, this refuses a peak that overflows,
    a peak above most / HEADROOM unless the weight was as large before, and weights that become subnormal in a sum whose
    peak is below GUARD times the smallest normal number.
    """
    summed = tuple(axis for axis, size in enumerate(factor.shape) if size == 1)
    largest = np.maximum(weight.max(summed, keepdims=True), -weight.min(summed, keepdims=True)).astype(np.float64)
    with np.errstate(all="ignore"):  # refused below
        peaks = largest * np.abs(factor)
    _stored(peaks, dtype, peaks)  # refuses an overflow
    form = FORMATS[dtype]
    if ((peaks > form.most / HEADROOM) & (largest <= form.most / HEADROOM)).any():
        raise Impossible(_loss(dtype))  # before folding, the sum could cancel before the factor was applied
    small = (peaks < form.least * GUARD / (2 * form.roundoff)) & (largest > 0) & (factor != 0)
    if not small.any():
        return
    if dtype is _D.DOUBLE or not peaks[small].all():  # double precision cannot show the loss
        raise Impossible(_loss(dtype))
    _stored(exact.numpy(), dtype, peaks / GUARD)


def _loss(dtype: ir.DataType) -> str:
    return f"a folded constant would overflow or lose precision in {dtype.name.lower()}"


def rounding_units(tensor: ir.TensorProtocol) -> float:
    """Return how far a tensor is from the exact values of its definition at most, in units in the last place.

    The unit is that of the number, or that of the larger term if the number is a sum. A tensor without a definition
    and one that only moves elements is exact. Factors that are no computed numbers, such as weights, are not read.
    """
    definition = definition_of(tensor)
    while definition is not None and definition.op_type in _MOVES:
        inner = definition.operands[0]
        definition = inner if isinstance(inner, Expression) else None
    inner = definition.operands[0] if definition is not None and definition.op_type == "Cast" else None
    if not isinstance(inner, Expression) or _is_exact(inner):
        return 0.0
    with np.errstate(all="ignore"):
        relative = float(np.max(_relative(inner), initial=0.0))
    last = {_D.DOUBLE: 0.0, _D.BFLOAT16: 0.5 + 2.0**-17}.get(tensor.dtype, 0.5)  # bfloat16 is rounded twice
    return relative / FORMATS[tensor.dtype].roundoff + last


def _is_exact(operand: Expression | ir.TensorProtocol) -> bool:
    """Return whether nothing is computed but moves."""
    if not isinstance(operand, Expression):
        return True
    return operand.op_type in _MOVES | {"Cast", "Neg"} and _is_exact(operand.operands[0])


def _relative(result: Expression) -> Array:
    """Return bounds of the relative errors of a result in double precision, those of a sum relative to its terms."""
    if result.op_type in ("Mul", "Div") and any(map(_is_exact, result.operands)):
        ratios = [_ratio(*_bounded(each)) for each in result.operands if not _is_exact(each)] or [np.zeros(())]
        error = ratios[0] / np.maximum(1 - ratios[0], 0.0)  # of the other factor or divisor
        return error + _UNIT * (1 + error)
    size, error = _bounded(result)
    terms = [np.abs(term.numpy()) for term in result.operands] if result.op_type in _SUMS else []
    return _ratio(np.maximum.reduce(np.broadcast_arrays(size, *terms)), error)


def _ratio(size: Array, error: Array) -> Array:
    return np.where(error == 0, 0.0, error / size)


def _bounded(operand: Expression | ir.TensorProtocol) -> tuple[Array, Array]:
    """Return the magnitudes of values in double precision, and bounds of their absolute errors."""
    values = np.abs(operand.numpy())
    if not isinstance(operand, Expression) or _is_exact(operand):
        return values, np.zeros_like(values)
    if operand.op_type in _MOVES:
        return values, operand.applied(
            [_bounded(operand.operands[0])[1], *(each.numpy() for each in operand.operands[1:])]
        )
    sizes, errors = zip(*map(_bounded, operand.operands), strict=True)
    match operand.op_type:
        case "Add" | "Sub":
            error = errors[0] + errors[1]
        case "Mul":
            error = sizes[0] * errors[1] + sizes[1] * errors[0] + errors[0] * errors[1]
        case "Div":
            error = (errors[0] + values * errors[1]) / np.maximum(sizes[1] - errors[1], 0.0)
        case "Sqrt":
            error = errors[0] / np.sqrt(sizes[0])
        case "Concat":
            return values, operand.applied(errors)
        case _:
            return values, np.maximum.reduce(np.broadcast_arrays(*errors))
    error = np.where(np.isnan(error), np.inf, error)
    return values, error + _UNIT * (values + error)
