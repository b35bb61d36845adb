"""Tensors of real numbers: what they are equal to by residues, and how they compare by doubles.

A value is a pair. Its residues decide equality and know nothing of order. Its double is close to it and decides order,
which whole number is next to it, and where it is infinite or not a number; residues of such elements mean nothing.

Functions without an algebraic definition (exp, erf, tanh) are random functions of the residues: equal arguments give
equal values, and nothing else is known. Comparisons are done in one of three ways. By a random order (`Order.RANDOM`)
the doubles are not asked: two computations that agree then agree for any values. By random signs of differences
(`Order.SIGNS`), which are those of all positive multiples, they agree for any values too, if they do not take a
constant for one of the other sign. By the order of the doubles (`Order.TRUE`), they agree for values in the order that
was tried.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from sardonyx.ir.exact import residues
from sardonyx.ir.exact.residues import Packed

_PI = residues.random_function(np.array(0x3243F6A8885A308D), 0)  # any number that no fraction equals would do


def recognized(number: float, bits: int) -> Packed | None:
    """Return the residues of the real number that a literal with so many bits of precision is the rounding of.

    Return None if it is none of a/b, √(a/b), ⁴√(a/b), 2/π and √(2/π). Only a correctly rounded number is recognized: it
    is off by half a unit in the last place at most. This never makes two different literals equal by itself, since the
    same rule reads both sides of a rewrite.
    """
    size = abs(number)
    most = 1 << (bits // 2 + 1)  # numerator times denominator: few fractions, so that no literal is near one by chance
    if not 1e-4 < size < 1e4:
        return None
    forms = [
        (Fraction(size**power).limit_denominator(max(1, math.isqrt(int(most / size**power)))), 1.0, power)
        for power in (1, 2, 4)
    ]
    for ratio, divisor, power in (*forms, (Fraction(2), math.pi, 1), (Fraction(2), math.pi, 2)):
        real, roots = float(ratio) / divisor, power.bit_length() - 1
        for _ in range(roots):
            real = math.sqrt(real)
        fraction, exponent = math.frexp(real)
        rounded = math.ldexp(round(math.ldexp(fraction, bits)), exponent - bits)
        if rounded != size or ratio.numerator * ratio.denominator > most:
            continue
        packed = np.array(residues.of_ratio(ratio.numerator, ratio.denominator))
        packed = packed if divisor == 1 else residues.multiply(packed, residues.inverse(_PI))
        for _ in range(roots):
            packed = residues.root(packed)
        return packed if number > 0 else residues.negative(packed)
    return None


Doubles = npt.NDArray[np.float64]
_BITS: dict[int, int] = {
    TensorProto.FLOAT: 24,
    TensorProto.FLOAT16: 11,
    TensorProto.BFLOAT16: 8,
    TensorProto.DOUBLE: 53,
}
_WHOLE_TOLERANCE = 1e-9  # relative distance within which a double is the whole number next to it

_ODD = {"Asin", "Asinh", "Atan", "Atanh", "Erf", "Sin", "Sinh", "Tan", "Tanh"}
_ONE_AT_ZERO = {"Cos", "Cosh", "Exp"}
_ZERO_AT_ONE = {"Acosh", "Log"}


def _erf(x: Doubles) -> Doubles:
    """Return erf to 1.5e-7 (Abramowitz and Stegun 7.1.26), which is close enough for an order."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(x) * (1 - series * np.exp(-x * x))


FUNCTIONS: dict[str, Callable[[Doubles], Doubles]] = {
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Erf": _erf,
    "Exp": np.exp,
    "Log": np.log,
    "Sigmoid": lambda x: np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))),
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Softplus": lambda x: np.logaddexp(x, 0.0),
    "Tan": np.tan,
    "Tanh": np.tanh,
}


class Undecided(Exception):
    """What an operator computes is not defined here."""


class Order(Enum):
    """What decides comparisons."""

    RANDOM = "random"
    SIGNS = "signs"  # of differences, at random, but the same for every positive multiple of a difference
    TRUE = "true"


