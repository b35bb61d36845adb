"""Sizes in readable form."""

from __future__ import annotations

from sardonyx.ir.shapes.expr import add, floor_quotient, multiply, product, subtract, symbol
from sardonyx.verbs.analyze.costs.program import format_size

B, S = symbol("batch"), symbol("seq")


def test_highest_powers_come_first() -> None:
    assert format_size(add(multiply(3072, B), product((12, B, S, S)))) == "12·batch·seq² + 3072·batch"


def test_numbers_signs_and_quotients() -> None:
    assert format_size(7) == "7"
    assert format_size(subtract(multiply(B, S), S)) == "batch·seq − seq"
    assert format_size(subtract(multiply(2, S), 5)) == "2·seq − 5"
    assert format_size(multiply(3, floor_quotient(S, 16))) == "3·((seq)//(16))"
