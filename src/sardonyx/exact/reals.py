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

from sardonyx.exact import residues
from sardonyx.exact.residues import Packed

# Recognize a rounded literal as the real number it stands for: √2, 1/√2, 2/π, √(2/π), 1/6, 1/√d.
#
# A number is recognized only if it is that real number correctly rounded to its type, so the distance is at most half a
# unit in the last place. Reading literals in this way never makes two different literals equal by itself: the same rule
# reads both sides of a rewrite.

_PI = 0x3243F6A8885A308D  # any number that no fraction equals would do


def recognized(number: float, bits: int) -> Packed | None:
    """Return the residues of the real number that a literal with so many bits of precision is the rounding of.

    Return None if it is none of the known forms, or that number itself.
    """
    size = abs(number)
    most = 1 << (bits // 2 + 1)  # numerator times denominator: few fractions, so that no literal is near one by chance
    if not math.isfinite(number) or not 1e-4 < size < 1e4:
        return None
    for power in (1, 2, 4):
        near = Fraction(size**power).limit_denominator(max(1, math.isqrt(int(most / size**power))))
        if 0 < near.numerator * near.denominator <= most and _rounds_to(_root(near, power), size, bits):
            packed = _of(near)
            for _ in range(power.bit_length() - 1):
                packed = residues.root(packed)
            return _signed(packed, number)
    pi = residues.random_function(np.array(_PI % (1 << 62)), 0)
    ratio = residues.multiply(_of(Fraction(2)), residues.inverse(pi))
    for real, packed in ((2 / math.pi, ratio), (math.sqrt(2 / math.pi), residues.root(ratio))):
        if _rounds_to(real, size, bits):
            return _signed(packed, number)
    return None


def _root(number: Fraction, power: int) -> float:
    value = float(number)
    return value if power == 1 else math.sqrt(value) if power == 2 else math.sqrt(math.sqrt(value))


def _rounds_to(real: float, literal: float, bits: int) -> bool:
    """Return whether a real number, known to 53 bits, is a literal after rounding; a literal that is exact is not."""
    fraction, exponent = math.frexp(real)
    rounded = math.ldexp(round(math.ldexp(fraction, bits)), exponent - bits)
    return rounded == literal


def _of(number: Fraction) -> Packed:
    top, bottom = (residues.of_integers(np.array(part)) for part in (number.numerator, number.denominator))
    return residues.multiply(top, residues.inverse(bottom))


def _signed(packed: Packed, number: float) -> Packed:
    return packed if number > 0 else residues.subtract(np.zeros_like(packed), packed)


Doubles = npt.NDArray[np.float64]
_PRECISIONS: dict[int, int] = {
    TensorProto.FLOAT: 24,
    TensorProto.FLOAT16: 11,
    TensorProto.BFLOAT16: 8,
    TensorProto.DOUBLE: 53,
}  # bits
_NEAR = 1e-9  # relative distance within which a double is the whole number next to it

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

    def __init__(self, packed: Packed, doubles: Doubles, dtype: int) -> None:
        """Hold residues and doubles of the same shape; `dtype` is the element type in ONNX."""
        finite = np.isfinite(doubles)
        self.residues = packed if finite.all() else np.where(finite, packed, 0)
        self.doubles = doubles
        self.dtype = dtype

    @classmethod
    def of(cls, values: npt.NDArray[Any], dtype: int) -> Real:
        """Return the real numbers that floats, integers or truth values are."""
        if values.dtype.kind in "biu":
            return cls(residues.of_integers(values), values.astype(np.float64), dtype)
        return cls(residues.of_floats(values), values.astype(np.float64), dtype)

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

    def moved(self, move: Callable[[Any], Any]) -> Real:
        """Return the elements in other places; `move` sees residues and doubles alike."""
        return Real(np.asarray(move(self.residues)), np.asarray(move(self.doubles)), self.dtype)

    def typed(self, dtype: int) -> Real:
        """Return the same numbers under another element type."""
        return Real(self.residues, self.doubles, dtype)

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
        self.arbitrary = self._salt("arbitrary") % (1 << 40)  # in place of an integer that is not defined

    def literal(self, number: Any, dtype: int) -> Real:
        """Return a constant of a model."""
        array = np.asarray(number)
        plain = Real.of(array, dtype)
        if array.size != 1 or not self._reads_literals:
            return plain
        packed = recognized(plain.doubles.item(), _PRECISIONS[dtype])
        return plain if packed is None else Real(packed.reshape(array.shape), plain.doubles, dtype)

    def attribute(self, number: float, dtype: int) -> Real:
        """Return an attribute, which is a float, as a number of a type."""
        return self.literal(np.float32(number), TensorProto.FLOAT).typed(dtype)

    def add(self, a: Real, b: Real) -> Real:
        """Return a + b."""
        return self._made(residues.add(a.residues, b.residues), a.doubles + b.doubles, a)

    def subtract(self, a: Real, b: Real) -> Real:
        """Return a - b."""
        return self._made(residues.subtract(a.residues, b.residues), a.doubles - b.doubles, a)

    def multiply(self, a: Real, b: Real) -> Real:
        """Return a · b."""
        return self._made(residues.multiply(a.residues, b.residues), a.doubles * b.doubles, a)

    def divide(self, a: Real, b: Real) -> Real:
        """Return a / b."""
        return self._made(residues.multiply(a.residues, residues.inverse(b.residues)), a.doubles / b.doubles, a)

    def negative(self, a: Real) -> Real:
        """Return -a."""
        return self._made(residues.subtract(np.zeros_like(a.residues), a.residues), -a.doubles, a)

    def root(self, a: Real) -> Real:
        """Return the square root."""
        return self._made(residues.root(a.residues), np.sqrt(a.doubles), a)

    def power(self, a: Real, exponent: Real) -> Real:
        """Return a to a power: a product for whole powers, a root for halves, otherwise a random function."""
        doubles = np.power(a.doubles, exponent.doubles)
        halves = exponent.doubles.reshape(-1) * 2
        if halves.size and abs(halves[0]) < 256 and halves[0] == np.round(halves[0]) and (halves == halves[0]).all():
            half = int(halves[0])
            base = a.residues if half % 2 == 0 else residues.root(a.residues)
            packed = np.broadcast_to(residues.power(base, half // 2 if half % 2 == 0 else half), doubles.shape)
            return self._made(packed, doubles, a)
        both = residues.add(a.residues, residues.random_function(exponent.residues, self._salt("exponent")))
        return self._made(residues.random_function(both, self._salt("Pow")), doubles, a)

    def apply(self, name: str, a: Real) -> Real:
        """Return a function without an algebraic definition."""
        doubles = FUNCTIONS[name](a.doubles)
        packed = residues.random_function(a.residues, self._salt(name))
        if name in _ODD:
            opposite = residues.subtract(np.zeros_like(a.residues), a.residues)
            packed = residues.subtract(packed, residues.random_function(opposite, self._salt(name)))
        elif name in _ONE_AT_ZERO:
            packed = np.where(a.residues == 0, residues.of_integers(np.array(1)), packed)
        elif name in _ZERO_AT_ONE:
            packed = np.where(a.residues == residues.of_integers(np.array(1)), 0, packed)
        if name in ("Exp", "Sigmoid"):  # what is 0 in every floating-point type counts as 0
            packed = np.where(doubles == 0, 0, packed)
        return self._made(packed, doubles, a)

    def whole(self, name: str, a: Real) -> Real:
        """Return the whole number below, above or next to each."""
        self.compared = True
        doubles = {"Floor": np.floor, "Ceil": np.ceil, "Round": np.round}[name](snapped(a.doubles))
        if self.order is not Order.TRUE:
            return self._made(residues.random_function(a.residues, self._salt(name)), doubles, a)
        return Real.of(doubles, a.dtype)

    def total(self, a: Real, axes: tuple[int, ...], *, keepdims: bool) -> Real:
        """Return the sum along axes."""
        return self._made(
            residues.total(a.residues, axes, keepdims=keepdims), a.doubles.sum(axis=axes, keepdims=keepdims), a
        )

    def product(self, a: Real, axis: int) -> Real:
        """Return the product along one axis, which is kept."""
        result = Real.of(np.ones([1 if index == axis else size for index, size in enumerate(a.shape)]), a.dtype)
        for index in range(a.shape[axis]):
            result = self.multiply(result, a.moved(lambda x, index=index: np.take(x, [index], axis)))
        return result

    def running_total(self, a: Real, axis: int) -> Real:
        """Return the sums of all elements up to each one."""
        return self._made(residues.running_total(a.residues, axis), np.cumsum(a.doubles, axis), a)

    def matmul(self, a: Real, b: Real) -> Real:
        """Return the matrix product."""
        columns = b.shape[-1] if len(b.shape) > 1 else 1
        if self.most is not None and a.size // max(a.shape[-1], 1) * columns > self.most:
            raise Undecided("its values are too large")
        return self._made(residues.matmul(a.residues, b.residues), np.matmul(a.doubles, b.doubles), a)

    def keys(self, a: Real) -> npt.NDArray[Any]:
        """Return what is compared in place of the numbers."""
        self.compared = True
        if self.order is Order.TRUE:
            return a.doubles
        keys = residues.scrambled(a.residues, self._salt("order")) >> np.uint64(12)
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

    def _made(self, packed: Packed, doubles: Any, like: Real) -> Real:
        return Real(packed, np.asarray(doubles, np.float64), like.dtype)

    def _salt(self, name: str) -> int:
        return _salt(name, self._seed)


@functools.lru_cache(1024)
def _salt(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{name} {seed}".encode()).digest()[:8], "little")


def snapped(doubles: Doubles) -> Doubles:
    """Return whole numbers in place of doubles that are next to one: these were rounded on the way."""
    near = np.round(doubles)
    return np.where(np.abs(doubles - near) <= _NEAR * np.maximum(np.abs(near), 1), near, doubles)


def chosen(condition: npt.NDArray[np.bool_], a: Real, b: Real) -> Real:
    """Return the elements of a where a condition holds, otherwise of b."""
    packed = np.where(condition, a.residues, b.residues)
    return Real(packed, np.where(condition, a.doubles, b.doubles), a.dtype)


def joined(parts: Sequence[Real], axis: int) -> Real:
    """Return tensors one after another along an axis."""
    packed = np.concatenate([part.residues for part in parts], axis)
    return Real(packed, np.concatenate([part.doubles for part in parts], axis), parts[0].dtype)
