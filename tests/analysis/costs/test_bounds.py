"""A lower bound on a box is never above the expression, and is exact without subtraction."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowing import integer
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.expr import Size
from sardonyx.verbs.analyze.costs.peak_memory import Bounds, Box, Number, without_max

A, B = expr.symbol("a"), expr.symbol("b")


def least(size: Size, box: Box) -> Number | None:
    return Bounds(box).least(size)


BASES = st.one_of(st.integers(-6, 12), st.sampled_from((A, B)))


def _grown(parts: st.SearchStrategy[Size]) -> st.SearchStrategy[Size]:
    pairs = st.tuples(parts, parts)
    acts = (expr.add, expr.subtract, expr.multiply, expr.larger, expr.smaller, expr.broadcast)
    divided = (expr.floor_quotient, expr.remainder)
    divisors = st.one_of(st.integers(1, 6), parts.map(lambda size: expr.larger(size, 1)))
    return st.one_of(
        *(pairs.map(lambda pair, act=act: act(*pair)) for act in acts),
        *(st.tuples(parts, divisors).map(lambda pair, act=act: act(*pair)) for act in divided),
    )


SIZES: st.SearchStrategy[Size] = st.recursive(BASES, _grown, max_leaves=7)
SIDES = st.tuples(st.integers(1, 9), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair)))
BOXES = st.fixed_dictionaries({"a": SIDES, "b": SIDES})


@pytest.mark.slow
@given(SIZES, BOXES)
@settings(max_examples=300, deadline=None)
def test_the_bound_is_below_every_point_of_the_box(size: Size, box: dict[str, tuple[int, int]]) -> None:
    bound = least(size, box)
    sides = [range(low, high + 1) for low, high in box.values()]
    lowest = min(expr.value_of(size, dict(zip(box, point, strict=True))) for point in itertools.product(*sides))
    assert bound is None or bound <= lowest
    if all(low == high for low, high in box.values()):
        assert bound == lowest


def test_the_bound_is_exact_without_subtraction() -> None:
    size = expr.add(expr.multiply(A, B), expr.multiply(3, A))
    assert least(size, {"a": (2, 90), "b": (5, 7)}) == 2 * 5 + 3 * 2


def test_an_expression_that_dominates_above_a_size_is_detected() -> None:
    gap = expr.subtract(expr.multiply(A, A), expr.multiply(100, A))  # a² − 100 a
    assert least(gap, {"a": (100, 1 << 24), "b": (1, 1)}) == 0
    assert integer(least(gap, {"a": (99, 1 << 24), "b": (1, 1)})) < 0


def test_quotients_are_bounded_without_their_rounding() -> None:
    gap = expr.subtract(expr.multiply(3, A), expr.multiply(4, expr.floor_quotient(A, 2)))  # 3 a − 4 (a // 2) ≥ a
    assert least(gap, {"a": (5, 1 << 24), "b": (1, 1)}) == 5


def test_a_minimum_is_bounded_by_the_argument_that_is_nearest() -> None:
    gap = expr.subtract(expr.multiply(3, A), expr.multiply(2, expr.smaller(A, 512)))  # 3 a - 2 min(a, 512) >= a
    assert least(gap, {"a": (1, 1 << 24), "b": (1, 1)}) == 1
    assert least(gap, {"a": (1000, 1 << 24), "b": (1, 1)}) == 3000 - 1024


@given(SIZES, st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_a_size_is_the_maximum_of_its_pieces(size: Size, a: int, b: int) -> None:
    parts = [expr.value_of(part, {"a": a, "b": b}) for part in without_max(size)]
    assert max(parts) == expr.value_of(size, {"a": a, "b": b})


def test_a_maximum_becomes_its_two_sides() -> None:
    size = expr.add(expr.multiply(B, expr.larger(A, 9)), 1)
    assert set(without_max(size)) == {expr.add(expr.multiply(A, B), 1), expr.add(expr.multiply(9, B), 1)}
