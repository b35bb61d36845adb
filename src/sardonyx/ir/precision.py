"""Constants computed ahead of time, in the type they are stored in; refused if that type cannot represent them.

A product that is exact to rounding in the graph may overflow, or lose precision below the smallest normal number, once
it is stored. The checks apply to the product, not to its factors: a large factor of small weights is fine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.storage import Array
from sardonyx.ir.tensors import ComputedTensor

GUARD = 64.0  # an error below 1/GUARD of a rounding error of the largest weight in the same sum is ignored
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


class ScaledTensor(ComputedTensor):
    """A weight times one factor for each channel, checked to fit its type; computed whenever it is read."""

    __slots__ = ()


def rounded(exact: Array, dtype: ir.DataType, beside: Array | float = 0.0) -> ir.TensorProtocol:
    """Return numbers that were computed in double precision, stored as `dtype`.

    Every stored number must satisfy |stored - exact| <= u * max(|exact|, beside), where u is the unit roundoff of
    `dtype`. `beside` is what the numbers are added to, or the terms that they are the sum of.

    Raises:
        Impossible: if a number overflows or has a larger error.
    """
    with np.errstate(all="ignore"):  # refused below
        stored = np.asarray(exact).astype(dtype.numpy())
        error = np.abs(stored.astype(np.float64) - exact)
        allowed = FORMATS[dtype].roundoff * np.maximum(np.abs(exact), beside)
        fits = bool((error <= allowed).all())  # False for NaN as well
    if not fits or not np.isfinite(exact).all():
        raise Impossible(_loss(dtype))
    return ir.Tensor(stored, dtype=dtype)


def scaled(weight: ir.TensorProtocol, factor: Array, shape: tuple[int, ...] | None = None) -> ScaledTensor:
    """Return the weight times a factor, rounded once when it is read; `shape` is the shape in which the factor applies.

    The factor has as many axes as the weight, with size 1 along the axes over which weights are summed: there, a weight
    may lose precision if another one in the same sum is far larger.

    Raises:
        Impossible: as `rounded`.
    """
    dtype, own = weight.dtype, weight.shape.numpy()
    view = own if shape is None else shape

    def exact() -> Array:
        return weight.numpy().reshape(view).astype(np.float64) * factor

    def compute() -> Array:
        return exact().astype(dtype.numpy()).reshape(own)

    if weight.size:
        _check_scaled(weight.numpy().reshape(view), factor, exact, dtype)
    return ScaledTensor(dtype, own, compute)


def _check_scaled(weight: Array, factor: Array, exact: Callable[[], Array], dtype: ir.DataType) -> None:
    """Check the largest product of each sum, and all products only if that one is small.

    With largest = max |weight| over the summed axes and peak = largest * |factor|, this refuses a peak that overflows,
    a peak above most / HEADROOM unless the weight was as large before, and weights that become subnormal in a sum whose
    peak is below GUARD times the smallest normal number.
    """
    summed = tuple(axis for axis, size in enumerate(factor.shape) if size == 1)
    largest = np.maximum(weight.max(summed, keepdims=True), -weight.min(summed, keepdims=True)).astype(np.float64)
    with np.errstate(all="ignore"):  # refused below
        peaks = largest * np.abs(factor)
    rounded(peaks, dtype, peaks)  # refuses an overflow
    form = FORMATS[dtype]
    if ((peaks > form.most / HEADROOM) & (largest <= form.most / HEADROOM)).any():
        raise Impossible(_loss(dtype))  # before folding, the sum could cancel before the factor was applied
    small = (peaks < form.least * GUARD / (2 * form.roundoff)) & (largest > 0) & (factor != 0)
    if not small.any():
        return
    if dtype is _D.DOUBLE or not peaks[small].all():  # double precision cannot show the loss
        raise Impossible(_loss(dtype))
    rounded(exact(), dtype, peaks / GUARD)


def _loss(dtype: ir.DataType) -> str:
    return f"a folded constant would overflow or lose precision in {dtype.name.lower()}"
