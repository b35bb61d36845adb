"""Constants computed ahead of time, in the type they are stored in: refused where that type cannot hold them.

A product that is exact to rounding in the graph may overflow, or lose its digits below the smallest normal number, once
it is stored. The tests here are made on the product, not on its factors: a large factor of small weights is fine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from sardonyx.ir.storage import Array
from sardonyx.ir.tensors import ComputedTensor

GUARD = 64.0  # a lost digit may count for this part of a rounding of the largest weight that it is summed with


HEADROOM = 128.0  # sums over a folded weight may be this many times as large as it


class Impossible(Exception):
    """A rewrite that must not be carried out, and why; nothing was changed."""


@dataclass(frozen=True, slots=True)
class _Format:
    """A float type by its numbers."""

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
    """A weight times one factor for each channel, known to fit its type; computed whenever it is read."""

    __slots__ = ()


def rounded(exact: Array, dtype: ir.DataType, beside: Array | float = 0.0) -> ir.TensorProtocol:
    """Numbers computed in double precision, stored as `dtype`.

    `beside` is what they are added to, or the terms they are the sum of: digits far below that are not missed.

    Raises:
        Impossible: where a number overflows, or loses more than a rounding of itself and of what is beside it.
    """
    with np.errstate(all="ignore"):  # what does not fit is refused below
        stored = np.asarray(exact).astype(dtype.numpy())
        off = np.abs(stored.astype(np.float64) - exact)
        allowed = FORMATS[dtype].roundoff * np.maximum(np.abs(exact), beside)
        fits = bool((off <= allowed).all())  # False for NaN as well
    if not fits or not np.isfinite(exact).all():
        raise Impossible(_lost(dtype))
    return ir.Tensor(stored, dtype=dtype)


def scaled(weight: ir.TensorProtocol, factor: Array, shape: tuple[int, ...] | None = None) -> ScaledTensor:
    """The weight, seen in another shape where one is given, times a factor; rounded once, when it is read.

    The factor has as many axes as the weight, with size 1 where weights are summed: along those, a weight that loses
    digits does no harm beside one that is far larger.

    Raises:
        Impossible: as `rounded`.
    """
    dtype, own = weight.dtype, weight.shape.numpy()
    seen = own if shape is None else shape

    def exact() -> Array:
        return weight.numpy().reshape(seen).astype(np.float64) * factor

    def compute() -> Array:
        return exact().astype(dtype.numpy()).reshape(own)

    if weight.size:
        _check_scaled(weight.numpy().reshape(seen), factor, exact, dtype)
    return ScaledTensor(dtype, own, compute)


def _check_scaled(weight: Array, factor: Array, exact: Callable[[], Array], dtype: ir.DataType) -> None:
    """Look at every product only where the largest one of a sum is small: weights that matter seldom are."""
    summed = tuple(axis for axis, size in enumerate(factor.shape) if size == 1)
    largest = np.maximum(weight.max(summed, keepdims=True), -weight.min(summed, keepdims=True)).astype(np.float64)
    with np.errstate(all="ignore"):  # what does not fit is refused
        peaks = largest * np.abs(factor)
    rounded(peaks, dtype, peaks)  # refuses what overflows
    form = FORMATS[dtype]
    if ((peaks > form.most / HEADROOM) & (largest <= form.most / HEADROOM)).any():
        raise Impossible(_lost(dtype))  # a sum that the factor is applied to afterwards may cancel before it overflows
    small = (peaks < form.least * GUARD / (2 * form.roundoff)) & (largest > 0) & (factor != 0)
    if not small.any():
        return
    if dtype is _D.DOUBLE or not peaks[small].all():  # what is lost cannot be seen in double precision
        raise Impossible(_lost(dtype))
    rounded(exact(), dtype, peaks / GUARD)


def _lost(dtype: ir.DataType) -> str:
    return f"a folded constant would overflow or lose its digits in {dtype.name.lower()}"
