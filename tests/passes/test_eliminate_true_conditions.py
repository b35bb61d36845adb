"""Conditions that are true for every element are removed, others are not."""

from __future__ import annotations

import pytest

from passes.util import assert_same_on_uneven_sizes, graph_text, op_types, run_passes
from sardonyx.passes.broadcasting.eliminate_true_conditions import EliminateTrueConditions
from sardonyx.passes.cleanup.eliminate_dead_nodes import EliminateDeadNodes

PASSES = (EliminateTrueConditions(), EliminateDeadNodes())


def text(body: str, result: str = "B, 1, S, S") -> str:
    """A mask [B, 1, 1, S] combined with conditions on positions `p` [S] and rows [S, 1]."""
    return graph_text(f"""
        agraph (bool[B, S] x) => (bool[{result}] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 minus = {{-1}}, int64[2] middle = {{1, 2}}, int64[1] last = {{1}},
         bool[1, 1] yes = {{1}}, bool[1, 3] some = {{1, 0, 1}}> {{
            m = Unsqueeze(x, middle)  s = Shape(x)  n = Gather(s, one)  p = Range(zero, n, one)
            rows = Unsqueeze(p, last)
            {body}
        }}""")


@pytest.mark.parametrize(
    "body",
    [
        "c = GreaterOrEqual(rows, zero)  y = And(c, m)",
        "c = LessOrEqual(zero, rows)  y = And(m, c)",
        "c = Greater(rows, minus)  y = And(c, m)",
        "q = Add(rows, one)  c = Less(zero, q)  y = And(c, m)",
    ],
)
def test_positions_are_never_below_zero(body: str) -> None:
    """The comparison is removed; the broadcast to one row per position stays."""
    model, _ = run_passes(text(body), PASSES)
    assert op_types(model) == ["Unsqueeze", "Shape", "Concat", "Expand"]
    assert_same_on_uneven_sizes(text(body), model)


@pytest.mark.parametrize(
    "body",
    [
        "c = Greater(rows, zero)  y = And(c, m)",  # false for the first position
        "c = GreaterOrEqual(rows, one)  y = And(c, m)",
        "c = LessOrEqual(p, rows)  y = And(c, m)",  # causal
        "q = Sub(rows, one)  c = GreaterOrEqual(q, zero)  y = And(c, m)",
        "c = GreaterOrEqual(rows, zero)  y = Or(c, m)",  # always true: another pass
    ],
)
def test_conditions_that_are_not_always_true_stay(body: str) -> None:
    model, log = run_passes(text(body), PASSES)
    assert not [event for event in log.events if event.pass_name == "eliminate-true-conditions"]
    assert_same_on_uneven_sizes(text(body), model)


def test_constants() -> None:
    model, _ = run_passes(text("y = And(yes, m)", "B, 1, 1, S"), PASSES)
    assert op_types(model) == ["Unsqueeze"]
    assert_same_on_uneven_sizes(text("y = And(yes, m)", "B, 1, 1, S"), model)
    other = graph_text("""
        agraph (bool[B, 3] x) => (bool[B, 3] y) <bool[1, 3] no = {0, 0, 0}, bool[1, 3] some = {1, 0, 1}> {
            a = Not(x)  b = Or(no, a)  y = And(b, some)
        }""")
    model, _ = run_passes(other, PASSES)
    assert op_types(model) == ["Not", "And"]
    assert_same_on_uneven_sizes(other, model)


def test_a_constant_that_expands() -> None:
    body = graph_text("""
        agraph (bool[B, 1] x) => (bool[B, 3] y) <bool[1, 3] yes = {1, 1, 1}> { a = Not(x)  y = And(a, yes) }""")
    model, _ = run_passes(body, PASSES)
    assert op_types(model) == ["Not", "Expand"]
    assert_same_on_uneven_sizes(body, model)
