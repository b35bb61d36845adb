"""Real numbers by their residues modulo three primes, packed into one 64-bit integer.

Sums, products and quotients of floats are rational numbers, and a rational number has a residue modulo every prime that
does not divide its denominator. Two different polynomials of degree d agree at a random point modulo one prime with
probability d / 2**20 at most, modulo all three with its cube: about 2**-60 for a small degree. Points are drawn below
2**20, which is less than each of the primes.

The primes have 21 bits, so that a product has 42 and a double holds the sum of 2,048 products exactly: matrix products
are done by BLAS. They leave 3 when divided by 4, so that `x ** ((p + 1) / 4)` is a root of every square; and 2, 3, 5,
7, 11 and 13 are squares modulo all of them, so that the roots of small numbers square to these numbers.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Packed = npt.NDArray[np.int64]

PRIMES = (2096639, 2096111, 2092991)
_PRIME_BITS = 21
_MASK = (1 << _PRIME_BITS) - 1
_EXACT_TERMS = 1 << 11  # products of 42 bits whose sum a double holds
_MIN_EXPONENT, _MAX_EXPONENT = -1200, 1100  # exponents of two that doubles need
_SECOND_SALT = 1 << 32
_MAX_PYTHON_POWERS = 64  # numbers up to which Python's own powers take less time than products of arrays
_MAX_SMALL_ARRAY = 256  # numbers up to which a remainder takes less time than a quotient and a product


def split(packed: Packed) -> list[Packed]:
    """Return the residues modulo each prime."""
    return [packed & _MASK, packed >> _PRIME_BITS & _MASK, packed >> 2 * _PRIME_BITS]


def join(lanes: Iterable[Packed]) -> Packed:
    """Return residues modulo each prime as one array."""
    first, second, third = lanes
    return np.asarray(first | second << _PRIME_BITS | third << 2 * _PRIME_BITS)


def _reduced(numbers: Packed, p: int) -> Packed:
    """Return numbers modulo p; numpy has vector code for quotients by one number, but not for remainders."""
    if numbers.size <= _MAX_SMALL_ARRAY:
        return numbers % p
    multiples = numbers // p
    multiples *= p
    return np.subtract(numbers, multiples, out=multiples)


def _wrapped(numbers: Packed, p: int) -> Packed:
    """Return numbers from 0 to 2 p modulo p, without a quotient: as unsigned numbers, negative ones are the largest."""
    if numbers.size <= _MAX_SMALL_ARRAY:
        return numbers % p
    return np.minimum(numbers.view(np.uint64), (numbers - p).view(np.uint64)).view(np.int64)


def _each(operation: Callable[[Any, int], Any], a: Packed) -> Packed:
    return join(np.asarray(operation(x, p)) for x, p in zip(split(a), PRIMES, strict=True))


def _pairs(operation: Callable[[Any, Any, int], Any], a: Packed, b: Packed) -> Packed:
    return join(np.asarray(operation(x, y, p)) for x, y, p in zip(split(a), split(b), PRIMES, strict=True))


def add(a: Packed, b: Packed) -> Packed:
    """Return a + b."""
    return _pairs(lambda x, y, p: _wrapped(x + y, p), a, b)


def subtract(a: Packed, b: Packed) -> Packed:
    """Return a - b."""
    return _pairs(lambda x, y, p: _wrapped(x - y + p, p), a, b)


def negative(a: Packed) -> Packed:
    """Return -a."""
    return subtract(np.zeros_like(a), a)


def multiply(a: Packed, b: Packed) -> Packed:
    """Return a · b."""
    return _pairs(lambda x, y, p: _reduced(x * y, p), a, b)


def power(a: Packed, exponent: int) -> Packed:
    """Return a to a whole power; a negative one is of the inverse."""
    return _each(lambda x, p: _power(x, exponent % (p - 1) if exponent < 0 else exponent, p), a)


def _power(x: Packed, exponent: int, p: int) -> Packed:
    if x.size <= _MAX_PYTHON_POWERS:
        return np.array([pow(number, exponent, p) for number in x.ravel().tolist()], np.int64).reshape(x.shape)
    result = np.ones_like(x)
    while exponent:
        if exponent & 1:
            result = _reduced(result * x, p)
        exponent >>= 1
        if exponent:
            x = _reduced(x * x, p)
    return result


def inverse(a: Packed) -> Packed:
    """Return 1 / a, and 0 for 0."""
    return _each(lambda x, p: _power(x, p - 2, p), a)


def root(a: Packed) -> Packed:
    """Return the square root of a square; for other numbers a value that multiplies as a root does."""
    return _each(lambda x, p: _power(x, (p + 1) // 4, p), a)


def total(a: Packed, axis: int | tuple[int, ...], *, keepdims: bool = False) -> Packed:
    """Return the sum along axes."""
    return _each(lambda x, p: _reduced(x.sum(axis=axis, keepdims=keepdims), p), a)


def running_total(a: Packed, axis: int) -> Packed:
    """Return the sum of all elements up to each one along an axis."""
    return _each(lambda x, p: _reduced(np.cumsum(x, axis=axis), p), a)


def matmul(a: Packed, b: Packed) -> Packed:
    """Return the matrix product, as `numpy.matmul` defines it."""
    return _pairs(_matmul, a, b)


def _matmul(x: Packed, y: Packed, p: int) -> Packed:
    left, right = x.astype(np.float64), y.astype(np.float64)
    starts = range(0, x.shape[-1], _EXACT_TERMS) or (0,)
    parts = (slice(start, start + _EXACT_TERMS) for start in starts)
    products = (np.matmul(left[..., part], right[..., part, :] if y.ndim > 1 else right[part]) for part in parts)
    result = functools.reduce(operator.add, (_reduced(product.astype(np.int64), p) for product in products))
    return np.asarray(result) if len(starts) == 1 else _reduced(result, p)


def of_integers(values: npt.NDArray[Any]) -> Packed:
    """Return the residues of integers or truth values."""
    if values.dtype == np.uint64:
        return join((values % np.uint64(p)).astype(np.int64) for p in PRIMES)
    numbers = values.astype(np.int64)
    return join(_reduced(numbers, p) for p in PRIMES)


def of_floats(values: npt.NDArray[Any]) -> Packed:
    """Return the residues of finite floats, which are integers times a power of two; 0 for all others."""
    if values.size == 1:
        return np.full(values.shape, _of_float(float(values.item())))
    if values.dtype.itemsize > 4:
        fractions, exponents = np.frexp(np.where(np.isfinite(values), values, 0.0).astype(np.float64))
        whole = np.ldexp(fractions, 53).astype(np.int64)
        places = exponents.astype(np.int64) - (53 + _MIN_EXPONENT)
    else:  # the same by bits, at a third of the time
        bits = values.astype(np.float32).view(np.int32)
        exponents = (bits >> 23) & 0xFF
        whole = np.where(exponents > 0, bits & 0x7FFFFF | 0x800000, bits << 1 & 0xFFFFFF)
        whole = np.where(exponents == 0xFF, 0, np.where(bits < 0, -whole, whole)).astype(np.int64)
        places = exponents - (150 + _MIN_EXPONENT)
    return join(
        _reduced(_reduced(whole, p) * table[places], p) for p, table in zip(PRIMES, _powers_of_two(), strict=True)
    )


@functools.lru_cache(4096)
def _of_float(number: float) -> int:
    """Return the residues of one float; nodes and definitions have the same few again and again."""
    if not math.isfinite(number):
        return 0
    top, bottom = number.as_integer_ratio()
    return of_ratio(top, bottom)


def of_ratio(top: int, bottom: int) -> int:
    """Return the residues of a fraction."""
    return sum(top * pow(bottom, -1, p) % p << lane * _PRIME_BITS for lane, p in enumerate(PRIMES))


@functools.cache
def _powers_of_two() -> tuple[Packed, ...]:
    exponents = range(_MIN_EXPONENT, _MAX_EXPONENT)
    return tuple(np.array([pow(2, e % (p - 1), p) for e in exponents], np.int64) for p in PRIMES)


def drawn(rng: np.random.Generator, shape: tuple[int, ...]) -> Packed:
    """Return random residues below 2**20, each equally likely: one draw for all three."""
    bits = rng.integers(np.iinfo(np.int64).min, np.iinfo(np.int64).max, shape, endpoint=True)
    return np.asarray(bits & join([np.array(_MASK >> 1)] * 3))


def scrambled(a: Packed, salt: int) -> npt.NDArray[np.uint64]:
    """Return 64 bits that depend on the number in no simple way: equal numbers give equal bits."""
    bits = a.astype(np.uint64) + np.uint64(salt % (1 << 64))
    with np.errstate(over="ignore"):
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)))


def random_function(a: Packed, salt: int) -> Packed:
    """Return the residues of a random function of the numbers, another one for every salt."""
    return join(
        _reduced((scrambled(a, salt + index * _SECOND_SALT) >> np.uint64(20)).astype(np.int64), p)
        for index, p in enumerate(PRIMES)
    )


def random_signs(a: Packed, seed: int) -> npt.NDArray[np.bool_]:
    """Return which numbers count as positive: of a and -a one does, and with a all its products with squares.

    That depends on whether a is a square modulo each of the primes; the products of 2, 3, 5, 7, 11 and 13 are.
    """
    squares = [_power(x, (p - 1) // 2, p) == 1 for x, p in zip(split(a), PRIMES, strict=True)]
    first, second, third = (bool(seed >> bit & 1) for bit in range(3))
    positive = np.array([False, not third, not second, not first, first, second, third, True])
    return positive[squares[0] + 2 * squares[1] + 4 * squares[2]]
