"""Real numbers without rounding: residues modulo a random prime, beside doubles.

Equality is decided by the residues, order by the doubles. Two different rational functions of degree d agree at a
random point with a probability of at most d / prime. A function that is not rational (exp, erf, sin) is a random
function of the residue: nothing is known of it but that equal arguments give equal values, and some symmetries.

In *opaque* mode the order of numbers that depend on inputs or weights is random too: what is equal then is equal for
all values, whatever their order.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_EXACT = 1 << 11
_LOWEST = float(np.finfo(np.float32).min)
_BITS = 12  # of an index into a table of random residues
_SMALL = (2, 3, 5, 7, 11, 13)  # squares modulo every prime that is used, as they are in the real numbers
STORED, ANY_CONSTANT, INPUT = 2, 1, 0  # on constants as stored, on constants that may be any, on inputs
_UNDEFINED, _INFINITE = 12345, 67890  # residues in place of NaN and infinity


class Unlucky(Exception):
    """A number whose root is needed has none modulo this prime; another prime is tried."""


class Undecided(Exception):
    """Exact arithmetic cannot tell."""


@dataclass
class Real:
    """Real numbers: residues, doubles, the ONNX type, and what they depend on."""

    m: Array
    f: Array
    type: int = 1
    known: int = STORED

    @property
    def shape(self) -> tuple[int, ...]:
        return self.f.shape

    @property
    def size(self) -> int:
        return self.f.size

    def map(self, move: Callable[[Array], Array]) -> Real:
        return Real(move(self.m), move(self.f), self.type, self.known)


def is_prime(n: int) -> bool:
    """Return whether a number below 2**32 is prime (Miller-Rabin with bases that suffice there)."""
    d, s = n - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    for base in (2, 3, 5, 7):
        x = pow(base, d, n)
        if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(s - 1)):
            return False
    return True


def primes(seed: int) -> Iterator[int]:
    """Yield random primes of 22 bits, modulo which -1 is no square and small numbers are."""
    rng = np.random.default_rng(seed)
    while True:
        p = int(rng.integers(1 << 21, 1 << 22)) | 7  # 7 modulo 8: 2 is a square and -1 is not
        if is_prime(p) and all(pow(q, (p - 1) // 2, p) == 1 for q in _SMALL):
            yield p


class Numbers:
    """Arithmetic modulo one prime, with random functions of one seed."""

    def __init__(self, prime: int, seed: int, *, opaque: bool, strict: bool = True) -> None:
        """If `strict`, a constant without a root modulo the prime raises Unlucky."""
        self.p, self.seed, self.opaque, self._strict = prime, seed, opaque, strict
        self.decisions = 0  # comparisons of numbers that depend on inputs or weights
        rng = np.random.default_rng((seed, 7))
        self._keys: dict[str, int] = {}
        self._table = rng.integers(1, prime, (2, 1 << _BITS))
        self._inverses = self.inverse(self._table)
        over_pi = 2 * pow(int(rng.integers(1, prime)), 2, prime) % prime  # 2/pi may be any square
        root = int(self.root(np.array(over_pi)))
        self._reals = (over_pi, 2 / math.pi), (root, math.sqrt(2 / math.pi)), (pow(6, -1, prime), 1 / 6), (1, 1.0)
        powers = itertools.accumulate(range(2400), lambda power, _: power * 2 % prime, initial=pow(2, -1200, prime))
        self._powers = np.array(list(powers), np.int64)

    # Values

    def stored(self, array: Array, type: int = 1) -> Real:
        """Return floats as exact numbers; a single one may stand for a known real number."""
        f = np.asarray(array, np.float64)
        if f.size == 1 and type in (1, 10, 11, 16) and (read := self._literal(float(f.reshape(()).item()), type)):
            return Real(np.full(f.shape, read[0], np.int64), np.full(f.shape, read[1]), type)
        return self.fixed(Real(self.residues(f), f, type))

    def residues(self, f: Array) -> Array:
        """Return doubles as residues: a double is an integer times a power of two."""
        mantissa, exponent = np.frexp(np.where(np.isfinite(f), f, 0.0))
        whole = np.ldexp(mantissa, 53).astype(np.int64)
        return whole % self.p * self._powers[exponent + (1200 - 53)] % self.p

    def integers(self, array: Array, type: int = 1) -> Real:
        """Return integers or truth values as real numbers."""
        if array.dtype == np.uint64:
            return Real((array % np.uint64(self.p)).astype(np.int64), array.astype(np.float64), type)
        return Real(array.astype(np.int64) % self.p, array.astype(np.float64), type)

    def number(self, value: float, like: Real) -> Real:
        """Return one number."""
        return Real(self.residues(np.array(value)), np.array(float(value)), like.type)

    def random(self, f: Array, type: int, key: str, known: int) -> Real:
        """Return any real numbers, whose order is that of these doubles."""
        rng = np.random.default_rng((self.seed, self.key(key)))
        return self.fixed(Real(rng.integers(1, self.p, f.shape), f, type, known))

    def _literal(self, value: float, type: int) -> tuple[int, float] | None:
        """Return the real number that a literal is the rounding of: a root of n or 1/n, 2/pi or its root, 1/6, or 1.

        The two lowest floats, which only hide positions from attention, are read as one number.
        """
        if type == 1 and _LOWEST <= value <= _LOWEST * (1 - 2.0**-23):
            return int(self.residues(np.array(_LOWEST))), _LOWEST
        unit = abs(value) * {1: 2.0**-23, 10: 2.0**-10, 16: 2.0**-7, 11: 2.0**-52}[type]
        size = abs(value)
        if not 1e-4 < size < 1e4 or size == round(size):
            return None
        found = next(((m, f) for m, f in self._reals if abs(f - size) <= unit), None)
        for power in (-4, -2, 2, 4):  # roots of integers, as in attention scales
            n = round(size**power) if 0.4 < size**power < 1e5 else 0
            if n > 1 and abs(n ** (1 / power) - size) <= unit and math.isqrt(n) ** 2 != n:
                root = self.root(np.array(n))
                root = self.root(root) if abs(power) == 4 else root
                found = int(root if power > 0 else self.inverse(root)), n ** (1 / power)
        if found is None:
            return None
        return (found[0] if value > 0 else self.p - found[0]), math.copysign(found[1], value)

    def fixed(self, x: Real) -> Real:
        """Give infinities and NaN residues of their own, whatever they were computed from."""
        finite = np.isfinite(x.f)
        if not finite.all():
            other = np.where(np.isnan(x.f), _UNDEFINED, np.where(x.f > 0, _INFINITE, self.p - _INFINITE))
            x.m = np.where(finite, x.m, other)
        return x

    # Rational operations

    def _both(self, m: Array, f: Array, *operands: Real) -> Real:
        return self.fixed(Real(m, f, operands[0].type, min(x.known for x in operands)))

    def add(self, a: Real, b: Real) -> Real:
        return self._both((a.m + b.m) % self.p, a.f + b.f, a, b)

    def subtract(self, a: Real, b: Real) -> Real:
        return self._both((a.m - b.m) % self.p, a.f - b.f, a, b)

    def multiply(self, a: Real, b: Real) -> Real:
        return self._both(a.m * b.m % self.p, a.f * b.f, a, b)

    def divide(self, a: Real, b: Real) -> Real:
        return self._both(a.m * self.inverse(b.m) % self.p, a.f / b.f, a, b)

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

    def root(self, m: Array, *, strict: bool = True) -> Array:
        """Return the square root that is a square itself, which makes it multiplicative."""
        found = self.power(m, (self.p + 1) // 4)
        if strict and self._strict and m.size == 1 and (found * found % self.p != m).any():
            raise Unlucky
        return found

    def sum(self, x: Real, axes: tuple[int, ...], keep: bool = False) -> Real:
        m = x.m.sum(axes, keepdims=keep) % self.p
        return self._both(np.asarray(m), np.asarray(x.f.sum(axes, keepdims=keep)), x)

    def matmul(self, a: Real, b: Real) -> Real:
        """Return the matrix product: exact in double precision, as 2048 products of centered residues are below 2**53.

        In opaque mode the doubles of what depends on inputs serve no purpose but to tell infinities; others take less
        time.
        """
        x, y = (np.where(v > self.p // 2, v - self.p, v).astype(np.float64) for v in (a.m, b.m))
        total: Any = 0
        for start in range(0, max(a.shape[-1], 1), _EXACT):
            part = (
                x[..., start : start + _EXACT],
                (y[..., start : start + _EXACT, :] if y.ndim > 1 else y[start : start + _EXACT]),
            )
            total = total + np.asarray(np.matmul(*part)).astype(np.int64) % self.p
        m, known = np.asarray(total % self.p), min(a.known, b.known)
        if self.opaque and known == INPUT and np.isfinite(a.f).all() and np.isfinite(b.f).all():
            return Real(m, m / self.p + 0.5, a.type, known)  # positive, so that roots exist
        return self._both(m, np.asarray(np.matmul(a.f, b.f)), a, b)

    # Other functions

    def key(self, name: str) -> int:
        """Return a number for a name."""
        if name not in self._keys:
            self._keys[name] = int.from_bytes(name.encode(), "little") % ((1 << 61) - 1)
        return self._keys[name]

    def hash(self, name: str, *arguments: Array) -> Array:
        """Return random numbers of 32 bits that depend on a name and on residues."""
        mixed: Any = np.uint64((self.key(name) * 0x9E3779B97F4A7C15 + self.seed) % (1 << 64))
        for each in arguments:
            mixed = (mixed ^ each.astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(32))
        return (mixed >> np.uint64(16)).astype(np.int64) & 0xFFFFFFFF

    def _drawn(self, name: str, *arguments: Array, inverse: Array | None = None) -> Array:
        """Return random residues that are not zero; inverted where `inverse` says so."""
        h = self.hash(name, *arguments)
        high, low = h >> _BITS & ((1 << _BITS) - 1), h & ((1 << _BITS) - 1)
        drawn = self._table[0][high] * self._table[1][low] % self.p
        if inverse is None:
            return drawn
        return np.where(inverse, self._inverses[0][high] * self._inverses[1][low] % self.p, drawn)

    def function(self, name: str, x: Real, f: Array, symmetry: str = "") -> Real:
        """Return a random function of residues; `odd`, `even`, or `reciprocal` where f(-x) is -f(x), f(x), 1/f(x)."""
        size = np.minimum(x.m, self.p - x.m) if symmetry else x.m
        negative = size != x.m
        if symmetry == "reciprocal":
            m = np.where(x.m == 0, 1, self._drawn(name, size, inverse=negative))
        else:
            m = self._drawn(name, size)
            if symmetry == "odd":
                m = np.where(x.m == 0, 0, np.where(negative, self.p - m, m))
        return self._both(m, f, x)

    def function_of(self, name: str, a: Real, b: Real, f: Array) -> Real:
        """Return a random function of two residues."""
        a_m, b_m = np.broadcast_arrays(a.m, b.m)
        return self._both(self._drawn(name, a_m, b_m), f, a, b)

    def exp(self, x: Real) -> Real:
        """Return the exponential; it is zero at minus infinity."""
        result = self.function("exp", x, np.exp(np.minimum(x.f, 700.0)), "reciprocal")
        lost = np.isneginf(x.f)
        if lost.any():
            result.m = np.where(lost, 0, result.m)
        return result

    def log(self, x: Real) -> Real:
        return self.function("log", x, np.log(x.f), "")

    def sqrt(self, x: Real) -> Real:
        return self._both(self.root(x.m, strict=x.known == STORED), np.sqrt(x.f), x)

    def sigmoid(self, x: Real) -> Real:
        """1 / (1 + exp(-x))."""
        one = self.number(1.0, x)
        result = self.divide(one, self.add(one, self.exp(self.negate(x))))
        result.f = 1 / (1 + np.exp(-np.clip(x.f, -700, 700)))
        return result

    def tanh(self, x: Real) -> Real:
        """2 / (1 + exp(-2 x)) - 1."""
        two = self.number(2.0, x)
        result = self.subtract(self.multiply(two, self.sigmoid(self.multiply(two, x))), self.number(1.0, x))
        result.f = np.tanh(x.f)
        return result

    def negate(self, x: Real) -> Real:
        return self._both(-x.m % self.p, -x.f, x)

    def erf(self, x: Real) -> Real:
        return self.function("erf", x, erf(x.f), "odd")

    # Order

    def less(self, a: Real, b: Real) -> Array:
        """Return a < b: as the doubles are, or in opaque mode a random function of b - a that changes with its sign."""
        if min(a.known, b.known) == STORED:
            return a.f < b.f
        by_doubles = a.f < b.f
        self.decisions += by_doubles.size
        if not self.opaque:
            return by_doubles
        difference = (b.m - a.m) % self.p
        size = np.minimum(difference, self.p - difference)
        drawn = (self.hash("order", size) & 1) != (size != difference)
        return np.where(np.isfinite(a.f) & np.isfinite(b.f), drawn & (difference != 0), by_doubles)

    def row_order(self, x: Real, axes: tuple[int, ...]) -> Array:
        """Return the order within rows; in opaque mode it does not change if a number is added to the row."""
        if not self.opaque or x.known == STORED:
            return x.f
        finite = np.isfinite(x.f)
        count = finite.sum(axes, keepdims=True)
        mean = np.where(finite, x.m, 0).sum(axes, keepdims=True) % self.p * self.inverse(count % self.p) % self.p
        return np.where(finite, self.hash("order in rows", (x.m - mean) % self.p).astype(np.float64), x.f)

    def where(self, condition: Array, a: Real, b: Real) -> Real:
        m, f = np.where(condition, a.m, b.m), np.where(condition, a.f, b.f)
        return Real(m, f, a.type, min(a.known, b.known))

    def larger(self, a: Real, b: Real) -> Real:
        return self.where(self.less(a, b), b, a)

    def smaller(self, a: Real, b: Real) -> Real:
        return self.where(self.less(b, a), b, a)

    def whole(self, name: str, x: Real, f: Array) -> Real:
        """Return what rounds to integers; a random function in opaque mode."""
        if self.opaque and x.known != STORED:
            return self.function(name, x, f)
        return self._both(self.residues(f), f, x)


@functools.cache
def _erf() -> Callable[[Array], Array]:
    return np.vectorize(math.erf, otypes=[np.float64])


def erf(f: Array) -> Array:
    """Return the error function; with an error of 1.5e-7 for large arrays."""
    if f.size <= 4096:
        return np.asarray(_erf()(f)) if f.size else f
    t = 1 / (1 + 0.3275911 * np.abs(f))
    terms = ((((1.061405429 * t - 1.453152027) * t) + 1.421413741) * t - 0.284496736) * t + 0.254829592
    return np.sign(f) * (1 - terms * t * np.exp(-f * f))