class Real:
    """A tensor of real numbers."""

    __slots__ = ("doubles", "dtype", "residues")

    def __init__(self, packed: Packed, doubles: npt.NDArray[Any], dtype: int) -> None:
        """Hold residues and doubles of the same shape; `dtype` is the element type in ONNX."""
        self.doubles: Doubles = np.asarray(doubles, np.float64)
        finite = np.isfinite(self.doubles)
        self.residues: Packed = np.asarray(packed) if finite.all() else np.where(finite, packed, 0)
        self.dtype = dtype

    @classmethod
    def of(cls, values: npt.NDArray[Any], dtype: int) -> Real:
        """Return the real numbers that floats, integers or truth values are."""
        packed = residues.of_integers(values) if values.dtype.kind in "biu" else residues.of_floats(values)
        return cls(packed, values.astype(np.float64), dtype)

    @classmethod
    def drawn(cls, rng: np.random.Generator, shape: tuple[int, ...], dtype: int) -> Real:
        """Return a random tensor; residues and doubles are drawn apart, since each is looked at for itself."""
        return cls(residues.drawn(rng, shape), np.asarray(rng.standard_normal(shape)), dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the tensor."""
        return self.doubles.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.doubles.size

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.doubles.ndim

    def __add__(self, other: Real | float) -> Real:
        b = self.like(other)
        return Real(residues.add(self.residues, b.residues), self.doubles + b.doubles, self.dtype)

    def __sub__(self, other: Real | float) -> Real:
        b = self.like(other)
        return Real(residues.subtract(self.residues, b.residues), self.doubles - b.doubles, self.dtype)

    def __mul__(self, other: Real | float) -> Real:
        b = self.like(other)
        return Real(residues.multiply(self.residues, b.residues), self.doubles * b.doubles, self.dtype)

    def __truediv__(self, other: Real | float) -> Real:
        b = self.like(other)
        packed = residues.multiply(self.residues, residues.inverse(b.residues))
        return Real(packed, self.doubles / b.doubles, self.dtype)

    def __rsub__(self, other: float) -> Real:
        return self.like(other) - self

    def __rtruediv__(self, other: float) -> Real:
        return self.like(other) / self

    def __neg__(self) -> Real:
        return Real(residues.negative(self.residues), -self.doubles, self.dtype)

    def root(self) -> Real:
        """Return the square root."""
        return Real(residues.root(self.residues), np.sqrt(self.doubles), self.dtype)

    def total(self, axes: int | tuple[int, ...], *, keepdims: bool = False) -> Real:
        """Return the sum along axes."""
        packed = residues.total(self.residues, axes, keepdims=keepdims)
        return Real(packed, self.doubles.sum(axis=axes, keepdims=keepdims), self.dtype)

    def running_total(self, axis: int) -> Real:
        """Return the sums of all elements up to each one."""
        return Real(residues.running_total(self.residues, axis), np.cumsum(self.doubles, axis), self.dtype)

    def moved(self, move: Callable[[Any], Any]) -> Real:
        """Return the elements in other places; `move` sees residues and doubles alike."""
        return Real(move(self.residues), move(self.doubles), self.dtype)

    def typed(self, dtype: int) -> Real:
        """Return the same numbers under another element type."""
        return Real(self.residues, self.doubles, dtype)

    def like(self, other: Real | float) -> Real:
        """Return a number as a tensor of the same type, or a tensor as it is."""
        return other if isinstance(other, Real) else Real.of(np.array(other, np.float64), self.dtype)

    def differs(self, other: Real) -> npt.NDArray[np.bool_]:
        """Return where another tensor of the same shape is not equal."""
        mine, theirs = np.isfinite(self.doubles), np.isfinite(other.doubles)
        same = (self.doubles == other.doubles) | (np.isnan(self.doubles) & np.isnan(other.doubles))
        finite: npt.NDArray[np.bool_] = np.asarray(self.residues != other.residues)
        return np.where(mine & theirs, finite, ~same)


class Numbers:
    """Arithmetic on real tensors, with random functions and an order of its own."""

    def __init__(self, order: Order, seed: int, *, reads_literals: bool = False) -> None:
        """Use this order of numbers; every seed is another set of random functions.

        With `reads_literals`, a single number that is a rounded √2 or 1/6 is read as the real number.
        """
        self.order, self._seed, self._reads_literals = order, seed, reads_literals
        self.compared = False  # whether a result depended on the order of numbers
        self.operators = set[str]()  # that read or wrote real numbers
        self.most: int | None = None  # elements of a product
        self.arbitrary = _salt("arbitrary", self._seed) % (1 << 40)  # in place of an integer that is not defined

    def literal(self, number: Any, dtype: int) -> Real:
        """Return a constant of a model."""
        array = np.asarray(number)
        plain = Real.of(array, dtype)
        if array.size != 1 or not self._reads_literals:
            return plain
        packed = recognized(plain.doubles.item(), _BITS[dtype])
        return plain if packed is None else Real(packed.reshape(array.shape), plain.doubles, dtype)

    def attribute(self, number: float, dtype: int) -> Real:
        """Return an attribute, which is a float, as a number of a type."""
        return self.literal(np.float32(number), TensorProto.FLOAT).typed(dtype)

    def power(self, a: Real, exponent: Real) -> Real:
        """Return a to a power: a product for whole powers, a root for halves, otherwise a random function."""
        doubles = np.power(a.doubles, exponent.doubles)
        halves = exponent.doubles.reshape(-1) * 2
        if halves.size and abs(halves[0]) < 256 and halves[0] == np.round(halves[0]) and (halves == halves[0]).all():
            half = int(halves[0])
            base = a.residues if half % 2 == 0 else residues.root(a.residues)
            packed = np.broadcast_to(residues.power(base, half // 2 if half % 2 == 0 else half), doubles.shape)
            return Real(packed, doubles, a.dtype)
        both = residues.add(a.residues, residues.random_function(exponent.residues, _salt("exponent", self._seed)))
        return Real(residues.random_function(both, _salt("Pow", self._seed)), doubles, a.dtype)

    def apply(self, name: str, a: Real) -> Real:
        """Return a function without an algebraic definition."""
        doubles = FUNCTIONS[name](a.doubles)
        packed = residues.random_function(a.residues, _salt(name, self._seed))
        if name in _ODD:
            opposite = residues.random_function(residues.negative(a.residues), _salt(name, self._seed))
            packed = residues.subtract(packed, opposite)
        elif name in _ONE_AT_ZERO:
            packed = np.where(a.residues == 0, residues.of_integers(np.array(1)), packed)
        elif name in _ZERO_AT_ONE:
            packed = np.where(a.residues == residues.of_integers(np.array(1)), 0, packed)
        if name in ("Exp", "Sigmoid"):  # what is 0 in every floating-point type counts as 0
            packed = np.where(doubles == 0, 0, packed)
        return Real(packed, doubles, a.dtype)

    def whole(self, name: str, a: Real) -> Real:
        """Return the whole number below, above or next to each."""
        self.compared = True
        doubles = {"Floor": np.floor, "Ceil": np.ceil, "Round": np.round}[name](snapped(a.doubles))
        if self.order is not Order.TRUE:
            return Real(residues.random_function(a.residues, _salt(name, self._seed)), doubles, a.dtype)
        return Real.of(doubles, a.dtype)

    def matmul(self, a: Real, b: Real) -> Real:
        """Return the matrix product."""
        columns = b.shape[-1] if len(b.shape) > 1 else 1
        if self.most is not None and a.size // max(a.shape[-1], 1) * columns > self.most:
            raise Undecided("its values are too large")
        return Real(residues.matmul(a.residues, b.residues), np.matmul(a.doubles, b.doubles), a.dtype)

    def keys(self, a: Real) -> npt.NDArray[Any]:
        """Return what is compared in place of the numbers."""
        self.compared = True
        if self.order is Order.TRUE:
            return a.doubles
        keys = residues.scrambled(a.residues, _salt("order", self._seed)) >> np.uint64(12)
        return np.where(np.isfinite(a.doubles), keys.astype(np.float64), a.doubles)

    def less(self, a: Real, b: Real) -> npt.NDArray[np.bool_]:
        """Return where a < b."""
        less = np.less(self.keys(a), self.keys(b))
        if self.order is Order.SIGNS:
            finite = np.isfinite(a.doubles) & np.isfinite(b.doubles)
            signs = residues.random_signs(residues.subtract(b.residues, a.residues), self._seed)
            less = np.where(finite, signs, less)
        return np.asarray(less & ~self.equal(a, b))

    def equal(self, a: Real, b: Real) -> npt.NDArray[np.bool_]:
        """Return where a = b."""
        finite = np.isfinite(a.doubles) & np.isfinite(b.doubles)
        same: npt.NDArray[np.bool_] = np.asarray(a.residues == b.residues)
        return np.where(finite, same, a.doubles == b.doubles)

    def largest(self, a: Real, b: Real) -> Real:
        """Return the larger one of each pair."""
        return chosen(~(self.less(a, b) | np.isnan(b.doubles)) | np.isnan(a.doubles), a, b)

    def smallest(self, a: Real, b: Real) -> Real:
        """Return the smaller one of each pair."""
        return chosen(~(self.less(b, a) | np.isnan(b.doubles)) | np.isnan(a.doubles), a, b)


@functools.lru_cache(1024)
def _salt(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{name} {seed}".encode()).digest()[:8], "little")


def snapped(doubles: Doubles) -> Doubles:
    """Return whole numbers in place of doubles that are next to one: these were rounded on the way."""
    near = np.round(doubles)
    return np.where(np.abs(doubles - near) <= _WHOLE_TOLERANCE * np.maximum(np.abs(near), 1), near, doubles)


def chosen(condition: npt.NDArray[np.bool_], a: Real, b: Real) -> Real:
    """Return the elements of a where a condition holds, otherwise of b."""
    packed = np.where(condition, a.residues, b.residues)
    return Real(packed, np.where(condition, a.doubles, b.doubles), a.dtype)


def joined(parts: Sequence[Real], axis: int) -> Real:
    """Return tensors one after another along an axis."""
    packed = np.concatenate([part.residues for part in parts], axis)
    return Real(packed, np.concatenate([part.doubles for part in parts], axis), parts[0].dtype)
