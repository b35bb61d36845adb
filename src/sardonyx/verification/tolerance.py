"""The tolerance of an output by its type and accuracy class, and the difference of two outputs.

For reference a, result b, e = |a - b|, the spacing eps of the output's type at 1, and s = median of the non-zero |a|:

    class          types                       e ≤ rtol · (|a| + s)      rms(e) ≤ rms · rms(a)
    exact          all                         rtol = 0                  rms = 0
    reassociates   float32, float64            rtol = 64 eps             rms = 8 eps
    reassociates   float16, bfloat16, float8   rtol = 4 eps              rms = 1 eps
    approximates   all                         rtol = max(above, 0.02)   rms = max(above, 0.001)

`deviation` applies these limits to slices of the output too, and widens them by rounding errors of the reference.
The measurements behind the numbers are in `docs/decisions/0002-tolerances.md`.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from msgspec import Struct

from sardonyx.ir.storage import Array
from sardonyx.records.run import Accuracy

# Allowed error in units of eps, elementwise and as a root mean square, for other roundings of the same function. It is
# smaller for types narrower than single precision: 64 eps of float16 are six percent.
REASSOCIATED_MAX = 64.0
REASSOCIATED_RMS = 8.0
NARROW_MAX = 4.0
NARROW_RMS = 1.0
# Allowed error for an approximation of the function, relative to the value and the output's scale, in every type.
APPROXIMATE_MAX = 2e-2
APPROXIMATE_RMS = 1e-3
SINGLE_EPS = 2.0**-23  # types with a larger one are narrow


class Limit(Struct, frozen=True):
    """The allowed error: elementwise `rtol * (|reference| + scale)`, and `rms` relative to the reference's rms."""

    rtol: float
    rms: float


class Difference(Struct, frozen=True):
    """How far apart two tensors of one type and shape are."""

    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    scaled: float = 0.0  # max of |difference| / (|reference| + scale)
    rms: float = 0.0  # rms of the difference over the rms of the reference
    scale: float = 0.0  # median magnitude of the reference's non-zero elements
    pattern: str | None = None  # a difference in NaN or infinities, which no tolerance allows


def epsilon(dtype: np.dtype[Any]) -> float:
    """Return the spacing of a floating-point type at 1, or that of the parts of a complex type."""
    import ml_dtypes  # its finfo also covers numpy's types

    real = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    return float(cast(Any, ml_dtypes).finfo(real).eps)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether the type rounds: numpy's floats and those of ml_dtypes, whose kind in numpy is void."""
    return dtype.kind == "f" or "float" in dtype.name


def limit(dtype: np.dtype[Any], accuracy: Accuracy) -> Limit:
    """Return the allowed difference of a float output of this type before any rounding error is measured."""
    if accuracy is Accuracy.EXACT:
        return Limit(0.0, 0.0)
    eps = epsilon(dtype)
    narrow = eps > SINGLE_EPS
    rtol = (NARROW_MAX if narrow else REASSOCIATED_MAX) * eps
    rms = (NARROW_RMS if narrow else REASSOCIATED_RMS) * eps
    if accuracy is Accuracy.APPROXIMATES:
        rtol, rms = max(rtol, APPROXIMATE_MAX), max(rms, APPROXIMATE_RMS)
    return Limit(rtol, rms)


def within(difference: Difference, allowed: Limit) -> bool:
    """Return whether a measured difference of two float tensors is allowed."""
    if difference.pattern is not None:
        return False
    if allowed.rtol == 0.0:
        return difference.max_abs == 0.0 and difference.max_ulp == 0.0
    return difference.scaled <= allowed.rtol and difference.rms <= allowed.rms


