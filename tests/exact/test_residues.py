"""Residues follow the arithmetic of fractions, and literals are read as the numbers they are rounded from."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sardonyx.ir.exact import reals, residues
from sardonyx.ir.exact.residues import PRIMES, Packed

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)


def of(fraction: Fraction) -> list[int]:
    """The residues of a fraction, by Python's integers."""
    return [fraction.numerator * pow(fraction.denominator, -1, p) % p for p in PRIMES]


def lanes(packed: Packed) -> list[int]:
    return [int(lane) for lane in residues.split(packed)]


def packed(number: float, dtype: type[np.floating] = np.float64) -> Packed:
    """The residues of one float, which are also those of the same float in an array."""
    single, array = (residues.of_floats(np.full(shape, number, dtype)) for shape in ((), 2))
    assert array.tolist() == 2 * [single.item()]
    return single


@given(finite, finite)
def test_sums_products_and_quotients_are_those_of_fractions(a: float, b: float) -> None:
    x, y = Fraction(a), Fraction(b)
    assert lanes(packed(a)) == of(x)
    assert lanes(residues.add(packed(a), packed(b))) == of(x + y)
    assert lanes(residues.subtract(packed(a), packed(b))) == of(x - y)
    assert lanes(residues.multiply(packed(a), packed(b))) == of(x * y)
    assert lanes(residues.power(packed(a), 3)) == of(x**3)
    if all(of(y)):
        assert lanes(residues.multiply(packed(a), residues.inverse(packed(b)))) == of(x / y)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_single_precision_has_the_residues_of_its_value(number: float) -> None:
    assert lanes(packed(number, np.float32)) == of(Fraction(number))


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_not_finite_has_no_residues(number: float, dtype: type[np.floating]) -> None:
    assert lanes(packed(number, dtype)) == [0, 0, 0]


@pytest.mark.parametrize("count", [0, 1, 64, 65, 256, 257])
def test_arrays_of_any_length_follow_integers(count: int) -> None:
    rng = np.random.default_rng(count)
    a, b = residues.drawn(rng, (count,)), residues.drawn(rng, (count,))
    operations = {
        residues.add: lambda x, y, p: (x + y) % p,
        residues.subtract: lambda x, y, p: (x - y) % p,
        residues.multiply: lambda x, y, p: x * y % p,
        lambda x, _: residues.inverse(x): lambda x, _, p: pow(x, p - 2, p),
        lambda x, _: residues.root(x): lambda x, _, p: pow(x, (p + 1) // 4, p),
        lambda x, _: residues.power(x, 7): lambda x, _, p: pow(x, 7, p),
        lambda x, _: residues.power(x, 0): lambda _x, _, _p: 1,
    }
    for operation, expected in operations.items():
        for lane, x, y, p in zip(*map(residues.split, (operation(a, b), a, b)), PRIMES, strict=True):
            assert lane.tolist() == [expected(u, v, p) for u, v in zip(x.tolist(), y.tolist(), strict=True)]


@given(st.integers(0, 2**64 - 1))
@example(2**64 - 1)
def test_integers_have_the_residues_of_their_value(number: int) -> None:
    assert lanes(residues.of_integers(np.array(number, np.uint64))) == of(Fraction(number))
    signed = number - 2**63
    assert lanes(residues.of_integers(np.array(signed, np.int64))) == of(Fraction(signed))


@pytest.mark.parametrize("length", [0, 1, 2048, 5000])
def test_a_product_longer_than_a_double_can_sum_is_exact(length: int) -> None:
    rng = np.random.default_rng(0)
    a, b = residues.drawn(rng, (2, length)), residues.drawn(rng, (length, 3))
    for lane, x, y, p in zip(
        residues.split(residues.matmul(a, b)), residues.split(a), residues.split(b), PRIMES, strict=True
    ):
        expected = [[sum(int(u) * int(v) for u, v in zip(row, column, strict=True)) % p for column in y.T] for row in x]
        assert lane.tolist() == expected


@pytest.mark.parametrize("number", [2, 3, 5, 7, 11, 13, 64, 96, 1 / 2, 3 / 8])
def test_the_root_of_a_small_number_squares_to_it(number: float) -> None:
    root = residues.root(packed(number))
    assert lanes(residues.multiply(root, root)) == lanes(packed(number))


KNOWN = [
    math.sqrt(2),
    math.sqrt(1 / 2),
    math.sqrt(2 / math.pi),
    2 / math.pi,
    1 / 6,
    math.sqrt(1 / 96),
    64**-0.25,
    -1 / 3,
]


@pytest.mark.parametrize("real", KNOWN)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_rounded_number_is_recognized_and_its_neighbours_are_not(real: float, dtype: type[np.floating]) -> None:
    bits = np.finfo(dtype).nmant + 1
    literal = dtype(real)
    assert reals.recognized(float(literal), bits) is not None
    for neighbour in (np.nextafter(literal, dtype(10)), np.nextafter(literal, dtype(-10))):
        assert reals.recognized(float(neighbour), bits) is None


def test_a_recognized_root_squares_to_its_number() -> None:
    for number, square in ((np.float32(math.sqrt(2)), 2.0), (np.float32(1 / math.sqrt(96)), 1 / 96)):
        root = reals.recognized(float(number), 24)
        assert root is not None
        assert lanes(residues.multiply(root, root)) == of(Fraction(square).limit_denominator(100))


def test_weights_are_not_taken_for_roots_by_chance() -> None:
    weights = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    assert sum(reals.recognized(float(weight), 24) is not None for weight in weights) <= 2


@pytest.mark.parametrize("name", reals.FUNCTIONS)
def test_functions_have_no_other_known_values_than_at_zero_and_one(name: str) -> None:
    numbers = reals.Numbers(reals.Order.TRUE, 0)
    zero, one = (numbers.apply(name, reals.Real.of(np.array(number), 1)) for number in (0, 1))
    at_zero, at_one = (lanes(real.residues) if np.isfinite(real.doubles) else [] for real in (zero, one))
    assert (at_zero == [0, 0, 0]) == (name in {"Asin", "Asinh", "Atan", "Atanh", "Erf", "Sin", "Sinh", "Tan", "Tanh"})
    assert (at_zero == [1, 1, 1]) == (name in {"Cos", "Cosh", "Exp"})
    assert (at_one == [0, 0, 0]) == (name in {"Acosh", "Log"})
