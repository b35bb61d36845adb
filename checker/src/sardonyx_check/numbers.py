"""Real numbers without rounding: residues modulo a random prime, beside doubles.

Equality is decided by the residues, order by the doubles. Two different rational functions of degree d agree at a
random point with a probability of at most d / prime. A function that is not rational (exp, erf, sin) is a random
function of the residue: nothing is known of it but that equal arguments give equal values, and some symmetries.

If numbers are *free*, the order of those that depend on inputs or weights is random too: what is equal then is equal
for all values, whatever their order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Operand = Any  # Real, or a Python number
_EXACT = 1 << 9  # products of residues that a double adds without rounding: 2**(22 + 22 + 9) is 2**53
_LOWEST = float(np.finfo(np.float32).min)
_BITS = 12  # of an index into a table of random residues
_SMALL = (2, 3, 5, 7, 11, 13)  # squares modulo every prime that is used, as they are in the real numbers
_UNDEFINED, _INFINITE = 12345, 67890  # residues in place of NaN and infinity
STORED, ANY_CONSTANT, INPUT = 2, 1, 0  # depends on constants as stored, on constants that may be any, on inputs
UNITS = {1: 2.0**-23, 10: 2.0**-10, 11: 2.0**-52, 16: 2.0**-7}  # in the last place, by ONNX type, relative to 1


class Undecided(Exception):
    """Exact arithmetic cannot tell."""


def _elementwise(function: Callable[[Array, Array], Array]) -> Callable[[Real, Operand], Real]:
    """Return a method that applies a function to residues and to doubles."""

    def method(a: Real, other: Operand) -> Real:
        b = a.n.number(other)
        return a.n.real(function(a.m, b.m), function(a.f, b.f), a, b)

    return method


@dataclass(eq=False)
class Real:
    """Real numbers: residues, doubles, the ONNX type, and what they depend on."""

    n: Numbers
    m: Array
    f: Array
    type: int = 0  # 0 is that of the other operand
    known: int = STORED

    def __post_init__(self) -> None:
        self.shape, self.rank = self.f.shape, self.f.ndim

    def map(self, move: Callable[[Array], Array]) -> Real:
        """Move elements."""
        return Real(self.n, move(self.m), move(self.f), self.type, self.known)

    __add__ = __radd__ = _elementwise(np.add)
    __sub__ = _elementwise(np.subtract)
    __mul__ = __rmul__ = _elementwise(np.multiply)

    def __truediv__(self, other: Operand) -> Real:
        b = self.n.number(other)
        return self.n.real(self.m * self.n.inverse(b.m), self.f / b.f, self, b)

    def __rtruediv__(self, other: float) -> Real:
        return self.n.number(other) / self

    def __matmul__(self, other: Real) -> Real:
        """Return the matrix product, exact in double precision.

        If numbers are free, the doubles of what depends on inputs only tell infinities; any others take less time.
        """
        p, rows = self.n.p, self.shape[:-1]
        a, b = (self.m.reshape(-1, self.shape[-1]) if other.rank == 2 else self.m), other.m
        total: Any = 0
        for start in range(0, max(a.shape[-1], 1), _EXACT):
            left = a[..., start : start + _EXACT].astype(np.float64)
            right = b[start : start + _EXACT] if b.ndim == 1 else b[..., start : start + _EXACT, :]
            total = total + np.asarray(np.matmul(left, right.astype(np.float64))).astype(np.int64) % p
        m, known = np.asarray(total), min(self.known, other.known)
        m = m.reshape(*rows, m.shape[-1]) if other.rank == 2 else m
        if self.n.free and known == INPUT and np.isfinite(self.f).all() and np.isfinite(other.f).all():
            return Real(self.n, m % p, m % p / p + 0.5, self.type, known)  # positive, so that roots exist
        return self.n.real(m, np.asarray(np.matmul(self.f, other.f)), self, other)

    def sum(self, axes: tuple[int, ...]) -> Real:
        """Return sums over axes, which stay."""
        return self.n.real(self.m.sum(axes, keepdims=True), self.f.sum(axes, keepdims=True), self)

    def mean(self, axes: tuple[int, ...]) -> Real:
        """Return means over axes, which stay."""
        return self.sum(axes) / math.prod(self.shape[a] for a in axes)


def primes(seed: int) -> Iterator[int]:
    """Yield random primes of 22 bits, modulo which -1 is no square and small numbers are."""
    rng = np.random.default_rng(seed)
    while True:
        p = int(rng.integers(1 << 21, 1 << 22)) | 7  # 7 modulo 8: 2 is a square and -1 is not
        is_prime = all(p % divisor for divisor in range(3, 1 << 11, 2))
        if is_prime and all(pow(q, (p - 1) // 2, p) == 1 for q in _SMALL):
            yield p


class Numbers:
    """Arithmetic modulo one random prime, with random functions of one seed."""

    def __init__(self, seed: int, *, free: bool) -> None:
        self.p, self.seed, self.free = next(primes(seed)), seed, free
        self.decisions = 0  # comparisons of numbers that depend on inputs or weights
        rng = np.random.default_rng((seed, 7))
        self._table = rng.integers(1, self.p, (2, 1 << _BITS))
        self._inverses = self.inverse(self._table)
        powers = itertools.accumulate(range(2400), lambda power, _: power * 2 % self.p, initial=pow(2, -1200, self.p))
        self._powers = np.array(list(powers), np.int64)
        over_pi = 2 * pow(int(rng.integers(1, self.p)), 2, self.p) % self.p  # 2/pi may be any square
        root = int(self.root(np.array(over_pi)))
        self._reals = (over_pi, 2 / math.pi), (root, math.sqrt(2 / math.pi)), (pow(6, -1, self.p), 1 / 6)

    # Values

    def real(self, m: Array, f: Array | float, *operands: Real, type: int = 0, known: int = STORED) -> Real:
        """Return what was computed from operands; infinities and NaN have residues of their own."""
        m, f = np.asarray(m) % self.p, np.asarray(f)
        finite = np.isfinite(f)
        if not finite.all():
            other = np.where(np.isnan(f), _UNDEFINED, np.where(f > 0, _INFINITE, self.p - _INFINITE))
            m = np.where(finite, m, other)
        type = next((x.type for x in operands if x.type), type)
        return Real(self, m, f, type, min((x.known for x in operands), default=known))

    def stored(self, array: Array, type: int = 1, known: int = STORED) -> Real:
        """Return floats as exact numbers; a single one may stand for a known real number."""
        f = np.asarray(array).astype(np.float64)
        if f.size == 1 and type in UNITS and (read := self._literal(f.item(), type)):
            return Real(self, np.full(f.shape, read[0], np.int64), np.full(f.shape, read[1]), type, known)
        return self.real(self.residues(f), f, type=type, known=known)

    def literal(self, value: float, type: int = 0) -> Real:
        """Return an attribute: a number of single precision."""
        return replace(self.stored(np.array(np.float32(value))), type=type)

    def residues(self, f: Array) -> Array:
        """Return doubles as residues: a double is an integer times a power of two."""
        mantissa, exponent = np.frexp(np.where(np.isfinite(f), f, 0.0))
        whole = np.ldexp(mantissa, 53).astype(np.int64)
        return whole % self.p * self._powers[exponent + (1200 - 53)] % self.p

    def integers(self, array: Array, type: int = 1) -> Real:
        """Return integers or truth values as real numbers."""
        m = array % np.uint64(self.p) if array.dtype == np.uint64 else array.astype(np.int64) % self.p
        return Real(self, m.astype(np.int64), array.astype(np.float64), type)

    def number(self, value: Operand) -> Real:
        """Return a Python number as it is; a real number stays one."""
        return value if isinstance(value, Real) else self.real(self.residues(np.array(float(value))), float(value))

    def random(self, f: Array, type: int, key: str, known: int) -> Real:
        """Return any real numbers, whose order is that of these doubles."""
        rng = np.random.Generator(np.random.SFC64((self.seed, _number_of(key))))
        return Real(self, rng.integers(1, self.p, f.shape), f, type, known)

    def _literal(self, value: float, type: int) -> tuple[int, float] | None:
        """Return the real number that a literal is the rounding of: a root of n or 1/n, 2/pi or its root, or 1/6.

        Only roots of products of small primes are read, as in scales of attention. The two lowest floats, which hide
        positions from attention, are read as one number.
        """
        if type == 1 and _LOWEST <= value <= _LOWEST * (1 - 2.0**-23):
            return int(self.residues(np.array(_LOWEST))), _LOWEST
        size, unit = abs(value), abs(value) * UNITS[type]
        if not 1e-4 < size < 1e4 or size == round(size):
            return None
        found = next(((m, f) for m, f in self._reals if abs(f - size) <= unit), None)
        for power in (-4, -2, 2, 4):
            n = round(size**power) if 0.4 < size**power < 1e5 else 0
            if n > 1 and abs(n ** (1 / power) - size) <= unit and math.isqrt(n) ** 2 != n and _is_smooth(n):
                root = self.root(np.array(n))
                root = self.root(root) if abs(power) == 4 else root
                found = int(root if power > 0 else self.inverse(root)), n ** (1 / power)
        if found is None:
            return None
        return (found[0] if value > 0 else self.p - found[0]), math.copysign(found[1], value)

    # Residues

    def inverse(self, m: Array) -> Array:
        """Return 1/m; of 0 it is 0. Pairs are inverted together, so that one power serves all elements."""
        if m.size <= 8:
            return self.power(m, self.p - 2)
        flat = np.where(m == 0, 1, m).reshape(-1)
        half = (flat.size + 1) // 2
        a, b = flat[:half], np.concatenate([flat[half:], np.ones(2 * half - flat.size, np.int64)])
        ab = self.inverse(a * b % self.p)
        both = np.concatenate([ab * b % self.p, ab * a % self.p])[: flat.size].reshape(m.shape)
        return np.where(m == 0, 0, both)

    def power(self, m: Array, exponent: int) -> Array:
        """Return m to an integer power that is not negative."""
        result, square = np.ones_like(m), m
        while exponent:
            if exponent & 1:
                result = result * square % self.p
            square, exponent = square * square % self.p, exponent >> 1
        return result

    def root(self, m: Array) -> Array:
        """Return the square root that is a square itself, which makes it multiplicative."""
        return self.power(m, (self.p + 1) // 4)

    # Other functions

    def hash(self, name: str, *arguments: Array) -> Array:
        """Return random numbers of 32 bits that depend on a name and on residues."""
        mixed: Any = np.uint64((_number_of(name) * 0x9E3779B97F4A7C15 + self.seed) % (1 << 64))
        for each in arguments:
            mixed = (mixed ^ each.astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(32))
        return (mixed >> np.uint64(16)).astype(np.int64) & 0xFFFFFFFF

    def function(self, name: str, f: Array, *arguments: Real, symmetry: str = "") -> Real:
        """Return a random function; `odd`, `even`, or `reciprocal` where f(-x) is -f(x), f(x), 1/f(x)."""
        ms = np.broadcast_arrays(*(x.m for x in arguments))
        size = np.minimum(ms[0], self.p - ms[0]) if symmetry else ms[0]
        h = self.hash(name, size, *ms[1:])
        high, low = h >> _BITS & ((1 << _BITS) - 1), h & ((1 << _BITS) - 1)
        m = self._table[0][high] * self._table[1][low] % self.p
        negative, zero = size != ms[0], ms[0] == 0
        if symmetry == "odd":
            m = np.where(zero, 0, np.where(negative, self.p - m, m))
        if symmetry == "reciprocal":
            inverse = self._inverses[0][high] * self._inverses[1][low] % self.p
            m = np.where(zero, 1, np.where(negative, inverse, m))
        return self.real(m, f, *arguments)

    def exp(self, x: Real) -> Real:
        """Return the exponential; it is zero at minus infinity."""
        result = self.function("exp", np.exp(np.minimum(x.f, 700.0)), x, symmetry="reciprocal")
        result.m = np.where(np.isneginf(x.f), 0, result.m)
        return result

    def sqrt(self, x: Real) -> Real:
        return self.real(self.root(x.m), np.sqrt(x.f), x)

    # Order

    def less(self, a: Operand, b: Operand) -> Array:
        """Return a < b: as the doubles are, or if numbers are free a random function of b - a that changes sign."""
        a, b = self.number(a), self.number(b)
        by_doubles = a.f < b.f
        if min(a.known, b.known) == STORED:
            return by_doubles
        self.decisions += by_doubles.size
        if not self.free:
            return by_doubles
        difference = (b.m - a.m) % self.p
        size = np.minimum(difference, self.p - difference)
        drawn = (self.hash("order", size) & 1) != (size != difference)
        return np.where(np.isfinite(a.f) & np.isfinite(b.f), drawn & (difference != 0), by_doubles)

    def row_order(self, x: Real, axes: tuple[int, ...]) -> Array:
        """Return the order within rows; if numbers are free, it does not change if a number is added to the row."""
        if not self.free or x.known == STORED:
            return x.f
        finite = np.isfinite(x.f)
        count = finite.sum(axes, keepdims=True)
        mean = np.where(finite, x.m, 0).sum(axes, keepdims=True) % self.p * self.inverse(count % self.p) % self.p
        return np.where(finite, self.hash("order in rows", (x.m - mean) % self.p).astype(np.float64), x.f)

    def where(self, condition: Array, a: Operand, b: Operand) -> Real:
        a, b = self.number(a), self.number(b)
        return self.real(np.where(condition, a.m, b.m), np.where(condition, a.f, b.f), a, b)

    def larger(self, a: Operand, b: Operand) -> Real:
        return self.where(self.less(a, b), b, a)

    def largest(self, x: Real, axes: tuple[int, ...]) -> Real:
        """Return the largest elements over axes, which stay."""
        rest = [a for a in range(x.rank) if a not in axes]
        flat = x.map(lambda a: a.transpose([*rest, *axes]).reshape([*(a.shape[k] for k in rest), -1]))
        if not flat.shape[-1]:
            raise Undecided("the largest of no elements")
        place = np.argmax(self.row_order(flat, (flat.rank - 1,)), -1)[..., None]
        shape = [1 if k in axes else size for k, size in enumerate(x.shape)]
        return flat.map(lambda a: np.take_along_axis(a, place, -1).reshape(shape))


def _number_of(name: str) -> int:
    return int.from_bytes(name.encode(), "little") % ((1 << 61) - 1)


def _is_smooth(n: int) -> bool:
    """Return whether a number is a product of small primes."""
    for q in _SMALL:
        while n % q == 0:
            n //= q
    return n == 1
