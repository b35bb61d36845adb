"""Sizes in readable form."""

from __future__ import annotations

from sardonyx.ir.shapes.expr import (
    add,
    copied_if_zero,
    floor_quotient,
    larger,
    multiply,
    product,
    remainder,
    subtract,
    symbol,
)
from sardonyx.verbs.analyze.costs.program import format_size

B, S = symbol("batch"), symbol("seq")


def test_highest_powers_come_first() -> None:
    assert format_size(add(multiply(3072, B), product((12, B, S, S)))) == "12·batch·seq² + 3072·batch"


def test_numbers_signs_and_quotients() -> None:
    assert format_size(7) == "7"
    assert format_size(subtract(multiply(B, S), S)) == "batch·seq − seq"
    assert format_size(subtract(multiply(2, S), 5)) == "2·seq − 5"


def test_functions_have_parentheses_only_where_they_are_needed() -> None:
    blocks = floor_quotient(S, 16)
    assert format_size(blocks) == "seq//16"
    assert format_size(multiply(3, blocks)) == "3·(seq//16)"
    assert format_size(floor_quotient(add(multiply(2, product((B, S))), 15), 7)) == "(2·batch·seq + 1)//7 + 2"
    assert format_size(product((B, larger(S, 8), remainder(blocks, B)))) == "((seq//16)%batch)·batch·max(8, seq)"
    assert format_size(add(copied_if_zero(S, add(B, 2)), 2)) == "(seq or (batch + 2)) + 2"
