"""The algebra of sizes agrees with integer arithmetic for every size."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import known_sizes
import recorded
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.expr import Size

NAMES = ("a", "b", "c")
N, M = expr.symbol("n"), expr.symbol("m")
Sizes = dict[str, int]

SIZES = st.fixed_dictionaries({name: st.integers(0, 9) for name in NAMES})
BASES = st.one_of(st.integers(-6, 12), st.sampled_from([expr.symbol(name) for name in NAMES]))


def _grown(parts: st.SearchStrategy[Size]) -> st.SearchStrategy[Size]:
    pairs = st.tuples(parts, parts)
    operations = [expr.add, expr.subtract, expr.multiply, expr.larger, expr.smaller]
    divisor = st.one_of(st.integers(1, 6), parts.map(lambda size: expr.larger(size, 1)))
    return st.one_of(
        *(pairs.map(lambda pair, act=act: act(*pair)) for act in operations),
        st.tuples(parts, divisor).map(lambda pair: expr.floor_quotient(*pair)),
        st.tuples(parts, divisor).map(lambda pair: expr.remainder(*pair)),
    )


EXPRESSIONS: st.SearchStrategy[Size] = st.recursive(BASES, _grown, max_leaves=6)
OPERATIONS: list[tuple[Callable[[Size, Size], Size], Callable[[int, int], int]]] = [
    (expr.add, lambda one, other: one + other),
    (expr.subtract, lambda one, other: one - other),
    (expr.multiply, lambda one, other: one * other),
    (expr.larger, max),
    (expr.smaller, min),
    (expr.floor_quotient, lambda one, other: one // other),
    (expr.remainder, lambda one, other: one % other),
]


@pytest.mark.slow
@settings(max_examples=120)
@given(EXPRESSIONS, EXPRESSIONS, SIZES)
def test_every_operation_agrees_with_integers(one: Size, other: Size, sizes: Sizes) -> None:
    left, right = expr.value_of(one, sizes), expr.value_of(other, sizes)
    for operation, meant in OPERATIONS:
        if right == 0 and operation in (expr.floor_quotient, expr.remainder):
            continue  # an error of the model: it cannot run at this size
        assert expr.value_of(operation(one, other), sizes) == meant(left, right), operation


@settings(max_examples=120)
@given(EXPRESSIONS, EXPRESSIONS, SIZES)
def test_no_claim_is_contradicted_by_a_size(one: Size, other: Size, sizes: Sizes) -> None:
    left, right = expr.value_of(one, sizes), expr.value_of(other, sizes)
    assert expr.equal(one, other) in (None, left == right)
    assert expr.less(one, other) in (None, left < right)
    bound = expr.lower_bound(one)
    assert bound is None or left >= bound
    assert all(left >= limit for limit in (-3, 0, 1, 2) if expr.at_least(one, limit))


@pytest.mark.slow
@settings(max_examples=120)
@given(EXPRESSIONS, EXPRESSIONS, SIZES)
def test_a_quotient_that_is_claimed_to_be_exact_is_exact(one: Size, other: Size, sizes: Sizes) -> None:
    quotient = expr.exact_quotient(one, other)
    right = expr.value_of(other, sizes)
    if quotient is not None and right:
        assert expr.value_of(quotient, sizes) * right == expr.value_of(one, sizes)


@settings(max_examples=80)
@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_sums_and_products_have_one_form(one: Size, other: Size, third: Size) -> None:
    assert expr.add(one, other) == expr.add(other, one)
    assert expr.multiply(one, other) == expr.multiply(other, one)
    assert expr.add(expr.add(one, other), third) == expr.add(one, expr.add(other, third))
    assert expr.multiply(expr.multiply(one, other), third) == expr.multiply(one, expr.multiply(other, third))
    spread = expr.add(expr.multiply(one, third), expr.multiply(other, third))
    assert expr.multiply(expr.add(one, other), third) == spread
    assert hash(expr.multiply(expr.add(one, other), third)) == hash(spread)
    assert expr.subtract(one, one) == 0
    assert expr.product((one, other, third)) == expr.multiply(expr.multiply(one, other), third)


@settings(max_examples=120)
@given(EXPRESSIONS, EXPRESSIONS, SIZES)
def test_factors_of_a_product_cancel(one: Size, other: Size, sizes: Sizes) -> None:
    """A product divided by one of its factors is the other factor."""
    if other != 0:
        assert expr.exact_quotient(expr.multiply(one, other), other) == one
        assert expr.remainder(expr.multiply(one, other), other) == 0


@pytest.mark.slow
@settings(max_examples=150)
@given(EXPRESSIONS, EXPRESSIONS, SIZES)
def test_broadcast_agrees_with_numpy(one: Size, other: Size, sizes: Sizes) -> None:
    left, right = expr.value_of(one, sizes), expr.value_of(other, sizes)
    if left >= 0 and right >= 0 and (left == right or 1 in (left, right)):
        met = right if left == 1 else left
        both = expr.broadcast(one, other)
        assert expr.value_of(both, sizes) == met
        assert expr.broadcast(both, one) == both
        assert expr.value_of(expr.broadcast(other, one), sizes) == met


@pytest.mark.parametrize("n", range(12))
@pytest.mark.parametrize("m", [1, 3])
def test_a_capped_size_beside_its_cap_is_the_cap(n: int, m: int) -> None:
    """As when a position table of 5 rows, sliced to n positions, is added to n embeddings."""
    cap = expr.smaller(5 if m == 3 else 1, N)
    assert expr.broadcast(cap, N) == N
    size = expr.value_of(cap, {"n": n})
    if size == n or 1 in (size, n):
        assert n == (n if size == 1 else size)


def test_an_unrelated_size_is_not_a_cap() -> None:
    assert expr.broadcast(expr.smaller(M, N), N) != N


FORMS: list[tuple[Size, Size]] = [
    (expr.floor_quotient(expr.add(expr.multiply(N, 2), 3), 2), expr.add(N, 1)),
    (expr.floor_quotient(expr.add(expr.multiply(N, 2), 3), 4), expr.floor_quotient(expr.add(N, 1), 2)),
    (expr.floor_quotient(expr.floor_quotient(N, 2), 2), expr.floor_quotient(N, 4)),
    (expr.floor_quotient(expr.multiply(N, 3), 2), expr.add(N, expr.floor_quotient(N, 2))),
    (expr.remainder(expr.add(expr.multiply(N, 8), 3), 4), 3),
    (expr.larger(expr.smaller(N, M), N), N),
    (expr.larger(expr.larger(N, M), M), expr.larger(M, N)),
    (expr.larger(expr.subtract(N, expr.smaller(N, 3)), 0), expr.subtract(N, expr.smaller(N, 3))),
    (expr.larger(N, 0), N),
    (expr.smaller(expr.larger(N, 1), 1), 1),
    (expr.exact_quotient(expr.multiply(expr.add(N, M), expr.multiply(N, 6)), expr.add(N, M)) or 0, expr.multiply(N, 6)),
    (expr.total(()), 0),
    (expr.product(()), 1),
    (expr.exact_quotient(0, N) or 0, 0),
]


@pytest.mark.parametrize(("one", "other"), FORMS)
def test_the_same_size_has_one_form(one: Size, other: Size) -> None:
    assert one == other


def test_unknowns_equal_only_themselves_and_are_vague() -> None:
    one, other = expr.unknown(1), expr.unknown(2)
    assert one == expr.unknown(1)
    assert expr.equal(one, other) is None
    made = [expr.add(one, N), expr.larger(one, N), expr.floor_quotient(N, one), expr.broadcast(N, one)]
    assert all(isinstance(size, expr.Expr) and size.is_vague for size in made)
    assert not expr.symbol("?1").is_vague
    assert expr.symbol("?1") != one


@pytest.mark.parametrize("name", ["batch", "a b", "n+1", "Addonnx::Gather_1558_dim_0", "max(n, m)", "", "'", "?1"])
def test_any_text_can_be_a_name(name: str) -> None:
    assert expr.declared(expr.symbol(name)) == name
    assert expr.symbol(name) not in (expr.add(N, 1), expr.larger(N, M), expr.unknown(1))


def test_a_formula_is_not_a_name() -> None:
    assert expr.declared(expr.add(N, 1)) is None
    assert expr.declared(expr.multiply(N, 2)) is None
    assert expr.declared(expr.larger(N, M)) is None
    assert expr.declared(7) == 7


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_a_product_of_names_is_their_product(powers: list[int]) -> None:
    names = [f"d{index}" for index in range(len(powers))]
    size = expr.product(expr.symbol(name) for name in names)
    assert expr.value_of(size, dict(zip(names, powers, strict=True))) == math.prod(powers)


def test_random_sizes_are_right_and_no_less_is_known_than_before() -> None:
    amounts, wrong = known_sizes.size_amounts()
    assert not wrong
    recorded.check("sizes", amounts)
