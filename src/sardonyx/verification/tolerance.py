"""The tolerance of an output by its type and accuracy class, and whether a difference is more than rounding explains.

For reference a, result b, e = |a - b|, the spacing eps of the output's type at 1, and s = median of the non-zero |a|:

    class          types                       e ≤ rtol · (|a| + s)      rms(e) ≤ rms · rms(a)
    exact          all                         rtol = 0                  rms = 0
    reassociates   float32, float64            rtol = 64 eps             rms = 8 eps
    reassociates   float16, bfloat16, float8   rtol = 4 eps              rms = 1 eps
    approximates   all                         rtol = max(above, 0.02)   rms = max(above, 0.001)

The measurements behind the numbers are in `docs/decisions/0002-tolerances.md`.

One tolerance for a whole output would let its noisiest part excuse the rest. Each element is therefore compared with
the scale and the rounding error of its own slices S: along every axis alone, the row, and the plane of a channel. For
reference a, result b, error e = |a - b|, the limits `rtol` and `rms` of the type and the measured rounding error m of
each element (0 if not measured), all four rules must hold:

    scale       s = min(median|a|, min over slices S of an element of mean_S|a|)
    elements    e ≤ max(rtol · (|a| + s), 4 · min over S of max_S m)
    whole       rms(e) ≤ max(rms · rms(a), 4 · rms(m))
    slices      rms_S(e) ≤ max(4 · rms · rms_S(|a| + s), 4 · rms_S(m)) for every slice S of at least 8 elements
    share       at most 20 % of all elements, and half of every slice, have e > rtol · |a|; with measured rounding at
                most 30 %, and half of every slice, have e > max(rtol · |a|, 4 · m), of slices of fewer than 16
                elements e > max(rtol · |a|, 40 · m)

Outputs of class "approximates" are compared as a whole only: s = median|a|, without the rules on slices and share.

The measurements behind the factors are in `docs/decisions/0002-tolerances.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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


ROUNDING_FACTOR = 4.0  # allowed error, as a multiple of a measured rounding error: other roundings differ by chance
SLICE_FACTOR = 4.0  # the mean error of a slice scatters more than that of the whole tensor
_MIN_SLICE_ELEMENTS = 8  # elements; smaller slices give no reliable scale
_SHARE_BEYOND_OWN_SIZE = 0.2  # of elements beyond rtol · |a|: cancellation always leaves some near zero
_SHARE_BEYOND_ROUNDING = 0.3  # equal rounding errors leave 22 % of elements beyond four times a single measurement
_MIN_MEASURED_ELEMENTS = 16  # elements of a slice; half of fewer are often beyond the limit by chance
_FAR = 10.0  # times the limit: what half of a small slice exceeds is no chance
_ALLOWED_ELEMENTS = 2  # so many elements are never too large a share


class Place(Struct, frozen=True):
    """The element with the largest ratio of its error to its limit."""

    error: float
    allowed: float
    index: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """The error divided by the allowed error."""
        return 0.0 if self.error == 0 else self.error / self.allowed if self.allowed else math.inf


class _Squares(Struct, frozen=True, eq=False):
    """The squares of numbers over that of the largest one: squares of numbers near the largest float would overflow."""

    peak: float
    scaled: Array

    @classmethod
    def of(cls, values: Array) -> _Squares:
        """Compute them once for the means over all slices."""
        peak = float(values.max(initial=0.0)) or 1.0
        return cls(peak, np.square(values / peak))


class Deviation:
    """Two float tensors of one shape, compared element by element; elements not finite in either are left out."""

    def __init__(self, reference: Array, result: Array, allowed: Limit, *, local: bool = True) -> None:
        """Compare within `allowed`; without `local`, only the scale of the whole tensor is used, not of slices."""
        a, b = _working(reference), _working(result)
        self._finite = np.isfinite(a) & np.isfinite(b)
        self._error = gap(reference, result)
        self._size = np.where(self._finite, np.abs(a), 0)
        self._families = list(_families(a.shape)) if local else []
        self._groups = [axes for axes in self._families if _inside(a.shape, axes) >= _MIN_SLICE_ELEMENTS]
        self._local, self._limit = local, allowed
        self._count = int(np.count_nonzero(self._finite))
        self._weights: Array | None = None if self._count == a.size else self._finite.astype(np.float32)
        self._scale = self._local_scale()
        self._base = allowed.rtol * (self._size + self._scale)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensors, in which complex numbers have a last axis of two parts."""
        return self._size.shape

    def excess(self, moves: Array | None = None) -> str | None:
        """Return the first violated rule, or None if all hold; `moves` is the measured rounding error."""
        if not self._count or not self._error.any():
            return None
        rules = (self._elements, self._whole, self._slices, self._share)
        return next((excess for rule in rules if (excess := rule(moves)) is not None), None)

    def worst(self, moves: Array | None = None) -> Place | None:
        """Return the element whose error is largest relative to its limit, or None if no element is finite."""
        if not self._count:
            return None
        allowed = np.broadcast_to(self._allowed(moves), self._error.shape)
        index = np.unravel_index(int(np.argmax(ratio(self._error, allowed))), self._error.shape)
        return Place(float(self._error[index]), float(allowed[index]), tuple(int(i) for i in index))

    def loud_share(self, moves: Array, part: float) -> float:
        """Return the share of elements whose limit by rounding exceeds this part of their magnitude."""
        loud = self._finite & (ROUNDING_FACTOR * moves > part * (self._size + self._scale))
        return np.count_nonzero(loud) / max(self._count, 1)

    def _local_scale(self) -> Array:
        """Return s: the median magnitude of the tensor, or the mean magnitude of a slice if that is smaller."""
        nonzero = self._size[self._size > 0]
        scale = np.full((1,) * self._size.ndim, median(nonzero))
        for axes in self._groups:
            scale = np.minimum(scale, self._mean(self._size, axes))
        return scale

    def _allowed(self, moves: Array | None) -> Array:
        if moves is None:
            return self._base
        pooled = np.full((1,) * self._size.ndim, float(moves.max()))
        for axes in self._groups:
            pooled = np.minimum(pooled, moves.max(axis=axes, keepdims=True))
        return np.maximum(self._base, ROUNDING_FACTOR * pooled)

    def _elements(self, moves: Array | None) -> str | None:
        allowed = self._allowed(moves)
        wrong = self._error > allowed
        if not wrong.any():
            return None
        ratios = ratio(self._error, allowed)
        worst = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
        count, limit = int(np.count_nonzero(wrong)), float(np.broadcast_to(allowed, wrong.shape)[worst])
        at = f"at {[int(i) for i in worst]} by {self._error[worst]:.3g}, allowed {limit:.3g}"
        text = f"differs by up to {self._error.max():.3g}, too much in {count} of {self._count} elements ({at})"
        return text

    def _whole(self, moves: Array | None) -> str | None:
        """Check the root mean square over the whole tensor."""
        every = tuple(range(self._size.ndim))
        error = float(self._rms(_Squares.of(self._error), every).max())
        allowed = self._limit.rms * float(self._rms(_Squares.of(self._size), every).max())
        if moves is not None:
            allowed = max(allowed, ROUNDING_FACTOR * float(self._rms(_Squares.of(moves), every).max()))
        return _mean_text(error, allowed) if error > allowed else None

    def _slices(self, moves: Array | None) -> str | None:
        """Check the root mean square over every slice."""
        if not self._groups:
            return None
        errors, sizes = _Squares.of(self._error), _Squares.of(self._size + self._scale)
        rounding = None if moves is None else _Squares.of(moves)
        for axes in self._groups:
            error = self._rms(errors, axes)
            allowed = SLICE_FACTOR * self._limit.rms * self._rms(sizes, axes)
            if rounding is not None:
                allowed = np.maximum(allowed, ROUNDING_FACTOR * self._rms(rounding, axes))
            ratios = ratio(error, allowed)
            place = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
            if float(ratios[place]) > 1:
                text = _mean_text(float(error[place]), float(allowed[place]))
                return f"{text} in the slice {_slice_text(place, axes)}"
        return None

    def _share(self, moves: Array | None) -> str | None:
        """Check how many elements differ by more than their own magnitude or rounding explains."""
        if not self._local:
            return None
        allowed = self._limit.rtol * self._size
        share = _SHARE_BEYOND_OWN_SIZE
        if moves is not None:
            allowed, share = np.maximum(allowed, ROUNDING_FACTOR * moves), _SHARE_BEYOND_ROUNDING
        beyond = self._error > allowed
        count = int(np.count_nonzero(beyond))
        if count <= _ALLOWED_ELEMENTS:
            return None
        text = f"{count} of {self._count} elements differ by more than their own rounding explains"
        if count > share * self._count:
            return text
        far_beyond = beyond if moves is None else self._error > np.maximum(allowed, _FAR * ROUNDING_FACTOR * moves)
        for axes in self._families:  # a slice too small to have a scale may still be wrong throughout
            few = _inside(beyond.shape, axes) < _MIN_MEASURED_ELEMENTS
            counts = np.count_nonzero(far_beyond if few else beyond, axis=axes, keepdims=True)
            place = np.unravel_index(int(np.argmax(counts)), counts.shape)
            most = max(_ALLOWED_ELEMENTS, _inside(beyond.shape, axes) / 2)
            if counts[place] > most:
                return f"{text}, in the slice {_slice_text(place, axes)}"
        return None

    def _mean(self, values: Array, axes: tuple[int, ...]) -> Array:
        if self._weights is None:
            return np.asarray(values.mean(axis=axes, keepdims=True, dtype=np.float64))
        count = self._weights.sum(axis=axes, keepdims=True, dtype=np.float64)
        total = (values * self._weights).sum(axis=axes, keepdims=True, dtype=np.float64)
        return np.asarray(total / np.maximum(count, 1.0))

    def _rms(self, values: _Squares, axes: tuple[int, ...]) -> Array:
        return values.peak * np.sqrt(self._mean(values.scaled, axes))