def float_difference(reference: Array, result: Array) -> Difference:
    """Measure the difference of two float or complex tensors of one type and shape; NaN equals NaN."""
    if reference.dtype.kind == "c":
        return float_difference(as_parts(reference), as_parts(result))
    bits = f"u{reference.dtype.itemsize}"
    if np.array_equal(reference.view(bits), result.view(bits)):  # the usual case, without many copies in float64
        size = np.abs(reference if reference.dtype.kind == "f" else reference.astype(np.float64))
        return Difference(scale=median(size[(size > 0) & np.isfinite(size)]))
    ulp = ulp_distance(reference, result)
    a, b = reference.astype(np.float64), result.astype(np.float64)
    pattern = _pattern(a, b)
    both = np.isfinite(a) & np.isfinite(b)
    a, b, ulp = a[both], b[both], ulp[both.reshape(-1)]
    if a.size == 0:
        return Difference(pattern=pattern)
    error, size = np.abs(a - b), np.abs(a)
    nonzero = size[size > 0]
    scale = median(nonzero)
    whole = math.sqrt(_mean_square(size))
    return Difference(
        max_abs=float(error.max()),
        max_rel=float(ratio(error, size).max()),
        max_ulp=float(ulp.max()),
        scaled=float(ratio(error, size + scale).max()),
        rms=float(ratio(np.asarray(math.sqrt(_mean_square(error))), np.asarray(whole))),
        scale=scale,
        pattern=pattern,
    )


def beyond_rounding(a: Array, b: Array, accuracy: Accuracy = Accuracy.REASSOCIATES) -> Array:
    """Return which elements differ by more than the accuracy class allows without a measured rounding error."""
    if not is_float(a.dtype):
        return np.asarray(a != b)
    scale = float_difference(a, b).scale
    one, other = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        far = np.abs(one - other) > limit(a.dtype, accuracy).rtol * (np.abs(one) + scale)
    return np.asarray(far | (np.isnan(one) != np.isnan(other)) | (np.isinf(one) != np.isinf(other)))


def as_parts(array: Array) -> Array:
    """Return real arrays unchanged, and complex ones as real and imaginary parts along a new last axis."""
    return np.stack([np.real(array), np.imag(array)], axis=-1) if array.dtype.kind == "c" else array


def median(values: Array) -> float:
    """Return the median, or 0 without values. The mean of two float32 of a mask near the largest one would overflow."""
    if not values.size:
        return 0.0
    low, high = (values.size - 1) // 2, values.size // 2
    middle = np.partition(values, (low, high), axis=None)
    return 0.5 * float(middle[low]) + 0.5 * float(middle[high])


def _mean_square(values: Array) -> float:
    return float(np.mean(np.square(values)))


def ratio(error: Array, size: Array) -> Array:
    """Return error / size, where 0 / 0 is 0 and x / 0 is infinite."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(error == 0, 0.0, error / size)


def _pattern(a: Array, b: Array) -> str | None:
    new_nan = int(np.count_nonzero(np.isnan(b) & ~np.isnan(a)))
    if new_nan:
        return f"NaN in {new_nan} of {a.size} elements where the reference has none"
    lost_nan = int(np.count_nonzero(np.isnan(a) & ~np.isnan(b)))
    if lost_nan:
        return f"no NaN in {lost_nan} of {a.size} elements where the reference has NaN"
    infinite = np.isinf(a) | np.isinf(b)
    moved = int(np.count_nonzero(a[infinite] != b[infinite]))
    return f"infinities differ in {moved} of {a.size} elements" if moved else None


def ulp_distance(a: Array, b: Array) -> Array:
    """Return elementwise how many representable numbers the values are apart; +0 and -0 are the same number."""
    return np.abs(np.subtract(_ordinals(a), _ordinals(b), dtype=np.float64))


def _ordinals(array: Array) -> Array:
    """Number the representable values in order, with zero at 0: the sign and magnitude bits read as a signed count."""
    word = np.dtype(f"i{array.dtype.itemsize}")
    bits = np.ascontiguousarray(array).reshape(-1).view(word)
    return np.where(bits < 0, np.iinfo(word).min - bits, bits)
