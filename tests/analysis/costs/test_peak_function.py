"""The peak function is the peak at every size, and its turning points match an exhaustive search."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.costs.programs import BATCH, EXAMPLE, SEQ, Sketch, in_blocks, programs
from narrowing import present
from sardonyx.ir.shapes.expr import add, larger, multiply, product, value_of
from sardonyx.verbs.analyze.costs.peak_memory import (
    MAX_SIZE,
    Candidate,
    PeakFunction,
    Stretch,
    compare,
    liveness,
    peak_function,
)
from sardonyx.verbs.analyze.costs.program import Program, Store, format_size

WIDE = st.fixed_dictionaries({name: st.integers(1, 5000) for name in EXAMPLE})
TRIED = range(1, 130)  # contains the crossings of 1, 3, 40 and their products


def _mlp_and_attention(*, is_spelled_out: bool = True) -> Program:
    """A block of width 768: an MLP that widens four times, and 12 heads whose scores are stored twice."""
    sketch = Sketch()
    x = sketch.given(Store.INPUT, (BATCH, SEQ, 768))
    wide = sketch.run((x,), (BATCH, SEQ, 3072), module="mlp")
    active = sketch.run((wide,), (BATCH, SEQ, 3072), module="mlp.act")
    state = sketch.run((active,), (BATCH, SEQ, 768), module="mlp")
    if is_spelled_out:
        scores = sketch.run((state,), (BATCH, 12, SEQ, SEQ), module="attention")
        weights = sketch.run((scores,), (BATCH, 12, SEQ, SEQ), module="attention")
        state = sketch.run((weights, state), (BATCH, SEQ, 768), module="attention")
    return sketch.program((state,))


def _winner(function: PeakFunction, sizes: dict[str, int] | None = None) -> Candidate | None:
    """The step that is the peak at these sizes, the earliest of equals."""
    chosen = {**function.program.symbols, **(sizes or {})}
    return min(function.candidates, key=lambda one: (-value_of(one.bytes, chosen), one.step), default=None)


def _at(function: PeakFunction, sizes: dict[str, int]) -> int:
    winner = _winner(function, sizes)
    return value_of(winner.bytes, {**function.program.symbols, **sizes}) if winner else 0


@pytest.mark.slow
@given(programs(), WIDE, st.sampled_from((1, 512)))
@settings(max_examples=80, deadline=None)
def test_the_function_is_the_peak_at_every_size(program: Program, sizes: dict[str, int], block: int) -> None:
    live = liveness(in_blocks(program, block))
    function, peak = peak_function(live), live.at(sizes)
    winner = _winner(function, sizes)
    assert _at(function, sizes) == peak.bytes
    assert (winner.step if winner else None) == peak.step


@pytest.mark.slow
@given(programs(), st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_turning_points_match_an_exhaustive_search(program: Program, batch: int) -> None:
    live = liveness(program)
    stretches = peak_function(live).stretches("seq", {"batch": batch})
    steps = {seq: one.value.step for one in stretches for seq in range(one.first, min(one.last, TRIED.stop - 1) + 1)}
    assert steps == ({seq: live.at({"seq": seq, "batch": batch}).step for seq in TRIED} if live.timeline else {})
    assert not stretches or stretches[-1].last == MAX_SIZE
    assert all(one.last + 1 == after.first for one, after in pairwise(stretches))
    assert all(one.value is not after.value for one, after in pairwise(stretches))


@pytest.mark.slow
@given(programs(8), programs(8), st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_comparing_two_programs_matches_an_exhaustive_search(one: Program, other: Program, batch: int) -> None:
    first, second = peak_function(liveness(one)), peak_function(liveness(other))
    orders = dict[int, str]()
    for piece in compare(first, second, "seq", {"batch": batch}):
        orders |= dict.fromkeys(range(piece.first, min(piece.last, TRIED.stop - 1) + 1), piece.value)
    for seq in TRIED:
        left, right = (_at(function, {"seq": seq, "batch": batch}) for function in (first, second))
        assert orders[seq] == ("less" if left < right else "more" if left > right else "equal")


def test_the_scores_exceed_the_mlp_from_one_length_on() -> None:
    """2 · 3072 · s = 768 s + 24 s² at s = 224: up to there the MLP, at every batch."""
    function = peak_function(liveness(_mlp_and_attention()))
    assert function.text == "max(24576·batch·seq, 96·batch·seq² + 3072·batch·seq)"
    for batch in (1, 2, 64):
        (short, long) = function.stretches("seq", {"batch": batch})
        assert (short.first, short.last, short.value.module) == (1, 224, "mlp.act")
        assert (long.first, long.last, long.value.module) == (225, MAX_SIZE, "attention")


def test_a_step_that_is_never_the_peak_is_left_out() -> None:
    assert [one.step for one in peak_function(liveness(_mlp_and_attention())).candidates] == [1, 4]


def test_a_step_with_a_maximum_of_two_sizes_is_one_step() -> None:
    sketch = Sketch()
    sketch.run((sketch.given(Store.INPUT, (8,)),), (SEQ,), workspace=larger(multiply(2, SEQ), 100))
    function = peak_function(liveness(sketch.program(())))
    assert function.text == "max(4·seq + 100, 6·seq)"
    assert [(one.first, one.last) for one in function.stretches("seq")] == [(1, MAX_SIZE)]


def test_of_many_expressions_those_near_the_example_are_written() -> None:
    sketch = Sketch()
    x = sketch.given(Store.INPUT, (8,))
    sketch.run((x,), (1,), workspace=multiply(10**6, add(BATCH, SEQ)))
    for across in range(1, 140, 10):  # on a circle: each is the farthest in some direction, where both dims are large
        down = math.isqrt(144**2 - across**2)
        sketch.run((x,), (BATCH, BATCH, across, 25), workspace=product((100 * down, SEQ, SEQ)))
    function = peak_function(liveness(sketch.program(())))
    assert len(function.candidates) > 6
    assert "more, far from the example" in function.text
    assert format_size(present(_winner(function)).bytes) in function.text


def test_decomposing_attention_costs_memory_from_one_length_on() -> None:
    standard = peak_function(liveness(_mlp_and_attention(is_spelled_out=False)))
    decomposed = peak_function(liveness(_mlp_and_attention()))
    equal, more = compare(decomposed, standard, "seq")
    assert equal == Stretch(1, 224, "equal")
    assert more == Stretch(225, MAX_SIZE, "more")


@pytest.mark.slow
def test_rounded_sizes_that_alternate_forever_are_listed_up_to_a_limit() -> None:
    sketch = Sketch()
    x = sketch.given(Store.INPUT, (8,))
    six = sketch.run((sketch.run((x,), (SEQ, 3)),), (SEQ, 3))
    sketch.run((sketch.run((six,), (SEQ, 2)),), (SEQ, 4))  # also six in all, rounded up elsewhere
    live = liveness(in_blocks(sketch.program(()), 512))
    stretches = peak_function(live).stretches("seq")
    assert 1000 < stretches[-1].last < MAX_SIZE
    steps = {seq: piece.value.step for piece in stretches for seq in range(piece.first, piece.last + 1)}
    assert steps == {seq: live.at({"seq": seq}).step for seq in range(1, stretches[-1].last + 1)}


def test_a_program_without_operations_has_peak_zero() -> None:
    function = peak_function(liveness(Sketch().program(())))
    assert (function.text, function.candidates, function.stretches("seq")) == ("0", (), [])