def _families(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the axes to reduce over for each family of slices with more than two elements and less than the tensor."""
    rank = len(shape)
    families = [tuple(axis for axis in range(rank) if axis != kept) for kept in range(rank)]
    families += [(rank - 1,), tuple(range(2, rank))] if rank else []
    for axes in dict.fromkeys(families):
        if axes and _ALLOWED_ELEMENTS < _inside(shape, axes) < math.prod(shape):
            yield axes


def _inside(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return math.prod(shape[axis] for axis in axes)


def _slice_text(place: Sequence[Any], axes: tuple[int, ...]) -> str:
    return "[" + ", ".join(":" if axis in axes else str(int(index)) for axis, index in enumerate(place)) + "]"


def gap(one: Array, other: Array) -> Array:
    """Return the distance of two tensors at each element; zero where either is not finite."""
    a, b = _working(one), _working(other)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.where(np.isfinite(a) & np.isfinite(b), np.abs(a - b), 0))


def _working(array: Array) -> Array:
    """Return the array in float64 if it is of that size, otherwise in float32, which holds all narrower types."""
    parts = as_parts(array)
    return parts.astype(np.float64 if parts.dtype.itemsize == np.dtype(np.float64).itemsize else np.float32, copy=False)


def _mean_text(error: float, allowed: float) -> str:
    return f"differs by {error:.3g} in the root mean square, allowed {allowed:.3g}"
